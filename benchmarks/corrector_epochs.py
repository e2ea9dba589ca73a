"""What a corrector gains by choosing how many epochs it trains, against the 30 that it had.

held_out and val of a network are pooled; correctors are fitted on some of the samples, and
measured on others: on the rest of the pool with `--on rest` (to choose a design), or on test.
EEFP is the mean over the exits; accuracy the mean at 25, 50 and 75 % of the compute, with smooth
thresholds from the other half of the samples that are measured on. Networks: the shipped one, and
folders with ledgers under OFFRAMP_DATA/ledgers.

Run: python benchmarks/corrector_epochs.py --resplits 3 [--on rest]
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from offramp import Corrector, Ledger, Policy, zoo
from offramp.advice.rating import hits_on, pool
from offramp.ledger import load_ledgers
from offramp.metrics import eefp

BUDGETS = (0.25, 0.5, 0.75)
LEFT = 1200  # samples of the rest


def networks() -> Iterator[tuple[str, dict[str, Ledger]]]:
    """Ledgers by name of their network."""
    shipped = zoo.cifar100()
    yield "shipped", {name: shipped[name] for name in ("held_out", "val", "test")}
    root = Path(os.environ.get("OFFRAMP_DATA", "")) / "ledgers"
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        yield folder.name, load_ledgers(folder, network=folder.name)


def measured(scorer: Corrector, learned: Ledger, on: Ledger) -> tuple[float, float]:
    """EEFP, and accuracy in percent."""
    (policy,) = Policy(scorer).fit_seeds(learned, [0])
    replay = policy.replay(on, on.split)
    found = eefp(replay.scores[:, :-1], replay.stop_targets[:, :-1])
    return float(np.nanmean(found)), 100 * float(hits_on(replay, "smooth", BUDGETS).mean())


def main() -> None:
    """One row per network, size and kind of corrector."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resplits", type=int, default=3)
    parser.add_argument("--on", choices=("rest", "test"), default="test")
    parser.add_argument("--sizes", default="300,1500,3000,6000")
    options = parser.parse_args()
    heads = "EEFP, 30 epochs | chosen | accuracy, 30 epochs | chosen"
    print(f"| network | samples | history | {heads} |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for name, splits in networks():
        both = pool(splits["held_out"], splits["val"])
        room = len(both) - (LEFT if options.on == "rest" else 0)
        for size in map(int, options.sizes.split(",")):
            if size > room:
                continue
            for history in (True, False):
                found = []
                for seed in range(options.resplits):
                    order = np.random.default_rng(1000 + seed).permutation(len(both))
                    rest = both.take(order[-LEFT:]).as_split("val")
                    on = rest if options.on == "rest" else splits["test"]
                    learned = both.take(order[:size])
                    found.append(
                        [
                            measured(Corrector(history=history, epochs=epochs), learned, on)
                            for epochs in (30, None)
                        ]
                    )
                before, after = np.mean(found, axis=0)
                cells = f"{before[0]:.4f} | {after[0]:.4f} | {before[1]:.2f} | {after[1]:.2f}"
                seen = "yes" if history else "no"
                print(f"| {name} | {size:,} | {seen} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
