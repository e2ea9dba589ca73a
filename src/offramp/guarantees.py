"""Certify an operating point of a policy on samples that nothing was chosen on."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from offramp import check
from offramp.arrays import Array, Floats
from offramp.bounds import BOUNDS, certified, upper_bounds
from offramp.errors import ConfigError, GuaranteeError, NotFittedError, SplitError
from offramp.ledger import Ledger
from offramp.on_demand import Labels, Oracle, walk
from offramp.policy import Policy
from offramp.registry import LOSSES
from offramp.replay import Replay
from offramp.thresholds.rule import ROUNDING, SURE, bound_text

OF_CLASS = ("precision", "recall")
"""Losses of the answers, or the samples, of one class; the full network plays no part in them."""


@dataclass(frozen=True)
class Guarantee:
    """What is to be guaranteed.

    Args:
        epsilon: The mean loss is to be at most this; 0.02 of `accuracy` are two points.
        budget: The mean cost, as a share of the network without exits, is to be at most this.
            With both, each may fail with half of delta.
        delta: Probability, over the draw of the certification sample, with which the guarantee
            may fail. None asks for less: that it holds on average over such draws (conformal
            risk control).
        loss: `accuracy`: what the policy is less accurate than the full network; what only it
            gets right offsets what only the full network gets right. `regret` offsets nothing:
            the full network is right and the early answer wrong. `regret-sure` and
            `regret-hopeless` count it where the policy stopped because it was sure, or gave up:
            with a confidence of at least one half, or below. `disagreement`: the two differ.
            `precision`: of the answers that name a class, the share that is wrong. `recall`: of
            the samples of a class, the share that is answered with another one.
        bound: `exact`, `betting` or `hoeffding-bentkus`. Where samples come in groups, `exact` is
            `betting`.
        largest_cost: The most that a single sample can cost, in the unit of the ledger, such as
            a limit on tokens; needed for a `budget` where costs differ from sample to sample.
            The budget is then a share of the mean cost of going to the end on held_out.
        class_: Number of the class whose precision or recall is meant; of answers without logits,
            the answer that their ledger was made with as `positive`.

    Example:
        >>> Guarantee(epsilon=0.02, budget=0.6).level
        0.05
        >>> Guarantee(epsilon=0.1, loss="precision", class_=3).loss  # at least 90 % precision
        'precision'
    """

    epsilon: float | None = None
    budget: float | None = None
    delta: float | None = 0.1
    loss: str = "accuracy"
    bound: str = "exact"
    largest_cost: float | None = None
    class_: int | str | None = None

    def __post_init__(self) -> None:
        if self.epsilon is None and self.budget is None:
            raise ConfigError("give `epsilon`, `budget` or both: what is to be guaranteed?")
        for name, ends in (("epsilon", "(]"), ("budget", "(]"), ("delta", "()")):
            if getattr(self, name) is not None:
                check.within(name, getattr(self, name), 0, 1, ends=ends)
        check.one_of("loss", self.loss, LOSSES)
        check.one_of("bound", self.bound, BOUNDS)
        if (self.loss in OF_CLASS) != (self.class_ is not None):
            raise ConfigError(
                "`class_` is the number of a class, and goes with loss='precision' or 'recall'; "
                f"got loss={self.loss!r} and class_={self.class_!r}"
            )
        if self.delta is None and self.loss in OF_CLASS:
            raise ConfigError(f"`delta` must be given to guarantee {self.loss}, which is a ratio")
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

    @property
    def numbers_bound(self) -> str:
        """The bound for costs, and for means of groups, which are any numbers."""
        return "betting" if self.bound == "exact" else self.bound

    @property
    def words(self) -> str:
        """The loss in words."""
        kind, _, way = self.loss.partition("-")
        words = {
            "sure": " where it stopped as sure",
            "hopeless": " where it gave up as hopeless",
            "accuracy": "loss of accuracy",
            "precision": f"share of wrong answers of class {self.class_}",
            "recall": f"share of class {self.class_} that is answered otherwise",
        }
        return words.get(kind, kind) + words.get(way, "")


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
        labels: How many labels were asked for; None where all were known.
    """

    policy: Policy
    guarantee: Guarantee
    samples: int
    loss: float
    loss_bound: float | None
    cost: float
    cost_bound: float | None
    labels: int | None = None

    def __str__(self) -> str:
        parts, words = [], self.guarantee.words
        if self.guarantee.epsilon is not None:
            parts.append(f"mean {words} at most {self.guarantee.epsilon:g}")
        if self.guarantee.budget is not None:
            parts.append(f"mean cost at most {self.guarantee.budget:g}")
        delta = self.guarantee.delta
        how = "on average over draws of" if delta is None else f"with confidence {_sure(delta)} on"
        asked = "" if self.labels is None else f", {self.labels:,} labels in all"
        return (
            f"{' and '.join(parts)}, {how} {self.samples:,} samples{asked}; there, the "
            f"{words} was {self.loss:.4f} and the cost {self.cost:.4f}"
        )


