"""What a policy asks of every exit at one operating point: the part that all runners share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from offramp.answers import CurrentExit
from offramp.policy import Policy
from offramp.scorers import History
from offramp.thresholds.rule import exits_taken, rounded_up

# Answers `[n, K]`, their exits `[n]` and their scores `[n]` -> `[n]`, how probably they are right.
Rating: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]

TOLERANCE = 1e-4  # of a score; what batch sizes change in float32 is far less


@dataclass(frozen=True, eq=False)
class Route:
    """One operating point as every runner needs it; never changed, so that threads can share it.

    Attributes:
        limits: `[M]` float32, thresholds rounded up; `+inf` where an exit is closed.
        needs_head: `[M]`, whether the head has to run: its exit is open, or something later
            reads its logits.
        keeps_logits: Whether anything reads the logits of earlier exits.
        keeps_answers: Whether anything reads the answers at earlier exits, and they are not the
            logits.
        costs: `[M]` float64, cumulative, as shares of the network without exits.
        expected_cost: Mean cost on val.
        expected_shares: `[M]`, of the val samples that left at each exit.
        val_samples: How many those were; 1 where that is not known.
    """

    limits: Tensor
    needs_head: tuple[bool, ...]
    keeps_logits: bool
    keeps_answers: bool
    costs: Tensor
    expected_cost: float
    expected_shares: Tensor
    val_samples: int

    @cached_property
    def is_open(self) -> tuple[bool, ...]:
        """`[M]`, whether a sample can stop there; always at the last exit."""
        return open_exits(self.limits)

    @property
    def rating(self) -> Rating | None:
        """What says how probably answers are right; None where the stages do, or nothing."""
        return None


@dataclass(frozen=True, eq=False)
class Plan(Route):
    """One operating point of a policy, ready to run.

    Attributes:
        policy: At a chosen operating point.
    """

    policy: Policy

    @classmethod
    def of(cls, policy: Policy, reads_logits: Sequence[bool]) -> "Plan":
        """Work out what has to run.

        Args:
            policy: At a chosen operating point.
            reads_logits: `[M]`, whether each head reads the logits before it.

        Example:
            >>> from offramp import MaxProbability, synthetic
            >>> held_out, val, _ = synthetic.ledgers(seed=0).values()
            >>> policy = Policy(MaxProbability()).fit(held_out).tune(val).at(budget=0.4)
            >>> plan = Plan.of(policy, [False] * 8)
            >>> plan.needs_head == plan.is_open, plan.keeps_logits
            (True, False)
        """
        limits = rounded_up(policy.thresholds, torch.float32)
        keeps = policy.answer.reads_history or policy.scorer.reads_history or any(reads_logits)
        return cls(
            limits=limits,
            needs_head=_needed_heads(policy, open_exits(limits), reads_logits),
            keeps_logits=keeps,
            keeps_answers=keeps and type(policy.answer) is not CurrentExit,
            costs=policy.cost_shares,
            expected_cost=float(policy.points.budgets[policy.selected]),
            expected_shares=policy.points.shares[policy.selected],
            val_samples=val_samples(policy),
            policy=policy,
        )

    @property
    def rating(self) -> Rating | None:
        """The policy's own confidence; None where it has none."""
        confidence = self.policy.confidence
        return None if confidence is None else confidence.probability


def open_exits(limits: Tensor) -> tuple[bool, ...]:
    """Whether a sample can stop at each exit, `[M]`: the last one always stops.

    Example:
        >>> open_exits(torch.tensor([0.5, torch.inf, torch.inf]))
        (True, False, True)
    """
    return (*(limits[:-1] < torch.inf).tolist(), True)


def val_samples(policy: Policy) -> int:
    """How many val samples the operating points come from; 1 where that is not known."""
    samples = [use.samples for use in policy.uses if use.step == "tune"]
    return samples[-1] if samples else 1


def _needed_heads(
    policy: Policy, is_open: Sequence[bool], reads_logits: Sequence[bool]
) -> tuple[bool, ...]:
    last = len(is_open) - 1
    # The last exit that somebody looks back from: an answer does so from the very last one, a
    # scorer from the last open exit where it is run.
    looks_back = [m for m in range(last) if is_open[m] and policy.scorer.reads_history]
    looks_back += [m for m, reads in enumerate(reads_logits) if reads]
    looks_back += [last] if policy.answer.reads_history else []
    until = max(looks_back, default=0)
    return tuple(is_open[m] or m < until for m in range(last + 1))


def judge(
    policy: Policy, logits: Tensor, earlier: Tensor | None, score: bool = True
) -> tuple[Tensor, Tensor | None]:
    """What a policy says at one exit: tensors in, tensors out.

    Args:
        policy: Its answer and scorer are used.
        logits: `[n, m+1, K]` float32, of the exits so far. Where nothing reads earlier exits
            these may be anything.
        earlier: `[n, m, K]`, the answers at the exits before; None where nothing reads them.
        score: Whether a score is wanted; never at the last exit.

    Returns:
        The logits to answer with `[n, K]`, and the stop scores `[n]` or None.

    Example:
        >>> from offramp import MaxProbability
        >>> answer, scores = judge(Policy(MaxProbability()), torch.tensor([[[0.0, 2.0]]]), None)
        >>> answer, scores
        (tensor([[0., 2.]]), tensor([2.]))
    """
    answer = policy.answer.answer_at(logits)
    if not score:
        return answer, None
    history = History(logits, _answers(policy, logits, answer, earlier))
    return answer, policy.scorer.score_at(history).float()


def _answers(policy: Policy, logits: Tensor, answer: Tensor, earlier: Tensor | None) -> Tensor:
    """`[n, m+1, K]`, without a copy where that is possible."""
    if type(policy.answer) is CurrentExit:
        return logits
    now = answer.unsqueeze(1)
    if earlier is None:
        return now.expand(-1, logits.shape[1], -1)
    return torch.cat([earlier, now], dim=1)


def near_threshold(scores: Tensor, thresholds: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    """Samples whose exit could be another one if scores were off by rounding.

    Batch sizes, precisions and export formats change the last bits of a score. Decisions agree
    but for these samples.

    Args:
        scores: `[N, M]`.
        thresholds: `[M]`.
        tolerance: How far a score may be off.

    Returns:
        bool `[N]`: at the exit taken or at one before it, the score is that near its threshold.

    Example:
        >>> scores = torch.tensor([[0.5, 1.0], [0.7, 1.0]])
        >>> near_threshold(scores, torch.tensor([0.70005, 0.0]))
        tensor([False,  True])
    """
    close = (scores.double() - thresholds.double()).abs() <= tolerance
    # At its exit a sample may be near from above; then it would have gone on.
    reached = torch.arange(scores.shape[1]) <= exits_taken(scores, thresholds).long()[:, None]
    close[:, -1] = False  # the last exit always stops
    result: Tensor = (close & reached).any(dim=1)
    return result
