"""Are smooth thresholds ever worse than geometric ones?

Scorers are fitted on 1,000 samples of held_out and val together (on a third of them where they
are few), thresholds chosen on growing parts of the rest, and accuracies measured on test, at six
budgets. A cell is the mean over the budgets, of smooth thresholds in points over geometric ones.
Below the table: how often each kind is worse than the other, and clearly so by a 95 % interval
over test samples and resplits. Networks as in `small_data.py`.

Run: python benchmarks/threshold_methods.py --resplits 3 [LEDGERS ...]
"""

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from small_data import SURE, Gain, Run, networks  # type: ignore[import-not-found]

from offramp import Ledger
from offramp.advice.rating import hits_at, pool
from offramp.errors import FewSamplesWarning
from offramp.methods import Method, find_methods
from offramp.replay import Replay
from offramp.thresholds.tuning import tune_points

FIT = 1000
SIZES = (100, 200, 300, 1000, 3000, 5000)
BUDGETS = (0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
SCORERS = ("baseline", "eefp", "eefp-logistic", "break-even")
THRESHOLDS = ("geometric", "smooth")
MOST = 10  # cells that are listed


def measured(thresholds: str, val: Replay, test: Replay) -> Run:
    """Hits on test at the budgets, with thresholds from val."""
    samples = val.scored
    points = tune_points(samples, 0.0, thresholds, 61)
    return Run(hits_at(replace(test, thresholds=points.thresholds), BUDGETS), 0.0, 0.0)


Runs = dict[str, list[Run]]
"""By thresholds, one for each resplit."""


def runs_by_size(method: Method, ledgers: Mapping[str, Ledger], resplits: int) -> dict[int, Runs]:
    """What a scorer gives with each kind of thresholds, by size of val."""
    both = pool(ledgers["held_out"], ledgers["val"])
    fit = min(FIT, len(both) // 3)
    sizes = [size for size in SIZES if size <= len(both) - fit]
    found: dict[int, Runs] = {size: {name: [] for name in THRESHOLDS} for size in sizes}
    for seed in range(resplits):
        order = np.random.default_rng(seed).permutation(len(both))
        (policy,) = method.policy().fit_seeds(both.take(order[:fit]), [0])
        val = policy.replay(both.take(order[fit:]).as_split("val"), "val")
        test = policy.replay(ledgers["test"])
        for size, runs in found.items():
            part = val.take(np.arange(size))
            for name in THRESHOLDS:
                runs[name].append(measured(name, part, test))
    return found


def cell(runs: Runs) -> str:
    """What smooth thresholds gain over geometric ones."""
    return f"{Gain.of(runs['smooth'], runs['geometric']).mean:+.2f}"


def behind(name: str, runs: Runs) -> Gain:
    """What one kind of thresholds gains over the other."""
    (other,) = (each for each in THRESHOLDS if each != name)
    return Gain.of(runs[name], runs[other])


def verdict(name: str, cells: Mapping[str, Runs]) -> str:
    """Where one kind of thresholds is worse than the other, and by how much."""
    gains = {where: behind(name, runs) for where, runs in cells.items()}
    lower = sum(gain.mean < 0 for gain in gains.values())
    clearly = {w: gain for w, gain in gains.items() if gain.mean < -SURE * gain.error}
    budgets = np.stack([gain.values for gain in gains.values()])
    errors = np.stack([gain.errors for gain in gains.values()])
    single = int((budgets < -SURE * errors).sum())
    text = f"`{name}`: below the other in {lower} of {len(gains)} cells, clearly in {len(clearly)}"
    text += f"; at single budgets, clearly in {single} of {budgets.size}"
    if len(clearly) > MOST:
        return text
    return "\n".join([text, *(f"  {w}: {gain.cells()[-1]}" for w, gain in clearly.items())])


def main() -> None:
    """One row per network and scorer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="LEDGERS")
    parser.add_argument("--resplits", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FewSamplesWarning)
    print("| network | score | " + " | ".join(f"{size:,}" for size in SIZES) + " |")
    print("|---|---|" + "---:|" * len(SIZES))
    cells: dict[str, Runs] = {}
    for name, ledgers in networks(options.folders):
        for method in find_methods(SCORERS, ledgers["test"].num_classes):
            found = runs_by_size(method, ledgers, options.resplits)
            shown = [cell(found[size]) if size in found else "-" for size in SIZES]
            print(f"| {name} | `{method.name}` | {' | '.join(shown)} |", flush=True)
            cells |= {f"{name}, {method.name}, {size:,}": runs for size, runs in found.items()}
    print("", *(verdict(name, cells) for name in THRESHOLDS), sep="\n")


if __name__ == "__main__":
    main()
