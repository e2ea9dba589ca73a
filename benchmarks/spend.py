"""What `auto` spends on test of each budget, and what that gives.

held_out and val are pooled and split anew for each resplit, as in `small_data.py`. Networks: the
shipped one, folders with ledgers under OFFRAMP_DATA/ledgers, and made-up ones. Where late exits
are worse, less than a large budget is spent on purpose.

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
    for relapse in (0.03, 0.3, 0.6):
        worlds = synthetic.ledgers(seed=3, samples=4000, relapse=relapse)
        yield f"made up, {relapse:.0%} of answers get worse", worlds
    yield "made up, confidence is all", synthetic.ledgers(seed=3, samples=4000, structure=False)


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
                held_out, val = resplit(both, size, seed, True)
                (plan,) = method.plans(held_out, val, BUDGETS, seeds=1)
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
