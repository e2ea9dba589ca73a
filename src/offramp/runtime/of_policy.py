"""What a runner needs of a policy: its operating points, and what it decides at one exit."""

from collections.abc import Sequence

import torch
from torch import Tensor

from offramp.answers import CurrentExit
from offramp.policy import Policy
from offramp.runtime.operating_point import OperatingPoint, open_exits
from offramp.scorers import History
from offramp.thresholds.rule import exits_taken, rounded_up

TOLERANCE = 1e-4  # of a score; changing the batch size in float32 changes far less


def point_of(policy: Policy, reads_logits: Sequence[bool]) -> OperatingPoint:
    """A policy's operating point, given which heads `[M]` read the logits before them."""
    limits = rounded_up(policy.thresholds, torch.float32).tolist()
    keeps = policy.answer.reads_history or policy.scorer.reads_history or any(reads_logits)
    assert policy.selected is not None, "thresholds are those of a point"
    return OperatingPoint(
        index=policy.selected,
        limits=tuple(limits),
        needs_head=needed_heads(policy, open_exits(limits), reads_logits),
        keeps_logits=keeps,
        keeps_answers=keeps and type(policy.answer) is not CurrentExit,
        costs=tuple(policy.cost_shares.tolist()),
        expected_cost=float(policy.points.budgets[policy.selected]),
        expected_shares=tuple(policy.points.shares[policy.selected].tolist()),
        val_samples=val_samples(policy),
    )


def val_samples(policy: Policy) -> int:
    """Number of val samples that the operating points were tuned on; 1 if unknown."""
    samples = [use.samples for use in policy.uses if use.step == "tune"]
    return samples[-1] if samples else 1


def needed_heads(
    policy: Policy, is_open: Sequence[bool], reads_logits: Sequence[bool]
) -> tuple[bool, ...]:
    """Whether each head `[M]` has to run: its exit is open, or something later reads it."""
    last = len(is_open) - 1
    # The last exit from which something looks back: the very last one for an answer, and the
    # last open one before it for a scorer.
    looks_back = [i for i in range(last) if is_open[i] and policy.scorer.reads_history]
    looks_back += [i for i, reads in enumerate(reads_logits) if reads]
    looks_back += [last] if policy.answer.reads_history else []
    until = max(looks_back, default=0)
    return tuple(is_open[i] or i < until for i in range(last + 1))


def answer_and_score(
    policy: Policy, logits: Tensor, earlier: Tensor | None, score: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Apply a policy's answer and scorer at one exit: tensors in, tensors out.

    Takes the logits `[n, m+1, K]` of the exits so far and the answers `[n, m, K]` before this one,
    which may be anything and None if nothing reads them. Returns the logits to answer with
    `[n, K]`, and the stop scores `[n]` or, at the last exit or if not wanted, None.
    """
    answer = policy.answer.answer_at(logits)
    if not score:
        return answer, None
    answers = logits
    if type(policy.answer) is not CurrentExit:
        now = answer.unsqueeze(1)
        answers = now.expand_as(logits) if earlier is None else torch.cat([earlier, now], dim=1)
    return answer, policy.scorer.score_at(History(logits, answers)).float()


def near_threshold(scores: Tensor, thresholds: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    """Samples that rounding errors in their scores could send to another exit.

    Batch sizes, precisions and export formats change the last bits of a score. Decisions agree
    for all other samples.

    Args:
        scores: `[N, M]`.
        thresholds: `[M]`.
        tolerance: Largest rounding error.

    Returns:
        bool `[N]`: the score at the exit taken, or at an earlier one, is within the tolerance of
        its threshold.

    Example:
        >>> scores = torch.tensor([[0.5, 1.0], [0.7, 1.0]])
        >>> near_threshold(scores, torch.tensor([0.70005, 0.0]))
        tensor([False,  True])
    """
    close = (scores.double() - thresholds.double()).abs() <= tolerance
    # Also at the exit taken: just above the threshold, the sample might have continued.
    reached = torch.arange(scores.shape[1]) <= exits_taken(scores, thresholds).long()[:, None]
    close[:, -1] = False  # the last exit always stops
    result: Tensor = (close & reached).any(dim=1)
    return result
