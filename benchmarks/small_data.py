"""What methods gain over max probability with geometric thresholds, from few samples.

held_out and val of a network are pooled and split anew, with as many samples in each; figures
come from test. Networks: the shipped one, and folders with ledgers under OFFRAMP_DATA/ledgers.

Run: python benchmarks/small_data.py --sizes 150,300,1000,3000 --resplits 5
"""

import argparse
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offramp import Ledger, metrics, zoo
from offramp.ledger.files import load_ledgers
from offramp.methods import Method, find_methods

Floats = npt.NDArray[np.float64]
BUDGETS = (0.25, 0.5, 0.75)
METHODS = (
    *("baseline", "baseline:optimized", "baseline:smooth", "eefp", "eefp:optimized"),
    *("eefp-logistic:optimized", "eefp-logistic", "break-even"),
)


def networks() -> Iterator[tuple[str, Mapping[str, Ledger]]]:
    """Ledgers by name of their network."""
    shipped = zoo.cifar100()
    yield "shipped", {name: shipped[name] for name in ("held_out", "val", "test")}
    root = Path(os.environ.get("OFFRAMP_DATA", "")) / "ledgers"
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        yield folder.name, load_ledgers(folder, network=folder.name)


def resplit(
    ledgers: Mapping[str, Ledger], size: int, seed: int, labelled: bool
) -> tuple[Ledger, Ledger]:
    """Held_out and val of a size, drawn from both."""
    both = [ledgers["held_out"], ledgers["val"]]
    logits = torch.cat([ledger.logits for ledger in both])
    labels = torch.cat([ledger.labels for ledger in both])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    first, second = (
        Ledger(
            logits[rows],
            labels[rows] if labelled else None,
            both[0].cost_model,
            split=split,
            sample_ids=[f"pool-{row}" for row in rows.tolist()],
            network=both[0].network,
        )
        for split, rows in (("held_out", order[:size]), ("val", order[size : 2 * size]))
    )
    return first, second


def measure(method: Method, held_out: Ledger, val: Ledger, test: Ledger) -> Floats:
    """Accuracies at the budgets and EEFP on test in percent, and seconds to fit and tune."""
    start = time.process_time()
    (plan,) = method.plans(held_out, val, BUDGETS, seeds=1)
    seconds = time.process_time() - start
    # Points of one policy share its scores; what `auto` chooses may differ by budget.
    distinct = {plan.methods[budget]: plan[budget] for budget in BUDGETS}
    by_method = {name: policy.replay(plan.view(test)) for name, policy in distinct.items()}
    replays = [by_method[plan.methods[budget]] for budget in BUDGETS]
    found = [
        100 * replay.curve.at(budget).accuracy
        for budget, replay in zip(BUDGETS, replays, strict=True)
    ]
    middle = replays[len(replays) // 2]
    scores, targets = middle.scores[:, :-1].numpy(), middle.stop_targets[:, :-1].numpy()
    return np.array([*found, np.nanmean(metrics.eefp(scores, targets)), seconds])


def table(
    name: str,
    ledgers: Mapping[str, Ledger],
    size: int,
    resplits: int,
    names: str,
    labelled: bool = True,
) -> None:
    """Print the gains of every method, with standard errors over the resplits."""
    methods = find_methods(names.split(","), ledgers["test"].num_classes)
    figures: dict[str, list[Floats]] = {method.name: [] for method in methods}
    for seed in range(resplits):
        held_out, val = resplit(ledgers, size, seed, labelled)
        for method in methods:
            figures[method.name].append(measure(method, held_out, val, ledgers["test"]))
    base = np.stack(figures[methods[0].name])
    print(f"\n{name}, {size} + {size}, {resplits} resplits")
    print("| method | 25 % | 50 % | 75 % | EEFP | seconds |\n|---|---:|---:|---:|---:|---:|")
    for method in methods:
        found = np.stack(figures[method.name])
        gains = found[:, :3] - base[:, :3]
        means, errors = gains.mean(axis=0), gains.std(axis=0) / max(resplits - 1, 1) ** 0.5
        cells = [f"{mean:+.2f} ± {error:.2f}" for mean, error in zip(means, errors, strict=True)]
        eefp, seconds = found[:, 3:].mean(axis=0)
        print(
            f"| `{method.name}` | {' | '.join(cells)} | {eefp:.3f} | {seconds:.2f} |", flush=True
        )


def main() -> None:
    """One table per network and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="150,300,1000,3000")
    parser.add_argument("--resplits", type=int, default=5)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--no-labels", action="store_true", help="of held_out and val")
    options = parser.parse_args()
    for name, ledgers in networks():
        pool = len(ledgers["held_out"]) + len(ledgers["val"])
        for size in map(int, options.sizes.split(",")):
            if 2 * size > pool:
                print(f"\n{name}, {size} + {size}: there are only {pool} samples")
                continue
            labelled = not options.no_labels
            table(name, ledgers, size, options.resplits, options.methods, labelled)


if __name__ == "__main__":
    main()
