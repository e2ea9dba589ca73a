"""Experiments (one network on one test set), their results, and pictures of their samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offramp.data import ImageData
from offramp.data.catalog import located
from offramp.errors import OfframpError
from offramp.evaluation import Comparison
from offramp.ledger import Ledger, Partition
from offramp.methods import Method, find_methods
from offramp.plan import Plan
from offramp.registry import EMBEDDED
from offramp.report import SampleStrip
from offramp.studies.context import Context
from offramp.studies.settings import DataSettings
from offramp.studies.steps import CompareStep
from offramp.studies.study import NetworkEntry
from offramp.targets import hopeless

PICTURES = 12  # of hopeless samples


@dataclass(frozen=True)
class Experiment:
    """One network on one test set."""

    name: str  # for folders and messages
    title: str  # for the report
    paper: str | None  # heading in the paper's table whose figures are shown beside these
    note: str  # for the report
    entry: NetworkEntry
    target: str | None  # the test domain, for data with domains
    comparison: CompareStep  # the step that compares the methods

    def ledgers(self, context: Context) -> dict[str, Ledger]:
        """The three ledgers by split."""
        loaded = (each.load(context) for each in self.comparison.ledgers)
        return dict(zip(Partition._fields, loaded, strict=True))


@dataclass(frozen=True)
class ExperimentResult:
    """What an analysis knows about an experiment."""

    experiment: Experiment
    ledgers: dict[str, Ledger]  # by split
    comparison: Comparison  # of its methods
    methods: list[Method]  # unfitted
    context: Context  # opens the data, where they are at hand

    def plans(self, name: str) -> list[Plan]:
        """The plans of a method, one per seed; made here where it was not compared."""
        if name in self.comparison.plans:
            return self.comparison.plans[name]
        data = self.ledgers["held_out"], self.ledgers["val"]
        (method,) = find_methods([name], data[0].num_classes)
        return method.plans(*data, self.comparison.budgets, seeds=1)


def hopeless_rows(test: Ledger) -> Tensor:
    """Indices of the test samples that no exit gets right."""
    return hopeless(test.heads_correct).nonzero().squeeze(1)


def hopeless_strip(experiment: Experiment, test: Ledger, context: Context) -> SampleStrip | None:
    """Some hopeless samples, taken evenly over the test set; None where there are no images."""
    rows = hopeless_rows(test)
    if not len(rows):
        return None
    places = torch.linspace(0, len(rows) - 1, min(PICTURES, len(rows))).round().long()
    note = f"{len(places)} of the {len(rows):,}, taken evenly over the test set."
    return sample_strip(experiment, test, rows[places].tolist(), note, context)


def sample_strip(
    experiment: Experiment, test: Ledger, rows: Sequence[int], note: str, context: Context
) -> SampleStrip | None:
    """Pictures of some test samples; None where the images are not at hand."""
    images = _images(experiment, context)
    if images is None or test.sample_ids is None:
        return None
    place = {sample: number for number, sample in enumerate(images.sample_ids)}
    wanted = [place.get(str(test.sample_ids[row])) for row in rows]
    known = [number for number in wanted if number is not None]
    if len(known) < len(rows):
        return None  # a ledger of other data that happen to have the same name
    pixels = images.pixels[torch.tensor(known)].permute(0, 2, 3, 1).contiguous()
    names = test.class_names or images.class_names
    logits = torch.cat([logits for _, logits in test.take(list(rows)).chunks()])
    captions = [
        f"{class_name(names, test.labels[row])}, predicted {class_name(names, prediction)}"
        for row, prediction in zip(rows, logits[:, -1].argmax(dim=1), strict=True)
    ]
    return SampleStrip(np.asarray(pixels.numpy(), dtype=np.uint8), captions, note)


def _images(experiment: Experiment, context: Context) -> ImageData | None:
    """The test images, if they are on this machine."""
    data, ledgers = experiment.entry.data, experiment.entry.ledgers
    if ledgers is not None and ledgers.zoo is not None:
        data = DataSettings(ledgers.zoo)
    if data is None or (data.name not in EMBEDDED and located(data.name) is None):
        return None
    try:
        test = context.splits(data, experiment.target)["test"]
    except OfframpError:  # a study must not fail for want of pictures
        return None
    inner = getattr(test, "samples", test)
    return inner if isinstance(inner, ImageData) else None


def class_name(names: Sequence[str] | None, label: Tensor) -> str:
    """The name of a class, or its number."""
    return str(int(label)) if names is None else names[int(label)]
