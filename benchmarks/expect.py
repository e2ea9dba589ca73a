"""What to expect, by workload: the cheapest setting that loses at most a point of accuracy.

    python benchmarks/expect.py

Every figure is read from the JSON files of figures, none is written here. A setting counts where
the lower end of its 95 % interval is at most one point below the model that does not stop. The
second table holds what `auto` gains over the baseline, on networks that are independent.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
MOST = 1.0  # points of accuracy
INTERVAL = re.compile(r"([-+][\d.]+) \[([-+][\d.]+), ([-+][\d.]+)\]")
NAMES = {"CIFAR-100", "Tiny-ImageNet", "SST-2"}
KNOWN = "ResNet-20"  # its gains on test were known when methods were chosen

Rows = list[list[str]]


class Setting(NamedTuple):
    """A way to run a model, against the model that does not stop."""

    share: float  # of the time or the dollars
    gain: str  # points, with the interval

    @property
    def holds(self) -> bool:
        """Whether at most a point is lost, by the interval."""
        found = INTERVAL.search(self.gain)
        return found is not None and float(found[2]) >= -MOST


class Workload(NamedTuple):
    """A workload with its settings."""

    name: str
    settings: list[Setting]
    unit: str
    against: str
    caveat: str

    def row(self) -> list[str] | None:
        """Its row of the table, if a setting holds."""
        found = [setting for setting in self.settings if setting.holds]
        if not found:
            return None
        share, gain = min(found)
        saved = f"{1 - share:.0%} of the {self.unit}"
        faster = f": {1 / share:.2f} times as fast" if self.unit == "time" else ""
        return [self.name, saved + faster, gain, f"{self.against}; {self.caveat}"]


def rows(place: str, table: str) -> Rows:
    """The rows of a table of figures."""
    found: Rows = json.loads((ROOT / place).read_text())["tables"][table]["rows"]
    return found


def budgets(found: Rows, share: int, gain: int) -> list[Setting]:
    """The settings of the rows that are budgets, from these columns."""
    return [
        Setting(float(row[share].rstrip("%")) / 100, row[gain])
        for row in found
        if "budget" in row[0]
    ]


def margins(found: Rows, data: str) -> list[Setting]:
    """The certified margin for one data set, on single rows, against all trees."""
    begins = next(place for place, row in enumerate(found) if f"**{data}**" in row[0])
    ends = next(
        (place for place in range(begins + 1, len(found)) if "**" in found[place][0]), len(found)
    )
    return [
        Setting(1 / float(row[3].strip("*")), row[1])
        for row in found[begins:ends]
        if row[0].startswith("`early_stop`, margin")
    ]


def cascades() -> list[Setting]:
    """What `auto` spends on cascades of language models, against the last model alone."""
    place = "docs/figures/cascades.json"
    spent = {row[0]: row[1:] for row in rows(place, "spent")}
    gains = {row[0]: row[1:] for row in rows(place, "gains-of-auto-on-average")}
    return [
        Setting(float(share.rstrip("%")) / 100, gain)
        for share, gain in zip(spent["auto"], gains["last model"], strict=True)
    ]


def workloads() -> Iterator[Workload]:
    """All workloads whose settings were measured with intervals."""
    yield Workload(
        "sentence encoder on SST-2, ONNX Runtime, batches of 32",
        budgets(rows("docs/figures/text.json", "batches-of-32"), 2, 7),
        "time",
        "all layers",
        "the gain on single sentences is smaller",
    )
    yield Workload(
        "chain of a small and a large image network on CIFAR-100, ONNX Runtime, batches of 32",
        budgets(rows("docs/figures/chain.json", "onnx"), 2, 6),
        "time",
        "the large network alone",
        "no gain on single images",
    )
    yield Workload(
        "cascades of language models, mean of four, recorded answers",
        cascades(),
        "price",
        "the largest model alone",
        "the range holds 95% of the resplits",
    )
    trees = rows("docs/figures/trees.json", "what-it-brings")
    for data in ("letter", "magic"):
        yield Workload(
            f"boosted trees on `{data}`, LightGBM stopping at a certified margin, single rows",
            margins(trees, data),
            "time",
            "all trees",
            "certifying takes thousands of labelled rows",
        )
    yield Workload(
        "language identification by three libraries, single strings",
        budgets(rows("docs/figures/language.json", "three-libraries"), 6, 5),
        "time",
        "the library lingua alone",
        "tuned on Django's texts, measured on Wagtail's",
    )


def networks() -> Iterator[list[str]]:
    """What `auto` gains, by network and on average."""
    table = "gain-of-the-paper-s-method-and-of-auto-with-95-intervals"
    found = rows("paper/figures/networks-index.json", table)
    kept = [[row[0], *row[2::2]] for row in found if row[0].rpartition(" ")[2] in NAMES]
    yield from kept
    clear = sum(cell.startswith("**") for row in kept for cell in row[1:])
    yield [f"mean of {len(kept)}; clear in {clear} of {3 * len(kept)}", *means(kept)]
    others = [row for row in kept if KNOWN not in row[0]]
    yield [f"mean without {KNOWN}", *means(others)]


def means(found: Rows) -> list[str]:
    """The mean gain of each column."""
    gains = [[float(cell.strip("*").split()[0]) for cell in row[1:]] for row in found]
    return [f"{gain:+.1f}" for gain in np.mean(gains, axis=0)]


def show(title: str, head: str, found: Iterable[list[str]]) -> None:
    """Print one table."""
    print(f"\n**{title}**\n\n| {head} |\n|{'---|' * (head.count('|') + 1)}")
    for row in found:
        print(f"| {' | '.join(row)} |")


def main() -> None:
    """Print both tables."""
    head = "workload | saved | change of accuracy, points | compared with; note"
    show("What to expect", head, filter(None, (each.row() for each in workloads())))
    show("Gains of auto", "network | 25% | 50% | 75%", networks())


if __name__ == "__main__":
    main()
