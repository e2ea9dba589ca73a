"""Certify an operating point of a policy on samples that nothing was chosen on."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from math import e, log

import numpy as np
import scipy

from offramp import check
from offramp.arrays import AnyArray, Array, Floats, as_numpy
from offramp.errors import ConfigError, GuaranteeError, LedgerError, NotFittedError, SplitError
from offramp.ledger import Ledger
from offramp.ledger.chunks import cut
from offramp.policy import Policy
from offramp.registry import LOSSES
from offramp.replay import Replay
from offramp.thresholds.rule import SURE, bound_text

Bound = Callable[[AnyArray, float], Floats]
"""`(losses [N, P], delta) -> upper bounds [P]`."""

STEPS = 32  # of bisection: the bound is exact to 2^-32, and never below the exact one
EMPTY = 1e-300  # stands in for the logarithm of zero


def hoeffding_bentkus(losses: AnyArray, delta: float) -> Floats:
    """The bound of Bates et al. (2021): the smaller of Hoeffding's and Bentkus's.

    Of independent losses `[N, P]` in [0, 1]; it may fail with probability delta for each of the P.

    Example:
        >>> hoeffding_bentkus(np.zeros((100, 1)), delta=0.1).round(4)
        array([0.0228])
    """
    values = _checked_losses(losses, delta)
    totals, samples = values.sum(axis=0), len(values)

    def excluded(mean: Floats) -> Floats:
        return np.asarray(p_value(totals, samples, mean) <= delta)

    return _smallest(excluded, values.shape[1])


def p_value(totals: Floats, samples: int, epsilon: float | Floats) -> Floats:
    """How surprising totals `[P]` of losses would be if their mean were above epsilon."""
    mean = np.minimum(totals / samples, epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.where(mean > 0, mean * np.log(mean / epsilon), 0.0)
        above = np.where(
            mean < 1, (1 - mean) * np.log((1 - mean) / (1 - np.asarray(epsilon))), 0.0
        )
    hoeffding = np.exp(-samples * (below + above))
    # Sums of floats may lie a hair above a whole number, and must not be rounded up to the next.
    bentkus = e * scipy.special.bdtr(np.ceil(totals - 1e-9), samples, epsilon)
    smaller: Floats = np.minimum(hoeffding, bentkus)
    return smaller


def betting(losses: AnyArray, delta: float) -> Floats:
    """The bound of Waudby-Smith and Ramdas (2024): betting on a true mean makes no gambler rich.

    Sample by sample, a gambler stakes a share of his wealth on losses below a mean. If that mean
    is true, his wealth exceeds 1 / delta with probability delta at most; means with which it did
    are excluded. Bates et al. (2021) state the stakes. They adapt to the variance, so
    that rare losses cost little.

    The samples are bet on in a random order that is always the same: a file may be sorted. Early
    luck can exclude even the mean of the sample; the bound is not put below that.

    Example:
        >>> betting(np.zeros((100, 1)), delta=0.1).round(4)
        array([0.0238])
    """
    values = _checked_losses(losses, delta)
    (order,) = cut(len(values), 1, seed=0)
    values = values[order]
    stakes = _stakes(values, delta)
    won = 1 - stakes * values  # wealth is multiplied by `won + stakes * mean`

    def excluded(mean: Floats) -> Floats:
        growth = stakes * mean
        growth += won  # in place, which takes half the time
        np.log(np.maximum(growth, EMPTY, out=growth), out=growth)
        richest: Floats = growth.cumsum(axis=0, out=growth).max(axis=0)
        return np.asarray(richest >= log(1 / delta))

    bounds: Floats = np.maximum(_smallest(excluded, values.shape[1]), values.mean(axis=0))
    return bounds


def conformal(losses: AnyArray) -> Floats:
    """Mean loss with one more sample of the largest possible loss (Angelopoulos et al. 2024).

    The first of many policies, ordered from the risky to the safe one, for which this is at most
    epsilon has a mean loss of at most epsilon on a new sample, on average over draws of the
    samples. That holds for losses `[N, P]` in [0, 1] that never grow towards the safe end.

    Example:
        >>> conformal(np.zeros((99, 1)))
        array([0.01])
    """
    values = _checked_losses(losses, 0.5)
    return np.asarray((values.sum(axis=0) + 1) / (len(values) + 1))


def _stakes(values: Floats, delta: float) -> Floats:
    """Each bet `[N, P]` as a share of the wealth; it knows the samples before it only."""
    samples = len(values)
    seen = np.arange(2, samples + 2)[:, None]
    means = (0.5 + values.cumsum(axis=0)) / seen
    variances = (0.25 + np.square(values - means).cumsum(axis=0)) / seen
    before = np.concatenate([np.full((1, values.shape[1]), 0.25), variances[:-1]])
    stakes: Floats = np.minimum(1.0, np.sqrt(2 * log(1 / delta) / (samples * before)))
    return stakes


def _smallest(excluded: Callable[[Floats], Floats], count: int) -> Floats:
    """The smallest means `[P]` that are excluded; all above an excluded one are, too."""
    low, high = np.zeros(count), np.ones(count)
    for _ in range(STEPS):
        middle = (low + high) / 2
        out = excluded(middle)
        low, high = np.where(out, low, middle), np.where(out, middle, high)
    return high


def _checked_losses(losses: AnyArray, delta: float) -> Floats:
    values: Floats = as_numpy(losses).astype(np.float64, copy=False)
    check.shape("losses", values, "N", "P", error=LedgerError)
    if not (values >= 0).all() or not (values <= 1).all():
        raise LedgerError(
            f"`losses` must lie in [0, 1], got {np.nanmin(values):g} to {np.nanmax(values):g}"
        )
    check.within("delta", delta, 0, 1, ends="()")
    return values


BOUNDS: dict[str, Bound] = {"betting": betting, "hoeffding-bentkus": hoeffding_bentkus}


@dataclass(frozen=True)
class Guarantee:
    """What is to be guaranteed.

    Args:
        epsilon: The mean loss against the full network is to be at most this.
        budget: The mean cost, as a share of the network without exits, is to be at most this.
            With both, each may fail with half of delta.
        delta: Probability, over the draw of the certification sample, with which the guarantee
            may fail. None asks for less: that it holds on average over such draws (conformal
            risk control).
        loss: `regret`: the full network is right and the early answer wrong. `regret-sure` and
            `regret-hopeless` count it where the policy stopped because it was sure, or gave up:
            with a confidence of at least one half, or below. `disagreement`: the two differ.
        bound: `betting`, or `hoeffding-bentkus`.
        largest_cost: The most that a single sample can cost, in the unit of the ledger, such as
            a limit on tokens; needed for a `budget` where costs differ from sample to sample.
            The budget is then a share of the mean cost of going to the end on held_out.

    Example:
        >>> Guarantee(epsilon=0.02, budget=0.6).level
        0.05
    """

    epsilon: float | None = None
    budget: float | None = None
    delta: float | None = 0.1
    loss: str = "regret"
    bound: str = "betting"
    largest_cost: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is None and self.budget is None:
            raise ConfigError("give `epsilon`, `budget` or both: what is to be guaranteed?")
        for name, ends in (("epsilon", "(]"), ("budget", "(]"), ("delta", "()")):
            if getattr(self, name) is not None:
                check.within(name, getattr(self, name), 0, 1, ends=ends)
        check.one_of("loss", self.loss, LOSSES)
        check.one_of("bound", self.bound, BOUNDS)
        if self.delta is None and self.epsilon is not None and self.budget is not None:
            raise ConfigError(
                "`delta` must be given to guarantee `epsilon` and `budget` together: two averages "
                "over draws do not hold at once where some draws have no answer"
            )

    @property
    def level(self) -> float | None:
        """The share of delta that each part may use."""
        both = self.epsilon is not None and self.budget is not None
        return self.delta / 2 if both and self.delta is not None else self.delta


def upper_bounds(losses: AnyArray, guarantee: Guarantee) -> Floats:
    """Upper bounds of the mean losses `[N, P]` along a path from its safe end, float64 `[P]`.

    The bounds never fall: a policy is certified only if all safer ones are.

    Example:
        >>> losses = np.zeros((200, 3))
        >>> losses[:20, 1] = 1.0  # the policy in the middle is the worst
        >>> upper_bounds(losses, Guarantee(epsilon=0.2, bound="hoeffding-bentkus")).round(4)
        array([0.0114, 0.1457, 0.1457])
    """
    if guarantee.level is None:
        # Losses that a safer policy has, too, count for the riskier one: then they never grow
        # towards the safe end, as conformal risk control needs, and bound the true ones.
        return conformal(np.maximum.accumulate(as_numpy(losses), axis=1))
    return np.maximum.accumulate(BOUNDS[guarantee.bound](losses, guarantee.level))


def certified(bounds: Array, limit: float) -> int:
    """How many policies, from the safe end, are certified: the last is number count - 1.

    The scan ends before the first failure, and zero means that none is certified.

    Example:
        >>> certified(np.array([0.01, 0.04, 0.06]), limit=0.05)
        2
    """
    return int(np.logical_and.accumulate(bounds <= limit).sum())


@dataclass(frozen=True)
class Certificate:
    """A policy at a certified operating point.

    Attributes:
        policy: At that point.
        guarantee: What holds for it.
        samples: Size of the certification sample: groups, where samples belong to some.
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
            parts.append(f"mean {self._loss} at most {self.guarantee.epsilon:g}")
        if self.guarantee.budget is not None:
            parts.append(f"mean cost at most {self.guarantee.budget:g}")
        delta = self.guarantee.delta
        how = "on average over draws of" if delta is None else f"with confidence {_sure(delta)} on"
        return (
            f"{' and '.join(parts)}, {how} {self.samples:,} samples; there, the "
            f"{self._loss} was {self.loss:.4f} and the cost {self.cost:.4f}"
        )

    @property
    def _loss(self) -> str:
        """In words."""
        kind, _, way = self.guarantee.loss.partition("-")
        where = {"sure": " where it stopped as sure", "hopeless": " where it gave up as hopeless"}
        return kind + where.get(way, "")


