"""Draw the picture of the front page, accuracy over milliseconds, from the tables of two stories.

    python tools/front_picture.py

It reads what docs/stories/ publish, so the picture says what the pages say.
"""

import re
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from offramp.report.figures import PALETTE, save_figure

DOCS = Path(__file__).parents[1] / "docs"
STORIES = {
    "engineer": "EfficientNet-Lite0 on CIFAR-100\nbatches of 32",
    "text": "Sentence encoder on SST-2\none sentence at a time",
}
# What a row's name begins with, how it is drawn, and what it is called.
KINDS = {
    "exits": ("o-", PALETTE[1][0], "with exits"),
    "cut": ("s--", PALETTE[2][0], "cut short after an exit"),
    "all|without": ("D", PALETTE[7][0], "whole network"),
}


def rows(story: str) -> list[tuple[str, float, float]]:
    """Name, milliseconds and accuracy of every row of a story's first table of results."""
    lines = (DOCS / "stories" / f"{story}.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| | ms |"))
    columns = [name.strip() for name in lines[start].split("|")]
    place = columns.index("accuracy (%)")
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.split("|")]
        found.append((cells[1], float(cells[2]), float(cells[place])))
    return found


def draw(axes: Any, story: str) -> None:  # noqa: ANN401 - matplotlib has no types
    """One story: policies, cuts and the whole network."""
    for kind, (line, colour, label) in KINDS.items():
        found = (row for row in rows(story) if re.match(kind, row[0]))
        chosen = sorted((milliseconds, accuracy) for _, milliseconds, accuracy in found)
        axes.plot(*zip(*chosen, strict=True), line, color=colour, label=label, linewidth=1.5)
    axes.set_title(STORIES[story], fontsize=10)
    axes.set(xlabel="milliseconds per sample", ylabel="accuracy (%)", xlim=(0, None))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", fontsize=9)


def main(path: Path) -> None:
    """Draw both stories beside each other."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, story in zip(figure.subplots(1, 2), STORIES, strict=True):
        draw(axes, story)
    print("written:", save_figure(figure, path))


if __name__ == "__main__":
    main(DOCS / "images" / "front.svg")