def _sure(delta: float) -> str:
    """1 - delta, with enough digits that it never reads as certain.

    Example:
        >>> _sure(0.1), _sure(1e-9)
        ('0.9', '0.999999999')
    """
    return f"{1 - Decimal(repr(delta)):f}"


def certify(
    policy: Policy,
    val: Ledger,
    guarantee: Guarantee,
    oracle: Oracle | None = None,
    budget: int | None = None,
) -> Certificate:
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
        oracle: Gives the label of a sample by its id, where labels cost something: only those are
            asked for that the guarantee needs, one by one (`offramp.on_demand`). Of answers
            without logits, a label says which stages are right. Labels of `val` are not read.
        budget: How many labels may be asked for.

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
    if guarantee.class_ is not None:
        _check_class(val, guarantee.class_)
    replay = policy.replay(val, "val")
    try:
        policy.check_unseen(val, "certify")
    except SplitError as error:
        raise SplitError(
            f"{error}: the operating points must be fixed without val, for instance by "
            'policy.tune(held_out, "geometric", allow_split="held_out")'
        ) from None
    if oracle is not None:
        return _on_demand(policy, val, replay, guarantee, Labels(oracle, val, budget))
    losses = losses_of(replay, guarantee)
    # Shares of a reference that val has no part in: that of held_out, where samples differ.
    reference = policy.reference_cost
    costs = replay.costs_by_point.T * (val.reference_cost / reference)  # [N, P]
    # Samples of a group are not independent, and groups are: bounds are for means of groups.
    losses, costs = replay.by_group(losses), replay.by_group(costs)
    bound = guarantee.numbers_bound if replay.groups is not None else guarantee.bound
    point, loss_bounds, cost_bounds = len(policy.points) - 1, None, None
    if guarantee.budget is not None:
        cost_bounds = _cost_bounds(costs, replay, guarantee, reference)
        point = _most_costly_within(cost_bounds, guarantee.budget)
    if guarantee.epsilon is not None:
        signed = guarantee.loss == "accuracy"
        loss_bounds = upper_bounds(losses[:, ::-1], guarantee.level, bound, signed)[::-1]
        point = _cheapest_within(loss_bounds, point, replay, guarantee)
    return _certificate(
        policy,
        point,
        val,
        guarantee,
        int((~np.isnan(losses[:, point])).sum()),
        float(np.nanmean(losses[:, point])),
        None if loss_bounds is None else float(loss_bounds[point]),
        float(costs[:, point].mean()),
        None if cost_bounds is None else float(cost_bounds[point]),
    )


def _certificate(
    policy: Policy,
    point: int,
    val: Ledger,
    guarantee: Guarantee,
    *figures: Any,  # noqa: ANN401
) -> Certificate:
    """For a policy at an operating point, which then knows what holds for it."""
    chosen = policy.with_points(policy.points).at_point(point)
    chosen.record("certify", val)
    certificate = Certificate(chosen, guarantee, *figures)
    chosen.guarantee = str(certificate)
    return certificate


def _check_class(val: Ledger, named: int | str) -> None:
    """Raise `ConfigError` unless precision and recall of what is named can be told on val."""
    if val.has_logits:
        check.whole("class_", named, least=0)
        check.within("class_", named, 0, val.num_classes - 1)
    elif val.positive is None:
        raise ConfigError(
            f"nothing tells which of these answers are {named!r}: name it where the ledger is "
            f"made, Ledger.from_answers(..., positive={named!r})"
        )