def _sure(delta: float) -> str:
    """1 - delta, with enough digits that it never reads as certain.

    Example:
        >>> _sure(0.1), _sure(1e-9)
        ('0.9', '0.999999999')
    """
    return f"{1 - Decimal(repr(delta)):f}"


def certify(policy: Policy, val: Ledger, guarantee: Guarantee) -> Certificate:
    """The operating point that costs least and can be guaranteed; for a budget alone, most.

    The policy's operating points are the path; it must be fixed without the certification
    sample, for instance by `policy.tune(held_out, "geometric", allow_split="held_out")`: geometric
    points end at the full network, which loses nothing against itself. For a loss, the points are
    tested from the most costly one on, for a budget from the cheapest one on, and the last point
    before the first failure is returned. The guarantee holds for new samples that are drawn as
    `val` was.

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
    expected = "what is to hold, such as offramp.Guarantee(epsilon=0.05)"
    check.instance("guarantee", guarantee, Guarantee, expected)
    if not policy.is_tuned:
        raise NotFittedError(
            "this policy has no operating points to choose from; they must be fixed before val is "
            'seen: policy.tune(held_out, "geometric", allow_split="held_out")'
        )
    replay = policy.replay(val, "val")
    try:
        policy.check_unseen(val, "certify")
    except SplitError as error:
        raise SplitError(
            f"{error}: the operating points must be fixed without val, for instance by "
            'policy.tune(held_out, "geometric", allow_split="held_out")'
        ) from None
    exits = replay.exits_by_point.T  # [N, P], cheapest first
    losses = _losses(replay, exits, guarantee.loss)
    # Shares of a reference that val has no part in: that of held_out, where samples differ.
    reference = policy.reference_cost
    costs = replay.costs_by_point.T * (val.reference_cost / reference)  # [N, P]
    # Samples of a group are not independent, and groups are: bounds are for means of groups.
    losses, costs = replay.by_group(losses), replay.by_group(costs)
    point, loss_bounds, cost_bounds = len(policy.points) - 1, None, None
    if guarantee.budget is not None:
        cost_bounds = _cost_bounds(costs, replay, guarantee, reference)
        point = _most_costly_within(cost_bounds, guarantee.budget)
    if guarantee.epsilon is not None:
        loss_bounds = upper_bounds(losses[:, ::-1], guarantee)[::-1]
        point = _cheapest_within(loss_bounds, point, guarantee.epsilon, guarantee)
    chosen = policy.with_points(policy.points).at_point(point)
    chosen.record("certify", val)
    certificate = Certificate(
        chosen,
        guarantee,
        len(losses),
        float(losses[:, point].mean()),
        None if loss_bounds is None else float(loss_bounds[point]),
        float(costs[:, point].mean()),
        None if cost_bounds is None else float(cost_bounds[point]),
    )
    chosen.guarantee = str(certificate)
    return certificate


def _losses(replay: Replay, exits: Array, kind: str) -> Floats:
    """`[N, P]`, 0 or 1: what is lost against the full network."""

    def early(values: Array) -> Array:
        return np.take_along_axis(values, exits, axis=1)

    if kind == "disagreement":
        lost = early(replay.predictions) != replay.network_predictions[:, -1:]
    else:
        lost = replay.network_correct[:, -1:] & ~early(replay.correct)
    if kind in ("regret-sure", "regret-hopeless"):
        sure = early(replay.confidences) >= SURE
        lost &= sure if kind == "regret-sure" else ~sure
    return np.asarray(lost, dtype=np.float64)


def _possible(replay: Replay, guarantee: Guarantee, reference: float) -> tuple[float, float]:
    """The least and the most that a sample can cost, as shares of the reference cost."""
    if not replay.price.costs.by_sample:
        # The range is that of the network's exits, and not that of the sample.
        return float(replay.point_costs.min()), float(replay.point_costs.max())
    if guarantee.largest_cost is None:
        raise ConfigError(
            "costs differ from sample to sample here, and a bound on their mean needs the most "
            "that a single one can cost: give it as Guarantee(largest_cost=...), on the command "
            f"line --largest-cost, in {replay.price.costs.unit}, such as the limit on tokens"
        )
    return 0.0, guarantee.largest_cost / reference


def _cost_bounds(costs: Floats, replay: Replay, guarantee: Guarantee, reference: float) -> Floats:
    """`[P]`, cheapest first, which is the safe end."""
    least, most = _possible(replay, guarantee, reference)
    if float(costs.max()) > most + 1e-9:
        raise ConfigError(
            f"`largest_cost` is the most that a sample can cost, got {guarantee.largest_cost:g}, "
            f"and one of this sample costs {float(costs.max()) * reference:g}"
        )
    return least + upper_bounds((costs - least) / (most - least), guarantee) * (most - least)


def _most_costly_within(bounds: Floats, budget: float) -> int:
    """The last point, cheapest first, that is certified to cost at most the budget."""
    count = certified(bounds, budget)
    if not count:
        raise GuaranteeError(
            f"no operating point can be certified to cost at most {budget:g}; the smallest budget "
            f"that could be certified is {bound_text(float(bounds[0]))}"
        )
    return count - 1


def _cheapest_within(bounds: Floats, last: int, epsilon: float, wanted: Guarantee) -> int:
    """The first point up to the last one that is certified to lose at most epsilon."""
    point = len(bounds) - certified(bounds[::-1], epsilon)
    if point > last:
        within = "" if wanted.budget is None else f" within a budget of {wanted.budget:g}"
        raise GuaranteeError(
            f"no operating point can be certified to have a mean {wanted.loss} of at most "
            f"{epsilon:g}{within}; the smallest epsilon that could be certified is "
            f"{bound_text(float(bounds[last]))}: ask for that, or bring more samples"
        )
    return point
