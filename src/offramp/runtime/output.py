"""What comes out of a run, one row per sample and in the order of the input."""

import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from offramp.runtime.routes import Rating, Route

DOUBT = 0.5  # an answer that is more probably wrong than right


@dataclass(frozen=True, eq=False)
class RunOutput:
    """The answers to a batch of N samples.

    Attributes:
        logits: `[N, K]` float32, what was answered with; NaN for a sample that failed.
        predictions: `[N]` int64, the answered class; -1 for a sample that failed.
        exits: `[N]` int64, the exit at which each sample left; -1 if it never got to one.
        scores: `[N]` float32, the stop score there; `+inf` at the last exit, where none is
            needed, and NaN where time was up at an exit that is closed.
        costs: `[N]` float64, as a share of the network without exits, so that their mean
            compares with a budget. As on val, every head up to the exit is charged.
        stopped: bool `[N]`: the policy itself stopped the sample, before the last exit.
        rating: `confidence`, or what works it out when somebody asks.

    Example:
        >>> from offramp.runtime.output import RunOutput
        >>> import torch
        >>> one = RunOutput(torch.tensor([[0.0, 2.0]]), torch.tensor([1]), torch.tensor([0]),
        ...                 torch.tensor([2.0]), costs=torch.tensor([0.25]),
        ...                 stopped=torch.tensor([True]), rating=torch.tensor([0.4]))
        >>> len(one), one.failed.tolist(), one.likely_wrong.tolist()
        (1, [False], [True])
    """

    logits: Tensor
    predictions: Tensor
    exits: Tensor
    scores: Tensor
    costs: Tensor
    stopped: Tensor
    rating: Tensor | Rating = field(repr=False)

    @cached_property
    def confidence(self) -> Tensor:
        """`[N]` float32, the calibrated probability that the answer is right.

        It is fitted on held_out and is not the stop score. NaN where the policy has none (see
        `Policy.confidence`) or the sample failed. It is worked out when it is first read: for a
        single sample that takes as long as a stage of a small network.
        """
        if isinstance(self.rating, Tensor):
            return self.rating
        stated = self.rating(self.logits, self.exits.clamp_min(0), self.scores)
        return stated.masked_fill(self.failed, torch.nan)

    @property
    def likely_wrong(self) -> Tensor:
        """A bool `[N]`: the policy itself stopped the sample, with a `confidence` below 0.5.

        Such samples were stopped as hopeless; hand them to a person or to a larger model.
        """
        return self.stopped & (self.confidence < DOUBT)

    def __len__(self) -> int:
        return len(self.predictions)

    @property
    def failed(self) -> Tensor:
        """A bool `[N]`: inputs or logits were not finite, so that there is no answer."""
        return self.predictions < 0

    def __getitem__(self, rows: slice | Tensor) -> "RunOutput":
        parts = {item.name: getattr(self, item.name) for item in fields(self)}
        tensors = {name: part[rows] for name, part in parts.items() if isinstance(part, Tensor)}
        return replace(self, **tensors)

    def __reduce__(self) -> tuple[type, tuple[Tensor, ...]]:
        """Pickled with its confidence: another process needs no policy to read it."""
        settled = replace(self, rating=self.confidence)
        return RunOutput, tuple(getattr(settled, item.name) for item in fields(settled))


class Verdict(NamedTuple):
    """What is said about n samples at one exit.

    Attributes:
        answer: `[n, K]` float32, what they are answered with if they stop.
        scores: `[n]` float32, the stop scores; None where none was worked out.
        confidence: `[n]`, that the answers are right; None where it is worked out later.
    """

    answer: Tensor
    scores: Tensor | None = None
    confidence: Tensor | None = None

    def take(self, rows: Tensor) -> "Verdict":
        """About some of the samples."""
        return Verdict(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]


class Sink(Protocol):
    """Takes answers."""

    def write(self, rows: Tensor, exit_index: int, verdict: Verdict, unscored: float) -> None:
        """Take the answers of some samples, which leave at one exit.

        Args:
            rows: `[n]`, where their answers go.
            exit_index: Where they leave.
            verdict: What is said about them.
            unscored: Their score, where the verdict has none.
        """


class Answered:
    """Where answers are written, once per sample.

    Args:
        samples: N.
        num_classes: K.

    Attributes:
        forced: bool `[N]`: answered because time was up.
    """

    def __init__(self, samples: int, num_classes: int) -> None:
        self.logits = torch.full((samples, num_classes), torch.nan)
        self.exits = torch.full((samples,), -1)
        self.scores = torch.full((samples,), torch.nan)
        self.confidence = torch.full((samples,), torch.nan)
        self.forced = torch.zeros(samples, dtype=torch.bool)

    def write(
        self, rows: Tensor, exit_index: int, verdict: Verdict, unscored: float = math.nan
    ) -> None:
        """Write the answers of some samples, which leave at one exit."""
        self.logits[rows] = verdict.answer
        self.exits[rows] = exit_index
        self.scores[rows] = unscored if verdict.scores is None else verdict.scores
        if verdict.confidence is not None:
            self.confidence[rows] = verdict.confidence

    def output(self, route: Route) -> RunOutput:
        """Everything that follows from the answers."""
        exits = self.exits
        failed = ~self.logits.isfinite().all(dim=1)
        output = RunOutput(
            self.logits,
            self.logits.argmax(dim=1),
            exits,
            self.scores,
            costs=route.costs[exits.clamp_min(0)],
            stopped=(exits < len(route.costs) - 1) & ~self.forced,
            rating=route.rating or self.confidence,
        )
        return _without(output, failed) if failed.any() else output


def _without(output: RunOutput, failed: Tensor) -> RunOutput:
    """The same, but for samples that have no answer."""
    rating = output.rating
    return replace(
        output,
        logits=output.logits.masked_fill(failed[:, None], torch.nan),
        predictions=output.predictions.masked_fill(failed, -1),
        costs=output.costs.masked_fill(output.exits < 0, 0.0),
        stopped=output.stopped & ~failed,
        rating=rating.masked_fill(failed, torch.nan) if isinstance(rating, Tensor) else rating,
    )
