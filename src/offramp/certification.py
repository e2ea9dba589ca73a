"""Certify an operating point of a policy on samples that nothing was chosen on."""

from dataclasses import dataclass
from decimal import Decimal

from torch import Tensor

from offramp.errors import ConfigError, GuaranteeError, NotFittedError, SplitError
from offramp.ledger import Ledger
from offramp.policy import Policy
from offramp.thresholds.guarantee import Guarantee, certified, upper_bounds
from offramp.thresholds.points import bound_text
from offramp.thresholds.rule import exits_taken
from offramp.tracing import Trace

__all__ = ["Certificate", "certify"]


@dataclass(frozen=True)
class Certificate:
    """A policy at a certified operating point.

    Attributes:
        policy: At that point.
        guarantee: What holds for it.
        samples: Size of the certification sample.
        loss: Mean loss against the full network on that sample.
        loss_bound: The smallest epsilon that could have been certified for it; None where only a
            budget was asked for.
        cost: Mean cost on that sample, as a share of the network without exits.
        cost_bound: The smallest budget that could have been certified for it, or None.
    """

    policy: Policy
    guarantee: Guarantee
    samples: int
    loss: float
    loss_bound: float | None
    cost: float
    cost_bound: float | None

    def __str__(self) -> str:
        parts = []
        if self.guarantee.epsilon is not None:
            parts.append(f"mean {self.guarantee.loss} at most {self.guarantee.epsilon:g}")
        if self.guarantee.budget is not None:
            parts.append(f"mean cost at most {self.guarantee.budget:g}")
        delta = self.guarantee.delta
        how = "on average over draws of" if delta is None else f"with confidence {_sure(delta)} on"
        return (
            f"{' and '.join(parts)}, {how} {self.samples:,} samples; there, the "
            f"{self.guarantee.loss} was {self.loss:.4f} and the cost {self.cost:.4f}"
        )


def _sure(delta: float) -> str:
    """1 - delta, with enough digits that it never reads as certain.

    Example:
        >>> _sure(0.1), _sure(1e-9)
        ('0.9', '0.999999999')
    """
    return f"{1 - Decimal(repr(delta)):f}"


def certify(policy: Policy, val: Ledger, guarantee: Guarantee) -> Certificate:
    """The cheapest operating point, or for a budget alone the dearest, that can be guaranteed.

    The policy's operating points are the path; it must be fixed without the certification
    sample, for instance by `policy.tune(held_out, "geometric", allow_split="held_out")`: geometric
    points end at the full network, which loses nothing against itself. For a loss, the points are
    tested from the dearest on, for a budget from the cheapest on, and the last one before the
    first failure is returned. The guarantee speaks of new samples like those of `val`.

    Args:
        policy: Fitted and tuned, neither of them on samples of `val`.
        val: The certification sample.
        guarantee: What is to hold.

    Raises:
        SplitError: The policy was fitted or tuned on samples of `val`.
        GuaranteeError: No point can be certified; the message says what could be.

    Example:
        >>> from offramp import MaxProbability, synthetic
        >>> splits = synthetic.ledgers(seed=0)
        >>> policy = Policy(MaxProbability()).fit(splits["held_out"])
        >>> policy.tune(splits["held_out"], "geometric", allow_split="held_out")
        Policy(MaxProbability(), CurrentExit(), no point chosen)
        >>> found = certify(policy, splits["val"], Guarantee(epsilon=0.05, delta=0.1))
        >>> found.loss < found.loss_bound <= 0.05
        True
    """
    if not isinstance(guarantee, Guarantee):
        raise ConfigError(
            "`guarantee` says what is to hold, such as offramp.Guarantee(epsilon=0.05), got "
            f"{guarantee!r}"
        )
    if not policy.is_tuned:
        raise NotFittedError(
            "this policy has no operating points to choose from; they must be fixed before val is "
            'seen: policy.tune(held_out, "geometric", allow_split="held_out")'
        )
    thresholds = policy.points.thresholds
    trace = policy.trace(val, "val")
    _check_unseen(policy, val)
    exits = exits_taken(trace.scores, thresholds).T.long()  # [N, P], cheapest first
    losses = _losses(trace, exits, guarantee.loss)
    costs = policy.costs(val) / val.reference_cost  # [M]
    loss_bounds = _loss_bounds(losses, guarantee)
    cost_bounds = _cost_bounds(costs, exits, guarantee)
    point = _choose(loss_bounds, cost_bounds, guarantee)
    chosen = policy._copy()
    chosen.guarantee = None  # an older one, of another point
    chosen = chosen.at_point(point)
    chosen.record("certify", val)
    certificate = Certificate(
        chosen,
        guarantee,
        len(val),
        float(losses[:, point].mean()),
        None if loss_bounds is None else float(loss_bounds[point]),
        float(costs[exits[:, point]].mean()),
        None if cost_bounds is None else float(cost_bounds[point]),
    )
    chosen.guarantee = str(certificate)
    return certificate


def _check_unseen(policy: Policy, val: Ledger) -> None:
    try:
        policy.check_unseen(val, "certify")
    except SplitError as error:
        raise SplitError(
            f"{error}: the operating points must be fixed without val, for instance by "
            'policy.tune(held_out, "geometric", allow_split="held_out")'
        ) from None


def _losses(trace: Trace, exits: Tensor, kind: str) -> Tensor:
    """`[N, P]` float64, 0 or 1: what is lost against the full network."""
    early, full = trace.predictions.gather(1, exits), trace.network_predictions[:, -1:]
    if kind == "disagreement":
        return (early != full).double()
    labels = trace.labels[:, None]
    return ((full == labels) & (early != labels)).double()


def _loss_bounds(losses: Tensor, guarantee: Guarantee) -> Tensor | None:
    """`[P]`, cheapest first; the safe end is the dearest."""
    if guarantee.epsilon is None:
        return None
    return upper_bounds(losses.flip(1), guarantee).flip(0)


def _cost_bounds(costs: Tensor, exits: Tensor, guarantee: Guarantee) -> Tensor | None:
    """`[P]`, cheapest first, which is the safe end."""
    if guarantee.budget is None:
        return None
    # The range is that of the network's exits, and not that of the sample.
    cheapest, span = costs[0], costs[-1] - costs[0]
    losses = ((costs - cheapest) / span)[exits]
    return cheapest + upper_bounds(losses, guarantee) * span


def _choose(loss_bounds: Tensor | None, cost_bounds: Tensor | None, wanted: Guarantee) -> int:
    """The number of the point to return, cheapest first."""
    dearest = None
    if cost_bounds is not None:
        assert wanted.budget is not None
        dearest = certified(cost_bounds, wanted.budget) - 1
        if dearest < 0:
            raise GuaranteeError(
                f"no operating point can be certified to cost at most {wanted.budget:g}; the "
                f"smallest budget that could be certified is {bound_text(float(cost_bounds[0]))}"
            )
    if loss_bounds is None:
        assert dearest is not None
        return dearest
    assert wanted.epsilon is not None
    count = certified(loss_bounds.flip(0), wanted.epsilon)
    point, last = len(loss_bounds) - count, len(loss_bounds) - 1 if dearest is None else dearest
    if point > last:
        within = "" if wanted.budget is None else f" within a budget of {wanted.budget:g}"
        raise GuaranteeError(
            f"no operating point can be certified to have a mean {wanted.loss} of at most "
            f"{wanted.epsilon:g}{within}; the smallest epsilon that could be certified is "
            f"{bound_text(float(loss_bounds[last]))}: ask for that, or bring more samples"
        )
    return point
