"""What an analysis has found, as tables, figures and pictures; and that as files."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offramp.report import SampleStrip, Table
from offramp.report.tables import Cell
from offramp.storage import write_text

__all__ = ["Findings", "cells"]


@dataclass(frozen=True)
class Findings:
    """The result of an analysis.

    Args:
        title: Heading in the report.
        note: Text under it.
        tables: Shown there, and written as Markdown, CSV and LaTeX.
        figures: SVG files.
        samples: Pictures, where there are any.
    """

    title: str
    note: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Path] = field(default_factory=list)
    samples: SampleStrip | None = None

    def save(self, folder: Path) -> list[Path]:
        """Write them; figures are in the folder already."""
        content: dict[str, Any] = {
            "title": self.title,
            "note": self.note,
            "tables": [asdict(table) for table in self.tables],
            "figures": [path.name for path in self.figures],
            "samples": None,
        }
        if self.samples is not None:
            strip = self.samples
            content["samples"] = {
                "images": np.asarray(strip.images).tolist(),
                "captions": list(strip.captions),
                "note": strip.note,
            }
        return [write_text(folder / "findings.json", json.dumps(content) + "\n"), *self.figures]

    @classmethod
    def load(cls, folder: Path) -> "Findings":
        """Read back what `save` wrote."""
        content = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
        strip = content["samples"]
        if strip is not None:
            images = np.array(strip["images"], dtype=np.uint8)
            strip = SampleStrip(images, strip["captions"], strip["note"])
        return cls(
            content["title"],
            content["note"],
            [_table(each) for each in content["tables"]],
            [folder / name for name in content["figures"]],
            strip,
        )


def _table(content: dict[str, object]) -> Table:
    rows = [[Cell(**cell) for cell in row] for row in content.pop("rows")]  # type: ignore[attr-defined]
    return Table(rows=rows, **content)  # type: ignore[arg-type]


def cells(*texts: object) -> list[Cell]:
    """A row of plain cells.

    Example:
        >>> cells("a", 1)
        [Cell(text='a', bold=False), Cell(text='1', bold=False)]
    """
    return [text if isinstance(text, Cell) else Cell(str(text)) for text in texts]
