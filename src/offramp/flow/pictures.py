"""Pictures of samples, where the images behind a ledger are at hand."""

from collections.abc import Sequence

import numpy as np
import torch

from offramp.data import EMBEDDED, ImageData
from offramp.data.catalog import located
from offramp.errors import OfframpError
from offramp.flow.case import Case, CaseResult
from offramp.flow.settings import DataSettings
from offramp.flow.workshop import Workshop
from offramp.ledger import Ledger
from offramp.report import SampleStrip
from offramp.targets import hopeless

__all__ = ["hopeless_strip", "strip_of"]

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
