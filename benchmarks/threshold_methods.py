"""Are smooth thresholds ever worse than the better of geometric and optimised ones?

Scorers are fitted on 1,000 samples of held_out and val together, thresholds chosen on growing
parts of the rest, and accuracies measured on test, at six budgets. A cell is the mean over the
budgets, in points over geometric thresholds: of optimised ones / of smooth ones. Networks as in
`small_data.py`.

Run: python benchmarks/threshold_methods.py --resplits 3 [LEDGERS ...]
"""

import argparse
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from small_data import networks  # type: ignore[import-not-found]

from offramp import Ledger
from offramp.advice.rating import pool
from offramp.errors import FewSamplesWarning
from offramp.methods import Method, find_methods
from offramp.replay import Replay
from offramp.thresholds.tuning import tune_points

FIT = 1000
SIZES = (100, 200, 300, 1000, 3000, 5000)
BUDGETS = (0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
SCORERS = ("baseline", "eefp", "eefp-logistic", "break-even")
THRESHOLDS = ("geometric", "optimized", "smooth")


def accuracies(thresholds: str, val: Replay, test: Replay) -> list[float]:
    """Accuracies on test at the budgets, in percent."""
    inputs = val.scores, val.correct, val.cost_shares
    points = tune_points(*inputs, 0.0, thresholds, 61, val.chances)
    curve = replace(test, thresholds=points.thresholds).curve
    return [100 * curve.at(budget).accuracy for budget in BUDGETS]


def row(method: Method, ledgers: Mapping[str, Ledger], resplits: int) -> Iterator[str]:
    """Cells of one scorer, by size: what optimised and smooth thresholds gain."""
    both = pool(ledgers["held_out"], ledgers["val"])
    found: dict[int, list[list[list[float]]]] = {size: [] for size in SIZES}
    for seed in range(resplits):
        order = torch.randperm(len(both), generator=torch.Generator().manual_seed(seed))
        (policy,) = method.policy().fit_seeds(both.take(order[:FIT]), [0])
        val = policy.replay(both.take(order[FIT:]).as_split("val"), "val")
        test = policy.replay(ledgers["test"])
        for size in (size for size in SIZES if size <= len(val)):
            part = val.take(torch.arange(size))
            found[size].append([accuracies(name, part, test) for name in THRESHOLDS])
    for cells in found.values():
        if not cells:
            yield "-"
            continue
        geometric, optimized, smooth = np.mean(cells, axis=(0, 2))
        yield f"{optimized - geometric:+.2f} / {smooth - geometric:+.2f}"


def main() -> None:
    """One row per network and scorer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="LEDGERS")
    parser.add_argument("--resplits", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FewSamplesWarning)
    print("| network | score | " + " | ".join(f"{size:,}" for size in SIZES) + " |")
    print("|---|---|" + "---:|" * len(SIZES))
    for name, ledgers in networks(options.folders):
        for method in find_methods(SCORERS, ledgers["test"].num_classes):
            cells = row(method, ledgers, options.resplits)
            print(f"| {name} | `{method.name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
