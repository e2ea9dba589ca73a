"""How often the intervals of `compare` hold the true difference, by simulation.

A network's test samples are taken for the whole population. Policies are fitted and tuned once,
so that their true accuracies, EEFP and ECE are known; test sets are drawn from the population
with replacement, and every method's difference to the first one gets its interval on each. "Missed
clearly" counts intervals that leave zero out on the wrong side. Populations: a made-up network,
the shipped one, and folders with ledgers under OFFRAMP_DATA/ledgers.

The ECE of a few samples is larger than that of many; its true difference is the mean over test
sets of the same size.

Run: python benchmarks/coverage.py --draws 400
"""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from offramp import Ledger, synthetic, zoo
from offramp.arrays import Array
from offramp.evaluation.bootstrap import Interval, Resamples
from offramp.evaluation.columns import COLUMNS as FIGURES
from offramp.evaluation.columns import accuracy_column
from offramp.evaluation.outcome import exit_metrics
from offramp.ledger import load_ledgers
from offramp.methods import find_methods
from offramp.replay import Replay
from offramp.scorers import Scorer

BUDGETS = (0.25, 0.4, 0.55, 0.7, 0.85, 0.95)
METHODS = "baseline,temperature,vector,margin,eefp-logistic,break-even"
BY_KEY = {column.key: column for column in FIGURES}
JUDGED = [*map(accuracy_column, BUDGETS), BY_KEY["eefp"], BY_KEY["ece"]]
COLUMNS = [*(f"{budget:.0%}" for budget in BUDGETS), "EEFP", "ECE"]


def populations() -> Iterator[tuple[str, Mapping[str, Ledger]]]:
    """Ledgers by name of their network."""
    yield "made up", synthetic.ledgers(seed=0, samples=5000, exits=5, classes=10)
    shipped = zoo.cifar100()
    yield "shipped", {name: shipped[name] for name in ("held_out", "val", "test")}
    root = Path(os.environ.get("OFFRAMP_DATA", "")) / "ledgers"
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        yield folder.name, load_ledgers(folder, network=folder.name)


def replays(ledgers: Mapping[str, Ledger], names: str) -> list[tuple[Replay, Scorer]]:
    """Every method, fitted and tuned on part of held_out and val, on the whole population."""
    held_out, val = ledgers["held_out"].take(range(1000)), ledgers["val"].take(range(600))
    found = []
    for method in find_methods(names.split(","), val.num_classes):
        (plan,) = method.plans(held_out, val, [0.5], seeds=1)
        found.append((plan[0.5].replay(ledgers["test"]), plan[0.5].scorer))
    return found


@dataclass
class Measured:
    """One method on one test set: figures `[C]`, and their resampled values `[R, C]`."""

    figures: Array
    resampled: Array


def measure(replay: Replay, scorer: Scorer, draws: Resamples) -> Measured:
    """Accuracies at the budgets, EEFP and ECE; a scorer without probabilities has no ECE."""
    exits = exit_metrics(replay, scorer)
    accuracies = [replay.curve.at(budget).accuracy for budget in BUDGETS]
    calibration = draws.ece(replay, scorer)
    nothing = np.full(len(draws.weights), np.nan)
    columns = [
        draws.accuracies(replay, BUDGETS),
        draws.eefp(replay)[:, None],
        (nothing if calibration is None else calibration)[:, None],
    ]
    figures = [*accuracies, np.nanmean(exits.eefp[:-1]), exits.ece[:-1].mean()]
    return Measured(np.array(figures), np.concatenate(columns, axis=1))


def plain_bootstrap(value: float, resampled: Array) -> Interval:
    """The interval of the centred percentiles, for comparison."""
    low, high = value + np.quantile(resampled - resampled.mean(), [0.025, 0.975])
    return Interval(value, low, high, low > 5e-5 or high < -5e-5)


@dataclass
class Tally:
    """Intervals of one kind and method, column by column."""

    intervals: list[list[Interval]] = field(default_factory=list)  # draws, columns

    def figures(self, truth: Array) -> Array:
        """Share covered, share missed clearly, and mean width: `[3, C]`, in percent."""
        low, high, clear = (
            np.array([[getattr(gap, name) for gap in row] for row in self.intervals], dtype=float)
            for name in ("low", "high", "is_clear")
        )
        # The last digits of a difference are rounding.
        covered = (low <= truth + 1e-9) & (truth <= high + 1e-9)
        wrong = clear.astype(bool) & (np.sign(low + high) != np.sign(truth))
        parts = [covered, wrong, high - low]
        known = np.where(np.isnan(low), np.nan, 1.0)
        return np.stack([100 * (part * known).mean(axis=0) for part in parts])


def simulate(
    found: Sequence[tuple[Replay, Scorer]], samples: int, draws: int, count: int
) -> dict[str, Array]:
    """By kind of interval: share covered, share missed clearly and width of every method.

    `[methods, 3, C]`, in percent, of the methods after the first one.
    """
    population, rng = len(found[0][0]), np.random.default_rng(samples)
    resamples = Resamples(samples, count)
    gaps, kinds = [], {"percentiles": [Tally() for _ in found[1:]]}
    kinds["library"] = [Tally() for _ in found[1:]]
    for _ in range(draws):
        rows = rng.integers(population, size=samples)
        first, *others = (
            measure(replay.take(rows), scorer, resamples) for replay, scorer in found
        )
        gaps.append([other.figures - first.figures for other in others])
        for number, other in enumerate(others):
            values, columns = gaps[-1][number], (other.resampled - first.resampled).T
            pairs = list(zip(values.tolist(), columns, strict=True))
            kinds["percentiles"][number].intervals.append([plain_bootstrap(*p) for p in pairs])
            kinds["library"][number].intervals.append(
                [c.interval(*pair, samples) for c, pair in zip(JUDGED, pairs, strict=True)]
            )
    once = Resamples(population, 2)
    base, *rest = (measure(replay, scorer, once).figures for replay, scorer in found)
    truths = [
        np.append((other - base)[:-1], mean[-1])
        for other, mean in zip(rest, np.mean(gaps, axis=0), strict=True)
    ]
    return {
        kind: np.stack([t.figures(truth) for t, truth in zip(tallies, truths, strict=True)])
        for kind, tallies in kinds.items()
    }


def rows(simulated: Mapping[str, Array], samples: int) -> Iterator[str]:
    """Rows of the table for one size: of all methods, the worst coverage and the mean width."""
    for kind, figures in simulated.items():
        for label, row in (
            ("covered", np.nanmin(figures[:, 0], axis=0)),
            ("missed clearly", np.nanmax(figures[:, 1], axis=0)),
            ("width", np.nanmean(figures[:, 2], axis=0)),
        ):
            digits = 2 if label == "width" else 1
            cells = " | ".join(f"{value:.{digits}f}" for value in row)
            yield f"| {samples} | {kind} | {label} | {cells} |"


def main() -> None:
    """One table per population."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--resamples", type=int, default=300)
    parser.add_argument("--sizes", default="300,600,2000")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--only", help="name of one population")
    options = parser.parse_args()
    for name, ledgers in populations():
        if options.only not in (None, name):
            continue
        found = replays(ledgers, options.methods)
        print(f"\n{name}: {len(ledgers['test'])} samples as the population")
        print(f"| test samples | interval | % | {' | '.join(COLUMNS)} |")
        print(f"|---:|---|---|{'---:|' * len(COLUMNS)}")
        for size in map(int, options.sizes.split(",")):
            simulated = simulate(found, size, options.draws, options.resamples)
            print(*rows(simulated, size), sep="\n", flush=True)


if __name__ == "__main__":
    main()
