"""Pictures of samples, where the images behind a ledger are at hand."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offramp.data import EMBEDDED, ImageData
from offramp.data.catalog import located
from offramp.errors import OfframpError
from offramp.evaluation import Comparison
from offramp.ledger import Ledger, Partition
from offramp.methods import Method
from offramp.report import SampleStrip, Table
from offramp.report.tables import Cell
from offramp.storage import write_text
from offramp.studies.context import Workshop
from offramp.studies.settings import DataSettings
from offramp.studies.steps import CompareStep
from offramp.studies.study import Subject
from offramp.targets import hopeless


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


@dataclass(frozen=True)
class Case:
    """One network on one test set.

    Args:
        name: For folders and messages.
        title: For the report.
        paper: Heading in the paper's table to set it beside.
        note: For the report.
        subject: The network.
        target: The domain that is tested on, where there are domains.
        comparison: The step that compares the methods.
    """

    name: str
    title: str
    paper: str | None
    note: str
    subject: Subject
    target: str | None
    comparison: CompareStep

    def ledgers(self, workshop: Workshop) -> dict[str, Ledger]:
        """The three ledgers by split."""
        loaded = (each.load(workshop) for each in self.comparison.ledgers)
        return dict(zip(Partition._fields, loaded, strict=True))


@dataclass(frozen=True)
class CaseResult:
    """What an analysis gets of a case.

    Args:
        case: Which.
        ledgers: By split.
        comparison: Of its methods.
        methods: Those, unfitted.
        workshop: For data, where they are at hand.
    """

    case: Case
    ledgers: dict[str, Ledger]
    comparison: Comparison
    methods: list[Method]
    workshop: Workshop


COUNT = 12


def hopeless_strip(case: Case, test: Ledger, workshop: Workshop) -> SampleStrip | None:
    """Some samples that no exit gets right, spread over the test set; None without images."""
    predictions = torch.cat([logits.argmax(dim=2) for _, logits in test.chunks()])
    lost = hopeless(predictions == test.labels[:, None]).nonzero().squeeze(1)
    if not len(lost):
        return None
    places = torch.linspace(0, len(lost) - 1, min(COUNT, len(lost))).round().long()
    note = f"{len(places)} of the {len(lost):,}, spread evenly over the test set."
    return _strip(case, test, lost[places].tolist(), note, workshop)


def strip_of(result: CaseResult, rows: Sequence[int], note: str) -> SampleStrip | None:
    """Pictures of some test samples of a case; None where the images are not at hand."""
    return _strip(result.case, result.ledgers["test"], rows, note, result.workshop)


def _strip(
    case: Case, test: Ledger, rows: Sequence[int], note: str, workshop: Workshop
) -> SampleStrip | None:
    images = _images(case, workshop)
    if images is None or test.sample_ids is None:
        return None
    place = {sample: number for number, sample in enumerate(images.sample_ids)}
    wanted = [place.get(str(test.sample_ids[row])) for row in rows]
    known = [number for number in wanted if number is not None]
    if len(known) < len(rows):
        return None  # a ledger of other data that happen to have the same name
    pixels = images.pixels[torch.tensor(known)].permute(0, 2, 3, 1).contiguous()
    names = test.class_names or images.class_names
    last = [logits for _, logits in test.take(list(rows)).chunks()]
    said = torch.cat(last)[:, -1].argmax(dim=1)
    captions = [
        f"{_name(names, int(test.labels[row]))}, said {_name(names, int(answer))}"
        for row, answer in zip(rows, said, strict=True)
    ]
    return SampleStrip(np.asarray(pixels.numpy(), dtype=np.uint8), captions, note)


def _images(case: Case, workshop: Workshop) -> ImageData | None:
    """The test images, if they can be had without asking anyone."""
    data = case.subject.data
    if data is None and case.subject.ledgers is not None:
        zoo = case.subject.ledgers.zoo
        data = None if zoo is None else DataSettings(zoo)
    if data is None or (data.name not in EMBEDDED and located(data.name) is None):
        return None
    try:
        test = workshop.splits(data, case.target)["test"]
    except OfframpError:  # a picture is no reason to fail
        return None
    inner = getattr(test, "samples", test)
    return inner if isinstance(inner, ImageData) else None


def _name(names: Sequence[str] | None, label: int) -> str:
    return str(label) if names is None else names[label]
