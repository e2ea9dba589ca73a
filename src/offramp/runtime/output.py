"""What comes out of a run, one row per sample and in the order of the input."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


SHOWN = 10  # predictions in the text of an output


class Taken(NamedTuple):
    """Where each of N samples left, `[N]` each; `RunOutput` says what they mean."""

    exits: Tensor
    scores: Tensor
    costs: Tensor
    stopped: Tensor


@dataclass(frozen=True, eq=False)
class RunOutput:
    """The answers to a batch of N samples.

    All but the logits is worked out when it is first read: for a single sample in a small
    network that takes as long as a stage.

    Attributes:
        logits: `[N, K]` float32, what was answered with; NaN for a sample that failed.
        taken_source: What `taken` returns, or the function that computes it.
        confidence_source: What `confidence` returns, or the function that computes it.

    Example:
        >>> from offramp.runtime.output import RunOutput, Taken
        >>> import torch
        >>> taken = Taken(exits=torch.tensor([0]), scores=torch.tensor([2.0]),
        ...               costs=torch.tensor([0.25]), stopped=torch.tensor([True]))
        >>> one = RunOutput(torch.tensor([[0.0, 2.0]]), taken, torch.tensor([0.25]))
        >>> len(one), one.failed.tolist(), one.likely_wrong.tolist()
        (1, [False], [True])
        >>> one.records(class_names=["cat", "dog"])[0]
        {'class': 1, 'name': 'dog', 'confidence': 0.25, 'likely_wrong': True, 'exit': 0,
         'cost': 0.25}
    """

    logits: Tensor
    taken_source: Taken | Callable[[], Taken] = field(repr=False)
    confidence_source: Tensor | ConfidenceFunction = field(repr=False)

    def __repr__(self) -> str:
        exits, counts = self.taken.exits.unique(return_counts=True)
        left = ", ".join(
            f"{c} at {e}" for e, c in zip(exits.tolist(), counts.tolist(), strict=True)
        )
        shown = self.predictions[:SHOWN].tolist()
        more = ", ..." if len(self) > SHOWN else ""
        return (
            f"RunOutput({len(self)} samples, {int(self.failed.sum())} failed\n"
            f"  predictions: {', '.join(map(str, shown))}{more}\n"
            f"  exits: {left}\n"
            f"  mean cost: {float(self.taken.costs.mean()):.1%} of the network without exits)"
        )

    @cached_property
    def predictions(self) -> Tensor:
        """`[N]` int64, the answered class; -1 for a sample that failed."""
        best = self.logits.argmax(dim=1)
        # A single sum shows whether anything is wrong, which is rare.
        if math.isfinite(self.logits.sum().item()):
            return best
        return best.masked_fill(~self.logits.isfinite().all(dim=1), -1)

    @cached_property
    def taken(self) -> Taken:
        """`exits`, `scores`, `costs` and `stopped`."""
        source = self.taken_source
        return source if isinstance(source, Taken) else source()

    @property
    def exits(self) -> Tensor:
        """`[N]` int64, the exit at which each sample left; -1 if it never reached one."""
        return self.taken.exits

    @property
    def scores(self) -> Tensor:
        """`[N]` float32, the stop score there.

        `+inf` at the last exit, where none is needed, and NaN where a deadline cut the sample off
        at a closed exit.
        """
        return self.taken.scores

    @property
    def costs(self) -> Tensor:
        """`[N]` float64, as shares of the network without exits.

        Their mean compares with a budget. As on val, every head up to the exit is charged.
        """
        return self.taken.costs

    @property
    def stopped(self) -> Tensor:
        """A bool `[N]`: the policy itself stopped the sample, before the last exit."""
        return self.taken.stopped

    @cached_property
    def confidence(self) -> Tensor:
        """`[N]` float32, the calibrated probability that the answer is right.

        It is fitted on held_out and is not the stop score. NaN where the policy has none (see
        `Policy.confidence`) or the sample failed.
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
        return len(self.logits)

    def __getitem__(self, rows: slice | Tensor) -> "RunOutput":
        source = self.confidence_source
        stated = source[rows] if isinstance(source, Tensor) else source
        return RunOutput(self.logits[rows], Taken(*(each[rows] for each in self.taken)), stated)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Pickled with its confidence: another process needs no policy to read it."""
        return RunOutput, (self.logits, self.taken, self.confidence)

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

    def take(self, index: Tensor) -> "ExitOutput":
        """Keep some of the samples."""
        return ExitOutput(*(None if part is None else part[index] for part in self))  # type: ignore[arg-type]


class OutputBuffer:
    """Collects the answers to a batch of `samples` as they leave, each of them once.

    `forced` counts those that a deadline cut short, and `failed`, once it is finished, those
    without an answer.
    """

    def __init__(self, samples: int, num_classes: int) -> None:
        self.samples = samples
        self.forced = self.failed = 0
        self._num_classes = num_classes
        self._parts: list[_Part] = []

    def write(
        self, rows: Tensor, exit_index: int, output: ExitOutput, forced: bool = False
    ) -> None:
        """Add the answers of the samples in `rows [n]`, which leave at one exit."""
        self._parts.append(_Part(rows, exit_index, output, forced))
        self.forced += forced * len(rows)

    def finish(
        self, point: OperatingPoint, confidence: ConfidenceFunction | None = None
    ) -> RunOutput:
        """Put the answers in order; `confidence` computes confidences when they are read."""
        parts = self._all_parts()
        # A batch that leaves together is in order already.
        order = torch.cat([part.rows for part in parts]).argsort() if len(parts) > 1 else None
        logits = _ordered([part.output.answer for part in parts], order)
        stated = confidence or _unknown
        is_fine = math.isfinite(logits.sum().item())
        if is_fine and order is None:
            return RunOutput(logits, lambda: _taken(parts, None, point), stated)
        taken = _taken(parts, order, point)
        if is_fine:
            return RunOutput(logits, taken, stated)
        failed = ~logits.isfinite().all(dim=1)
        self.failed = int(failed.count_nonzero())
        logits = logits.masked_fill(failed[:, None], torch.nan)
        costs = taken.costs.masked_fill(taken.exits < 0, 0.0)
        taken = taken._replace(costs=costs, stopped=taken.stopped & ~failed)
        return RunOutput(logits, taken, stated)

    def exits_of_answered(self, output: RunOutput) -> list[int]:
        """The exits of the samples that were answered, in any order."""
        # Plain numbers: for a single sample, every operation on arrays takes longer than all this.
        if not self.failed:
            return [part.exit_index for part in self._parts for _ in range(part.rows.shape[0])]
        return output.exits[~output.failed].tolist()

    def _all_parts(self) -> list["_Part"]:
        """What was written and, where samples never reached an exit, a part without answers."""
        if self._parts and sum(len(part.rows) for part in self._parts) == self.samples:
            return self._parts
        missing = torch.ones(self.samples, dtype=torch.bool)
        for part in self._parts:
            missing[part.rows] = False
        rows = missing.nonzero().squeeze(1)
        nothing = torch.full((len(rows), self._num_classes), torch.nan)
        return [*self._parts, _Part(rows, -1, ExitOutput(nothing), forced=False)]


class _Part(NamedTuple):
    """The answers of n samples that left at one exit; -1 if they never reached one."""

    rows: Tensor  # `[n]`
    exit_index: int
    output: ExitOutput
    forced: bool

    def filled(self, value: float) -> Tensor:
        """The same value for each of them, `[n]`."""
        return torch.full((len(self.rows),), value)

    def scores(self, last: int) -> Tensor:
        if self.exit_index == last:
            return self.filled(math.inf)
        return self.filled(math.nan) if self.output.scores is None else self.output.scores

    def costs(self, point: OperatingPoint) -> Tensor:
        return torch.full((len(self.rows),), point.cost_at[self.exit_index], dtype=torch.float64)

    def stopped(self, last: int) -> bool:
        return self.exit_index < last and not self.forced


def _ordered(parts: list[Tensor], order: Tensor | None) -> Tensor:
    """The parts in the order of the input, as a tensor that may be changed."""
    if order is not None:
        return torch.cat(parts)[order]
    return parts[0].clone() if parts[0].is_inference() else parts[0]


def _unknown(answers: Tensor, exits: Tensor, scores: Tensor) -> Tensor:
    """The confidence of a policy that states none."""
    return torch.full_like(scores, torch.nan)


def _taken(parts: Sequence[_Part], order: Tensor | None, point: OperatingPoint) -> Taken:
    last = len(point.costs) - 1
    return Taken(
        exits=_ordered([part.filled(part.exit_index) for part in parts], order),
        scores=_ordered([part.scores(last) for part in parts], order),
        costs=_ordered([part.costs(point) for part in parts], order),
        stopped=_ordered([part.filled(part.stopped(last)) for part in parts], order),
    )