def _on_demand(
    policy: Policy, val: Ledger, replay: Replay, guarantee: Guarantee, labels: Labels
) -> Certificate:
    """The cheapest operating point that can be guaranteed with labels that are asked for."""
    if guarantee.budget is not None or guarantee.delta is None or guarantee.epsilon is None:
        raise ConfigError(
            "labels on demand are for an `epsilon` with a `delta`; a budget needs no labels: "
            "certify it apart"
        )
    kept = [val.exits.index(number) for number in policy.exits]
    found = walk(replay, kept, labels, guarantee.loss, guarantee.epsilon, guarantee.delta)
    used, costs = len(labels.known), replay.costs_by_point.mean(axis=1)
    if found.point is None or costs[found.point] > 1 + ROUNDING:
        raise GuaranteeError(
            f"no operating point that costs less than the full network can be certified to have a "
            f"mean {guarantee.words} of at most {guarantee.epsilon:g} with {used:,} labels; ask "
            "for a larger epsilon, or allow more labels"
        )
    figures = found.samples, found.loss, guarantee.epsilon, float(costs[found.point]), None, used
    return _certificate(policy, found.point, val, guarantee, *figures)


def losses_of(replay: Replay, guarantee: Guarantee) -> Floats:
    """`[N, P]`: what is lost at every operating point, nan where a sample does not count.

    Args:
        replay: Of a tuned policy.
        guarantee: For its kind of loss.
    """
    kind, exits = guarantee.loss, replay.exits_by_point.T  # [N, P], cheapest first

    def early(values: Array) -> Floats:
        return np.take_along_axis(values, exits, axis=1).astype(np.float64)

    if kind == "disagreement":
        return np.asarray(
            early(replay.predictions) != replay.network_predictions[:, -1:], dtype=np.float64
        )
    right = early(replay.correct)
    if kind in OF_CLASS:
        assert replay.labels is not None  # or `correct` had raised
        if replay.positive is None:
            named = early(replay.predictions) == guarantee.class_
            of_class = np.broadcast_to((replay.labels == guarantee.class_)[:, None], named.shape)
        else:  # of answers, a prediction is the number of a stage
            given = np.take_along_axis(replay.positive[:, :-1], replay.predictions, axis=1)
            named = early(given) > 0
            of_class = np.broadcast_to(replay.positive[:, -1:], named.shape)
        return np.where(named if kind == "precision" else of_class, 1 - right, np.nan)
    net = replay.full_right[:, None] - right
    if kind == "accuracy":
        return np.asarray(net)
    lost = net > 0
    if kind != "regret":
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
    shares, bound = (costs - least) / (most - least), guarantee.numbers_bound
    return least + upper_bounds(shares, guarantee.level, bound) * (most - least)


def _most_costly_within(bounds: Floats, budget: float) -> int:
    """The last point, cheapest first, that is certified to cost at most the budget."""
    count = certified(bounds, budget)
    if not count:
        raise GuaranteeError(
            f"no operating point can be certified to cost at most {budget:g}; the smallest budget "
            f"that could be certified is {bound_text(float(bounds[0]))}"
        )
    return count - 1


def _cheapest_within(bounds: Floats, last: int, replay: Replay, wanted: Guarantee) -> int:
    """The first point up to the last one that is certified to lose at most epsilon.

    Raises:
        GuaranteeError: There is none, or it costs more than the full network.
    """
    epsilon = wanted.epsilon
    assert epsilon is not None
    point = len(bounds) - certified(bounds[::-1], epsilon)
    costs = replay.costs_by_point.mean(axis=1)
    saving = len(costs) - 1 - int((costs[::-1] <= 1 + ROUNDING).argmax())
    if costs[saving] > 1 + ROUNDING:
        raise GuaranteeError(
            f"no operating point costs less than the full network: the cheapest takes "
            f"{costs.min():.1%} of its cost"
        )
    if point <= min(last, saving):
        return point
    least = f"{bound_text(float(bounds[min(last, saving)]))}: ask for that, or bring more samples"
    if point <= last:
        raise GuaranteeError(
            f"the cheapest operating point that can be certified to have a mean {wanted.words} of "
            f"at most {epsilon:g} takes {costs[point]:.1%} of the full network's cost, so use the "
            f"full network; the smallest epsilon that could be certified for less is {least}"
        )
    within = "" if wanted.budget is None else f" within a budget of {wanted.budget:g}"
    raise GuaranteeError(
        f"no operating point can be certified to have a mean {wanted.words} of at most "
        f"{epsilon:g}{within}; the smallest epsilon that could be certified is {least}"
    )
