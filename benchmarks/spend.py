"""What `auto` spends on test of each budget, and what that gives.

held_out and val are pooled and split anew for each resplit, as in `small_data.py`. Networks: the
shipped one, folders with ledgers under OFFRAMP_DATA/ledgers, three made-up ones.

Run: python benchmarks/spend.py --sizes 150,300,1000 --resplits 8
"""

import argparse
import warnings
from collections.abc import Iterator, Mapping

import numpy as np
from small_data import networks, resplit  # type: ignore[import-not-found]

from offramp import Ledger, synthetic
from offramp.advice.rating import pool
from offramp.errors import FewSamplesWarning
from offramp.methods import find_methods

BUDGETS = (0.25, 0.4, 0.5, 0.6, 0.75, 0.9)


def all_networks() -> Iterator[tuple[str, Mapping[str, Ledger]]]:
    """The networks by name."""
    yield from networks()
    for name, settings in MADE_UP.items():
        yield name, synthetic.ledgers(seed=3, samples=4000, **settings)


MADE_UP: dict[str, dict[str, float | bool]] = {
    "made up": {},
    "made up, confidence is all": {"structure": False},
    "made up, late exits worse": {"relapse": 0.3},
    "made up, last exits far worse": {"relapse": 0.6},
}


def main() -> None:
    """Rows: cost on test without the budget, in points, and accuracy, by budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="150,300,1000")
    parser.add_argument("--resplits", type=int, default=8)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--only", help="part of a network's name")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FewSamplesWarning)
    shares = " | ".join(f"{budget:.0%}" for budget in BUDGETS)
    print(f"| network | samples | {shares} | mean | accuracies |")
    print("|---|---:|" + "---:|" * (len(BUDGETS) + 1) + "---|")
    every = []
    for name, ledgers in all_networks():
        if options.only and options.only not in name:
            continue
        both = pool(ledgers["held_out"], ledgers["val"])
        (method,) = find_methods(options.method, both.num_classes)
        for size in map(int, options.sizes.split(",")):
            if 2 * size > len(both):
                continue
            spent, reached = [], []
            for seed in range(options.resplits):
                (plan,) = method.plans(*resplit(both, size, seed, True), BUDGETS, seeds=1)
                test = plan.view(ledgers["test"])
                replays = [plan[budget].replay(test) for budget in BUDGETS]
                spent.append([replay.costs.mean() for replay in replays])
                reached.append([replay.right.mean() for replay in replays])
            gaps = 100 * (np.mean(spent, axis=0) - BUDGETS)
            every.append(gaps)
            cells = " | ".join(f"{gap:+.2f}" for gap in (*gaps, gaps.mean()))
            accuracies = " ".join(f"{100 * right:.1f}" for right in np.mean(reached, axis=0))
            print(f"| {name} | {size:,} + {size:,} | {cells} | {accuracies} |", flush=True)
    cells = " | ".join(f"{gap:+.2f}" for gap in (*np.mean(every, axis=0), np.mean(every)))
    print(f"| mean | | {cells} | |")


if __name__ == "__main__":
    main()
