"""What a guarantee costs, and how often it is broken.

Networks: the shipped one, folders with ledgers under OFFRAMP_DATA/ledgers, classifiers of
scikit-learn's digits on more and more pixels, a cascade of language models where
OFFRAMP_DATA/traces has one, and two made-up worlds, one of them adversarial.
Policies are fitted, and their paths fixed, on held_out. Val and test together are the population,
whose losses are known; certification samples are drawn from it with replacement. Besides the
exact bound of the net loss: the net loss by betting, by Hoeffding and Bentkus as MAPIE has it
(`mapie`), by Hoeffding alone, and regret by betting (`regret`).

Run: python benchmarks/guarantees.py --draws 1000
"""

import argparse
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from small_data import networks  # type: ignore[import-not-found]

from offramp import Costs, Guarantee, Ledger, Policy, synthetic
from offramp.arrays import Array
from offramp.bounds import betting, hoeffding_bentkus, net_p_value
from offramp.errors import FewSamplesWarning
from offramp.guarantees import losses_of
from offramp.ledger.chunks import cut
from offramp.methods import find_methods

WAYS = ("exact", "betting", "mapie", "hoeffding", "regret")
PATHS = ("baseline:shared", "baseline:geometric", "break-even", "eefp-logistic:geometric")


def digits() -> dict[str, Ledger]:
    """Three classifiers of handwritten digits on more and more pixels, as one network."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    data = load_digits()
    image = data.images / 16
    coarse = image.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(len(image), -1)
    views = [coarse[:, 4:12], coarse, image.reshape(len(image), -1)]
    train, held_out, rest = cut(len(image), [0.3, 0.5], seed=0)
    logits = np.stack(
        [
            LogisticRegression(max_iter=300)
            .fit(view[train], data.target[train])
            .predict_log_proba(view)
            for view in views
        ],
        axis=1,
    )
    return made(logits, data.target, {"held_out": held_out, "val": rest})


def adversarial() -> dict[str, Ledger]:
    """Confidence is high where an early exit is wrong, and accuracy jumps along the path."""
    rng, samples = np.random.default_rng(0), 8000
    labels = rng.integers(10, size=samples)
    odds = rng.normal(size=(samples, 5))
    right = rng.random((samples, 5)) < np.where(odds > 0.8, 0.55, [0.5, 0.82, 0.7, 0.84, 0.8])
    top = np.where(right, labels[:, None], (labels[:, None] + 1) % 10)
    logits = np.zeros((samples, 5, 10))
    np.put_along_axis(logits, top[..., None], 4 + odds[..., None], axis=2)
    return made(logits, labels, {"held_out": np.arange(2000), "val": np.arange(2000, samples)})


def made(logits: Array, labels: Array, parts: Mapping[str, Array]) -> dict[str, Ledger]:
    """Ledgers of exits that cost the same each."""
    exits = logits.shape[1]
    costs = Costs((1.0,) * exits, (0.0,) * exits, unit="relative")
    return {
        split: Ledger(logits[rows], labels[rows], costs, split=split, network="made")
        for split, rows in parts.items()
    }


def cascade(folder: Path) -> dict[str, Ledger]:
    """Five language models on questions of MMLU; held_out are the questions to learn from."""
    found = {}
    for split, part in (("held_out", "train"), ("val", "test")):
        arrays = np.load(folder / f"cascade_mmlu_llama_{part}.npz", allow_pickle=False)
        costs = Costs.of_members(arrays["cost_usd"], "dollars").mean()
        found[split] = Ledger.from_answers(
            log_confidence=arrays["log_confidence"],
            correct=arrays["correct"],
            costs=costs,
            split=split,
            network="llama",
        )
    held_out = found["held_out"].with_costs(found["val"].cost_model)
    return {"held_out": held_out, "val": found["val"]}


def worlds() -> Iterator[tuple[str, Mapping[str, Ledger]]]:
    """Ledgers by name: held_out, and val with or without test, which are the population."""
    yield from networks()
    yield "digits", digits()
    traces = Path(os.environ.get("OFFRAMP_DATA", "")) / "traces"
    if (traces / "cascade_mmlu_llama_test.npz").is_file():
        yield "cascade of five language models", cascade(traces)
    yield "made up, late exits worse", synthetic.ledgers(seed=3, samples=3000, relapse=0.3)
    yield "adversarial", adversarial()


def population(path: str, ledgers: Mapping[str, Ledger]) -> tuple[Array, Array, Array]:
    """Net losses and regrets of the population `[N, P]`, and costs `[P]`, cheapest first."""
    held_out = ledgers["held_out"]
    if not held_out.has_logits:
        path = path.replace("break-even", "break-even-no-ensemble")
    (method,) = find_methods(path, held_out.num_classes)
    policy = Policy(method.scorer, method.answer).fit(held_out)
    policy.tune(held_out, method.thresholds, allow_split="held_out")
    replays = [
        policy.replay(ledgers[name], "val", allow_split=name)
        for name in ("val", "test")
        if name in ledgers
    ]
    net, regret = (
        np.concatenate([losses_of(each, Guarantee(0.1, loss=loss)) for each in replays])
        for loss in ("accuracy", "regret")
    )
    return net, regret, np.mean([each.costs_by_point.mean(axis=1) for each in replays], axis=0)


def certified_at(losses: Array, epsilon: float, delta: float, way: str) -> int:
    """The cheapest point that is certified; one beyond the last where none is."""
    safest_first = losses[:, ::-1]
    if way == "exact":  # the test of one epsilon is quicker than the bound, and says the same
        lost, gained = (safest_first > 0).sum(axis=0), (safest_first < 0).sum(axis=0)
        bounds = net_p_value(lost, gained, len(losses), epsilon, delta)
        epsilon = delta
    elif way == "hoeffding":
        slack = 2 * np.sqrt(np.log(1 / delta) / (2 * len(losses)))
        bounds = safest_first.mean(axis=0) + slack
    elif way == "regret":
        bounds = betting(safest_first, delta)
    else:
        bound = {"betting": betting, "mapie": hoeffding_bentkus}[way]
        bounds = bound(safest_first, delta, True)
    return int(losses.shape[1] - np.logical_and.accumulate(bounds <= epsilon).sum())


def rows(path: str, ledgers: Mapping[str, Ledger], options: argparse.Namespace) -> Iterator[str]:
    """Mean cost, share refused and share of violations of each way."""
    net, regret, costs = population(path, ledgers)
    rng, size = np.random.default_rng(0), options.samples
    # Thinned, for the sake of time; a path may have any points.
    thin = np.unique(np.linspace(0, len(costs) - 1, options.points).astype(int))
    net, regret, costs = net[:, thin], regret[:, thin], costs[thin]
    truth = {"regret": regret.mean(axis=0)}
    for way in WAYS:
        draws = options.draws if way == "exact" else options.rival_draws
        losses, spent, broken, refused = regret if way == "regret" else net, 0.0, 0, 0
        for _ in range(draws):
            chosen = rng.integers(len(net), size=size)
            point = certified_at(losses[chosen], options.epsilon, options.delta, way)
            if point == len(costs) or costs[point] > 1:
                spent, refused = spent + 1, refused + 1  # the full network
                continue
            spent += costs[point]
            broken += int(truth.get(way, net.mean(axis=0))[point] > options.epsilon)
        yield (
            f"| {path} | {way} | {size:,} | {100 * spent / draws:.1f} | "
            f"{100 * refused / draws:.1f} | {100 * broken / draws:.1f} |"
        )


def main() -> None:
    """One table per world."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--rival-draws", type=int, default=50)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--points", type=int, default=41)
    parser.add_argument("--epsilon", type=float, default=0.02)
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--paths", default=",".join(PATHS))
    parser.add_argument("--only", help="part of a world's name")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FewSamplesWarning)
    for name, ledgers in worlds():
        if options.only and options.only not in name:
            continue
        print(f"\n{name}: at most {100 * options.epsilon:g} points, delta {options.delta:g}")
        print("| path | bound | samples | cost, % | refused, % | violated, % |")
        print("|---|---|---:|---:|---:|---:|", flush=True)
        for path in options.paths.split(","):
            print(*rows(path, ledgers, options), sep="\n", flush=True)


if __name__ == "__main__":
    main()
