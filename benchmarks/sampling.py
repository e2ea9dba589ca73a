"""Repeated samples of one model: how many are needed until the majority is settled?

    python benchmarks/sampling.py --resplits 20

The trace of a model that thought ten times about each of 75 questions, in `traces/` below
`OFFRAMP_DATA`. The final answers of the ten chains are samples, in ten random orders; their
tokens are the cost. Questions are split into 35 % to fit on, 35 % to tune on and 30 % to test on,
anew for each resplit. Printed are accuracies on test at 25 and 50 % of the tokens of all ten, less
that of the vote of all ten: mean and standard deviation over the resplits, in points. `one` is a
single sample, and the rule of the paper stops where its chance is 0.95.
"""

import argparse
import os
from pathlib import Path

import numpy as np

import offramp
from offramp import Ledger, Policy
from offramp.answers import MajorityVote
from offramp.scorers import Settled

BUDGETS = (0.25, 0.5)
METHODS = ("vote", "vote:smooth", "adaptive-consistency", "adaptive-consistency-dirichlet", "auto")
ORDERS = 10
SURE = float(np.log(0.95 / 0.05))


def samples() -> Ledger:
    """Ten final answers of each question, in random orders."""
    folder = Path(os.environ.get("OFFRAMP_DATA", "data")) / "traces"
    arrays = np.load(folder / "gemma4_12b_cot_mmlu_pro.npz", allow_pickle=False)
    said, tokens = arrays["logits"][:, -1].argmax(axis=1), arrays["tokens"][:, -1]
    random, rows, costs, labels, groups = np.random.default_rng(0), [], [], [], []
    for name in np.unique(arrays["groups"]):
        chains = np.flatnonzero(arrays["groups"] == name)
        for _ in range(ORDERS):
            order = random.permutation(chains)
            rows.append(said[order].tolist())
            costs.append(tokens[order].cumsum())
            labels.append(int(arrays["labels"][chains[0]]))
            groups.append(str(name))
    return Ledger.from_answers(
        rows,
        labels=labels,
        costs=np.array(costs, float),
        unit="tokens",
        split="all",
        groups=groups,
        network="gemma",
        reference="vote",
    )


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resplits", type=int, default=5, help="How often to draw anew.")
    options, ledger = parser.parse_args(), samples()
    found: dict[str, list[list[float]]] = {}
    for seed in range(options.resplits):
        held_out, val, test = ledger.partition(0.35, 0.35, 0.3, seed=seed)
        every = test.full_correct.mean()
        table = offramp.compare(
            held_out, val, test, METHODS, BUDGETS, seeds=1, resamples=2, progress=False
        )
        for name in METHODS:
            row = [table[name].accuracy(budget) - every for budget in BUDGETS]
            found.setdefault(name, []).append(row)
        found.setdefault("one", []).append([test.heads_correct[:, 0].mean() - every] * 2)
        for rule in ("beta", "dirichlet"):
            policy = Policy(Settled(rule), MajorityVote()).fit(held_out).tune(val, "shared")
            replay = policy.replay(test)
            stops = replay.scores >= SURE
            exits = stops.argmax(axis=1)  # the last one always stops: its score is infinite
            numbers = np.arange(len(test))
            spent = test.cumulative_costs[numbers, exits].mean() / test.reference_cost
            gap = replay.correct[numbers, exits].mean() - every
            found.setdefault(f"{rule}, 0.95 (points, then % of the tokens)", []).append(
                [gap, spent]
            )
    for name, rows in found.items():
        mean, spread = 100 * np.mean(rows, axis=0), 100 * np.std(rows, axis=0)
        cells = "  ".join(f"{m:+6.1f} ± {s:.1f}" for m, s in zip(mean, spread, strict=True))
        print(f"{name:45} {cells}")


if __name__ == "__main__":
    main()
