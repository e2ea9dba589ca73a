"""What comes out of a run, one row per sample and in the order of the input."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from offramp.runtime.operating_point import OperatingPoint

# Answers `[n, K]`, exits `[n]` and scores `[n]` -> `[n]`, the probability that each is right.
ConfidenceFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]

DOUBT = 0.5  # below it an answer is more probably wrong than right
DIGITS = 6  # of confidence and cost in a record

OUTPUT_COLUMNS = {
    "prediction": "predictions",
    "confidence": "confidence",
    "likely_wrong": "likely_wrong",
    "exit": "exits",
    "cost": "costs",
    "failed": "failed",
}
"""Names of the columns of a `RunOutput`, and the attributes that they hold."""
RECORD_FIELDS = ("class", "name", "confidence", "likely_wrong", "exit", "cost")
"""Fields of `RunOutput.records`, in order."""


@dataclass(frozen=True, eq=False)
class RunOutput:
    """The answers to a batch of N samples.

    Attributes:
        logits: `[N, K]` float32, what was answered with; NaN for a sample that failed.
        predictions: `[N]` int64, the answered class; -1 for a sample that failed.
        exits: `[N]` int64, the exit at which each sample left; -1 if it never reached one.
        scores: `[N]` float32, the stop score there; `+inf` at the last exit, where none is
            needed, and NaN where a deadline cut the sample off at a closed exit.
        costs: `[N]` float64, as shares of the network without exits, so that their mean
            compares with a budget. As on val, every head up to the exit is charged.
        stopped: bool `[N]`: the policy itself stopped the sample, before the last exit.
        confidence_source: What `confidence` returns, or the function that computes it.

    Example:
        >>> from offramp.runtime.output import RunOutput
        >>> import torch
        >>> one = RunOutput(torch.tensor([[0.0, 2.0]]), torch.tensor([1]), torch.tensor([0]),
        ...                 torch.tensor([2.0]), costs=torch.tensor([0.25]),
        ...                 stopped=torch.tensor([True]), confidence_source=torch.tensor([0.25]))
        >>> len(one), one.failed.tolist(), one.likely_wrong.tolist()
        (1, [False], [True])
        >>> one.records(class_names=["cat", "dog"])[0]
        {'class': 1, 'name': 'dog', 'confidence': 0.25, 'likely_wrong': True, 'exit': 0,
         'cost': 0.25}
    """

    logits: Tensor
    predictions: Tensor
    exits: Tensor
    scores: Tensor
    costs: Tensor
    stopped: Tensor
    confidence_source: Tensor | ConfidenceFunction = field(repr=False)

    @cached_property
    def confidence(self) -> Tensor:
        """`[N]` float32, the calibrated probability that the answer is right.

        It is fitted on held_out and is not the stop score. NaN where the policy has none (see
        `Policy.confidence`) or the sample failed. It is computed when it is first read: for a
        single sample that takes as long as a stage of a small network.
        """
        if isinstance(self.confidence_source, Tensor):
            return self.confidence_source
        stated = self.confidence_source(self.logits, self.exits.clamp_min(0), self.scores)
        return stated.masked_fill(self.failed, torch.nan)

    @property
    def likely_wrong(self) -> Tensor:
        """A bool `[N]`: the policy itself stopped the sample, with a `confidence` below 0.5.

        Such samples were stopped as hopeless; hand them to a person or to a larger model.
        """
        return self.stopped & (self.confidence < DOUBT)

    @property
    def failed(self) -> Tensor:
        """A bool `[N]`: there is no answer, because inputs or logits were not finite."""
        return self.predictions < 0

    def __len__(self) -> int:
        return len(self.predictions)

    def __getitem__(self, rows: slice | Tensor) -> "RunOutput":
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        tensors = {name: each[rows] for name, each in values.items() if isinstance(each, Tensor)}
        return replace(self, **tensors)

    def __reduce__(self) -> tuple[type, tuple[Tensor, ...]]:
        """Pickled with its confidence: another process needs no policy to read it."""
        settled = replace(self, confidence_source=self.confidence)
        return RunOutput, tuple(getattr(settled, item.name) for item in fields(settled))

    def columns(self) -> dict[str, Tensor]:
        """The answers as columns `[N]` for a table; see `OUTPUT_COLUMNS`."""
        return {name: getattr(self, attribute) for name, attribute in OUTPUT_COLUMNS.items()}

    def records(self, class_names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The answers as one record per sample, ready for JSON or CSV; see `RECORD_FIELDS`.

        A sample that failed has no class, name, confidence, likely_wrong or exit: all are None.

        Args:
            class_names: `[K]`; without them every name is None.
        """
        columns = (column.tolist() for column in self.columns().values())
        return [_record(row, class_names) for row in zip(*columns, strict=True)]


