"""Anonymous memory of comparisons and advice on ledgers of ImageNet: 50,000 x 12 x 1000 halves.

Run: python benchmarks/memory.py [--samples 50000] [--limit 3.0] [--step advise]

Anonymous memory is what a process really needs: pages of a memory-mapped ledger belong to the
file, and the system takes them back when it wants to. Each of the three splits has the full
size; they share one file, which does not matter here.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from offramp import Ledger, advise, compare
from offramp.costs import Costs

METHODS = ("baseline", "temperature", "eefp-top-5", "ccct-top-5")
EXITS, CLASSES = 12, 1000


def write_ledger(folder: Path, samples: int) -> None:
    """Logits in which the label stands out more with every exit."""
    rng, rows = np.random.default_rng(0), np.arange(samples)
    labels = rng.integers(CLASSES, size=samples)
    logits = np.empty((samples, EXITS, CLASSES), np.float16)
    for exit_index in range(EXITS):
        noise = rng.standard_normal((samples, CLASSES), np.float32)
        noise[rows, labels] += (1 + 0.5 * exit_index) * (1 + rng.random(samples))
        logits[:, exit_index] = noise
    costs = Costs(stages=(1e8,) * EXITS, heads=(1e6,) * EXITS)
    Ledger(logits, labels, costs, split="all", network="made up").save(folder)


def as_split(stored: Ledger, split: str) -> Ledger:
    """The same samples by other names, which could not be told from a leak otherwise."""
    names = [f"{split} {number}" for number in range(len(stored))]
    parts = stored.logits, stored.labels, stored.cost_model
    return Ledger(*parts, split=split, sample_ids=names, network="made up")


def anonymous_gigabytes() -> float:
    """RssAnon of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 2**20
    raise SystemExit("this system does not say how much anonymous memory a process has")


class Peak(threading.Thread):
    """Watches the anonymous memory every 20 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.gigabytes = 0.0

    def run(self) -> None:
        """Watch for ever."""
        while True:
            self.gigabytes = max(self.gigabytes, anonymous_gigabytes())
            time.sleep(0.02)


def main() -> None:
    """Write the ledger in another process, then compare in this one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--limit", type=float, default=3.0, help="gigabytes")
    parser.add_argument("--step", choices=("compare", "advise"), default="compare")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_ledger(options.write, options.samples)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--samples", str(options.samples)]
        subprocess.run([*command, "--write", folder], check=True)
        size = sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**30
        watch, start = Peak(), time.perf_counter()
        before = anonymous_gigabytes()
        watch.start()
        stored = Ledger.load(folder)
        held_out, val, test = (as_split(stored, split) for split in ("held_out", "val", "test"))
        if options.step == "compare":
            compare(held_out, val, test, METHODS)
        else:
            advise(held_out, val, test)
        seconds = time.perf_counter() - start
    done = ", ".join(METHODS) if options.step == "compare" else "advise"
    print(
        f"{done} on three ledgers of {size:.2f} GB: peak anonymous memory "
        f"{watch.gigabytes:.2f} GB (limit {options.limit} GB), {before:.2f} GB of it before any "
        f"ledger was opened; {seconds:.0f} s"
    )
    if watch.gigabytes > options.limit:
        raise SystemExit("over the limit")


if __name__ == "__main__":
    main()
