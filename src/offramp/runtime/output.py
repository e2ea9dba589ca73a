"""What comes out of a run, one row per sample and in the order of the input."""

import math
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from offramp.runtime.plan import Route

__all__ = ["DOUBT", "Answered", "RunOutput", "Sink", "Verdict"]

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
        confidence: `[N]` float32, the calibrated probability that the answer is right. It is
            fitted on held_out and is not the stop score. NaN where the policy has none (see
            `Policy.confidence`) or the sample failed.
        likely_wrong: bool `[N]`: the policy itself stopped the sample before the last exit, and
            `confidence` is below 0.5. Such samples were stopped as hopeless; hand them to a
            person or to a larger model.
        costs: `[N]` float64, as a share of the network without exits, so that their mean
            compares with a budget. As on val, every head up to the exit is charged.

    Example:
        >>> from offramp.runtime.output import RunOutput
        >>> import torch
        >>> one = RunOutput(torch.tensor([[0.0, 2.0]]), torch.tensor([1]), torch.tensor([0]),
        ...                 torch.tensor([2.0]), torch.tensor([0.8]), torch.tensor([False]),
        ...                 torch.tensor([0.25]))
        >>> len(one), one.failed.tolist()
        (1, [False])
    """

    logits: Tensor
    predictions: Tensor
    exits: Tensor
    scores: Tensor
    confidence: Tensor
    likely_wrong: Tensor
    costs: Tensor

    def __len__(self) -> int:
        return len(self.predictions)

    @property
    def failed(self) -> Tensor:
        """A bool `[N]`: inputs or logits were not finite, so that there is no answer."""
        return self.predictions < 0

    def __getitem__(self, rows: slice | Tensor) -> "RunOutput":
        return RunOutput(*(getattr(self, item.name)[rows] for item in fields(self)))


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
        exits, at = self.exits, self.exits.clamp_min(0)
        found = route.confidence(self.logits, at, self.scores)
        confidence = self.confidence if found is None else found
        failed = ~self.logits.isfinite().all(dim=1)
        output = RunOutput(
            self.logits,
            self.logits.argmax(dim=1),
            exits,
            self.scores,
            confidence,
            (exits < len(route.costs) - 1) & ~self.forced & (confidence < DOUBT),
            route.costs[at],
        )
        return _without(output, failed) if failed.any() else output


def _without(output: RunOutput, failed: Tensor) -> RunOutput:
    """The same, but for samples that have no answer."""
    return replace(
        output,
        logits=output.logits.masked_fill(failed[:, None], torch.nan),
        predictions=output.predictions.masked_fill(failed, -1),
        confidence=output.confidence.masked_fill(failed, torch.nan),
        likely_wrong=output.likely_wrong & ~failed,
        costs=output.costs.masked_fill(output.exits < 0, 0.0),
    )