def _record(row: tuple[Any, ...], class_names: Sequence[str] | None) -> dict[str, Any]:
    prediction, confidence, likely_wrong, exit_index, cost, failed = row
    name = None if failed or class_names is None else class_names[prediction]
    stated = None if math.isnan(confidence) else round(confidence, DIGITS)
    values = prediction, name, stated, likely_wrong, exit_index
    shown = [None] * len(values) if failed else values
    return dict(zip(RECORD_FIELDS, (*shown, round(cost, DIGITS)), strict=True))


class ExitOutput(NamedTuple):
    """What one exit returns for n samples."""

    answer: Tensor  # `[n, K]` float32, what they are answered with if they stop
    scores: Tensor | None = None  # `[n]` float32, the stop scores; None where none was computed
    # `[n]`, the probability that each answer is right; None where it is computed later
    confidence: Tensor | None = None

    def take(self, index: Tensor) -> "ExitOutput":
        """Keep some of the samples."""
        return ExitOutput(*(None if part is None else part[index] for part in self))  # type: ignore[arg-type]


class OutputBuffer:
    """Where the answers to a batch are written, once per sample; `forced [N]`: by a deadline."""

    def __init__(self, samples: int, num_classes: int, num_exits: int) -> None:
        self.logits = torch.full((samples, num_classes), torch.nan)
        self.exits = torch.full((samples,), -1)
        self.scores = torch.full((samples,), torch.nan)
        self.confidence = torch.full((samples,), torch.nan)
        self.forced = torch.zeros(samples, dtype=torch.bool)
        self._last = num_exits - 1

    def write(self, rows: Tensor, exit_index: int, output: ExitOutput) -> None:
        """Write the answers of the samples in `rows [n]`, which leave at one exit."""
        self.logits[rows] = output.answer
        self.exits[rows] = exit_index
        if exit_index == self._last:
            self.scores[rows] = math.inf
        elif output.scores is not None:
            self.scores[rows] = output.scores
        if output.confidence is not None:
            self.confidence[rows] = output.confidence

    def finish(
        self, point: OperatingPoint, confidence: ConfidenceFunction | None = None
    ) -> RunOutput:
        """Derive predictions and costs; `confidence` computes confidences that are not written."""
        exits = self.exits
        failed = ~self.logits.isfinite().all(dim=1)
        output = RunOutput(
            self.logits,
            self.logits.argmax(dim=1),
            exits,
            self.scores,
            costs=point.costs[exits.clamp_min(0)],
            stopped=(exits < self._last) & ~self.forced,
            confidence_source=confidence or self.confidence,
        )
        return _without(output, failed) if failed.any() else output


def _without(output: RunOutput, failed: Tensor) -> RunOutput:
    """The same output, in which some samples have no answer."""
    source = output.confidence_source
    return replace(
        output,
        logits=output.logits.masked_fill(failed[:, None], torch.nan),
        predictions=output.predictions.masked_fill(failed, -1),
        costs=output.costs.masked_fill(output.exits < 0, 0.0),
        stopped=output.stopped & ~failed,
        confidence_source=(
            source.masked_fill(failed, torch.nan) if isinstance(source, Tensor) else source
        ),
    )
