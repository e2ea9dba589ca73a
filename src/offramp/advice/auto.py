"""`auto`: exits, answer, scorer and thresholds, chosen by cross-validation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from offramp.advice.rating import SURE, CrossFit, Hits, hits_on, pick, pool
from offramp.errors import ConfigError
from offramp.evaluation.bootstrap import Interval, unseen_variance
from offramp.evaluation.references import fixed_exits, heads_correct, mix_at
from offramp.ledger import Ledger
from offramp.methods import Fits, Method, Plan, find_methods, keep_exits, register
from offramp.names import CANDIDATES
from offramp.policy import Policy
from offramp.scorers import MaxProbability
from offramp.thresholds.points import OperatingPoints

Rate = Callable[[Sequence[int]], npt.ArrayLike]
"""How good a set of exits is for every sample, `[N]`; higher is better."""

NEGLIGIBLE = 1e-3  # of the network without exits; heads that cost less are not worth a search


def choose_exits(ledger: Ledger, rate: Rate) -> list[int]:
    """Drop the exit whose loss is the best riddance, again and again, while that clearly helps.

    The best of several is a lucky one where samples are few, so what is gained must be more than
    two standard errors.

    The last exit stays, and so do exits whose heads cost next to nothing, or where their cost is
    not known apart: dropping them saves nothing that a closed threshold would not.

    Args:
        ledger: Any split: its costs are looked at.
        rate: How good a set of exits is for every sample, `[N]`; higher is better.

    Returns:
        Indices of the exits to keep, ascending.

    Example:
        >>> import torch
        >>> from offramp import Costs
        >>> costs = Costs(stages=(1, 1, 1), heads=(1, 1, 1))
        >>> ledger = Ledger(torch.randn(4, 3, 2), [0, 1, 0, 1], costs, split="val")
        >>> choose_exits(ledger, lambda exits: -float(0 in exits))
        [1, 2]
    """
    kept = list(range(ledger.num_exits))
    least = NEGLIGIBLE * ledger.reference_cost
    heads = ledger.cost_model.mean().heads.tolist()
    costly = [index for index in kept[:-1] if heads[index] > least]
    if not costly:
        return kept
    best = np.atleast_1d(rate(kept))
    while len(kept) > 2 and costly:
        rated = {
            index: np.atleast_1d(rate([other for other in kept if other != index]))
            for index in costly
        }
        worst = max(rated, key=lambda index: float(rated[index].mean()))
        gain = rated[worst] - best
        if gain.mean() <= SURE * gain.std() / len(gain) ** 0.5:
            break
        best = rated[worst]
        kept.remove(worst)
        costly.remove(worst)
    return kept


ANSWER_CANDIDATES = ("baseline", "baseline:smooth", "eefp-logistic", "break-even-no-ensemble")
"""Methods to choose from where answers come without logits."""

POOLED = (0.25, 0.5, 0.75)
"""Budgets that methods are rated at, besides those that are asked for."""


def auto(
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float] = (0.25, 0.5, 0.75),
    methods: Sequence[str | Method] = CANDIDATES,
) -> Plan:
    """The best policy for each budget: exits, answer, scorer and thresholds.

    Methods are rated by cross-validation on held_out and val together: fitted on some of the
    samples, with thresholds from others, and counted on the rest, in turn. Of the methods that
    cannot be told from the best at a budget, the last one is taken: with few samples, the highest
    of several figures is a lucky one. It is fitted on all samples, and its thresholds come from
    the scores of copies that had not seen them; a method whose fit is random is fitted on
    held_out, and val gives its thresholds. Test is not touched.

    With costs in seconds (`Profile.timed`) a budget that no exit can keep is given the network
    without exits, and the plan says so: exits do not pay there.

    Args:
        held_out: To choose by, to fit on and to tune on.
        val: More samples for the same.
        budgets: Mean costs as shares of the network without exits.
        methods: To choose from, the one that is trusted most last; the first is what gains are
            measured against.

    Raises:
        BudgetError: A budget is below the cost of the first exit, in another unit than seconds.

    Example:
        >>> from offramp import evaluate, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=500, exits=4)
        >>> plan = auto(splits["held_out"], splits["val"], [0.5], ["baseline", "margin:smooth"])
        >>> round(evaluate(plan[0.5], plan.view(splits["test"])).mean_cost, 1)
        0.5
    """
    (plan,) = Auto(candidates=tuple(methods)).plans(held_out, val, budgets, seeds=1)
    if held_out.unit == "seconds":
        plan = _where_exits_pay(plan, held_out, val)
    for budget, policy in plan.items():
        if len(policy.exits) > 1:
            policy.points.for_budget(budget)  # raises where a budget is out of reach
    unsure = {id(p.scorer): p for p in plan.values() if p.confidence is None}
    confidences = {
        key: policy.fit_confidence(policy.view(held_out)).confidence
        for key, policy in unsure.items()
    }
    for policy in plan.values():
        policy.confidence = confidences.get(id(policy.scorer), policy.confidence)
    return plan


def _where_exits_pay(plan: Plan, held_out: Ledger, val: Ledger) -> Plan:
    """The plan with the network without exits at budgets where exits take longer, or lose."""
    policies, why = dict(plan.policies), dict(plan.why)
    full = full_network(held_out, val)
    for budget, policy in plan.items():
        points, index = policy.points, policy.points.nearest(budget)
        least = float(points.budgets[0])
        if least > budget + 1e-9:
            found = f"the least that they take is {least:.0%}"
        elif budget >= 1 and points.accuracies[index] <= points.full_accuracy:
            found = "they are no more accurate, and there is time for all of it"
        else:
            why[budget] += _beside_fixed_exits(val, budget, float(points.accuracies[index]))
            continue
        policies[budget] = full
        why[budget] = (
            f"do not use exits on this machine at this batch size for {budget:.0%} of the time of "
            f"the full network: {found}"
        )
    return replace(plan, policies=policies, why=why)


def _beside_fixed_exits(val: Ledger, budget: float, accuracy: float) -> str:
    """A word of warning where samples might as well leave at exits drawn at random."""
    if not val.has_labels:
        return ""
    correct = heads_correct(val)
    mix = mix_at(fixed_exits(val, correct), correct.double().mean(dim=0), budget)
    error = (2 * accuracy * (1 - accuracy) / len(val)) ** 0.5
    if accuracy > mix.accuracy + SURE * error:
        return ""
    return (
        f"; no clear gain over fixed exits in the same time ({mix.accuracy:.2%} on val): `advise` "
        "says on test whether exits pay"
    )


def full_network(held_out: Ledger, val: Ledger) -> Policy:
    """The network without exits as a policy: everything leaves at the last one."""
    last = held_out.keep_exits([held_out.num_exits - 1])
    (policy,) = Policy(MaxProbability()).fit_seeds(last, [0])
    replay = policy.replay(val, "val")
    always, accuracy = torch.ones(1, 1).double(), replay.network_correct.double().mean()
    cost = replay.price.at(always, always)[0]
    points = OperatingPoints(-always, cost, accuracy[None], always, float(accuracy))
    policy = policy.with_points(points).at_point(0)
    policy.record("tune", val)
    return policy


@dataclass(frozen=True)
class Auto(Method):
    """`auto` as a method: the best of several others, chosen for each budget.

    The choice is made once, with the first seed; then what was chosen is fitted, with every seed
    where that is random.

    Args:
        candidates: To choose from.

    Example:
        >>> from offramp import compare, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300, exits=4)
        >>> few = Auto(candidates=("baseline", "baseline:smooth"))
        >>> table = compare(**splits, methods=["baseline", few], budgets=[0.5], resamples=10)
        >>> table["auto"].settings["chosen"]["0.5"] in few.candidates
        True
    """

    name: str = "auto"
    label: str = "Auto"
    thresholds: str = "smooth"
    candidates: tuple[str | Method, ...] = CANDIDATES

    def describe(self) -> dict[str, Any]:
        """The methods to choose from; what was chosen is in the plan."""
        return {"candidates": [getattr(each, "name", each) for each in self.candidates]}

    def with_thresholds(self, thresholds: str) -> Method:
        """Refused: thresholds are part of the choice."""
        raise ConfigError(
            f"{self.name!r} chooses thresholds too; name it without {':' + thresholds!r}"
        )

    def plans(
        self,
        held_out: Ledger,
        val: Ledger,
        budgets: Sequence[float],
        seeds: int,
        fits: Fits | None = None,
    ) -> list[Plan]:
        """Choose a method for each budget, and make plans of it."""
        choice = _choose(held_out, val, budgets, self.candidates)
        views = keep_exits(held_out, choice.exits), keep_exits(val, choice.exits)
        # Fits of all exits are no use for fewer of them.
        shared = fits if fits is not None and views[0] is held_out else {}
        made: dict[str, list[Mapping[float, Policy]]] = {}
        for method in {method.name: method for method in choice.methods.values()}.values():
            if choice.is_pooled(method):
                policy = choice.crossed[method.name].policy(choice.pooled)
                points = policy.points
                made[method.name] = [{b: policy.at_point(points.nearest(b)) for b in budgets}]
            else:
                made[method.name] = list(method.plans(*views, budgets, seeds, shared))
        count = max(map(len, made.values()))
        return [
            choice.plan(
                {
                    budget: made[method.name][seed % len(made[method.name])][budget]
                    for budget, method in choice.methods.items()
                }
            )
            for seed in range(count)
        ]


register(Auto())


@dataclass(frozen=True)
class _Choice:
    """What was chosen, before it is fitted.

    Attributes:
        methods: By budget.
        exits: Indices of the exits that are kept.
        why: By budget, a sentence.
        accuracies: By method and budget, cross-validated on held_out and val.
        pooled: The samples of both, with these exits.
        crossed: By method, its cross-fitted copies.
    """

    methods: dict[float, Method]
    exits: list[int]
    why: dict[float, str]
    accuracies: dict[str, dict[float, float]]
    pooled: Ledger
    crossed: dict[str, CrossFit]

    @staticmethod
    def is_pooled(method: Method) -> bool:
        """Whether copies of it score alike, so that thresholds of one suit another."""
        return type(method).plans is Method.plans and "seed" not in method.scorer.settings()

    def plan(self, policies: dict[float, Policy]) -> Plan:
        """The plan of these policies, with the reasons for the choice."""
        names = {budget: method.name for budget, method in self.methods.items()}
        return Plan(policies, self.exits, names, self.why, self.accuracies)


def _choose(
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float],
    methods: Sequence[str | Method],
) -> _Choice:
    """Choose exits and, for each budget, a method."""
    if not budgets or len(set(budgets)) < len(budgets):
        raise ConfigError(f"`budgets` must be distinct and at least one, got {list(budgets)}")
    rated_at = [*budgets, *(budget for budget in POOLED if budget not in budgets)]
    if tuple(methods) == CANDIDATES and held_out.kind != "logits":
        methods = ANSWER_CANDIDATES
    chosen = find_methods(methods, held_out.num_classes, held_out.kind)
    exits = choose_exits(val, lambda kept: _rate(kept, chosen[0], held_out, val, rated_at))
    pooled = keep_exits(pool(held_out, val), exits)
    crossed = _crossed(chosen, pooled)
    hits = {name: found.hits(rated_at) for name, found in crossed.items()}
    by_name = {method.name: method for method in chosen}
    picked = {b: by_name[pick(hits, number)] for number, b in enumerate(budgets)}
    spent = "time" if val.unit == "seconds" else "compute"
    why = {
        budget: _reason(picked[budget], chosen, hits, number, f"{budget:.0%} of the {spent}")
        for number, budget in enumerate(budgets)
    }
    accuracies = {
        name: dict(zip(budgets, found.mean(axis=0).tolist(), strict=False))
        for name, found in hits.items()
    }
    return _Choice(picked, exits, why, accuracies, pooled, crossed)


def _crossed(methods: Sequence[Method], pooled: Ledger) -> dict[str, CrossFit]:
    """Every method cross-fitted; those that differ in their thresholds only, once."""
    found: dict[str, CrossFit] = {}
    for method in methods:
        known = (other for other in found.values() if _same_fit(other.method, method))
        same = next(known, None)
        found[method.name] = replace(same, method=method) if same else CrossFit.of(method, pooled)
    return found


def _same_fit(one: Method, other: Method) -> bool:
    parts = ((method.scorer.describe(), method.answer.describe()) for method in (one, other))
    return len({repr(part) for part in parts}) == 1


def _rate(
    kept: Sequence[int],
    method: Method,
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float],
) -> Hits:
    """How good a set of exits is for the simplest method, `[N]`, with thresholds that fit it."""
    (policy,) = method.policy().fit_seeds(held_out.keep_exits(kept), [0])
    replay = policy.replay(val.keep_exits(kept), "val")
    hits: Hits = hits_on(replay, "smooth", budgets).mean(axis=1)
    return hits


def _reason(
    best: Method, methods: Sequence[Method], hits: dict[str, Hits], number: int, budget: str
) -> str:
    """What was chosen, by how much, and how sure that is."""
    first = methods[0]
    text = (
        f"{_words(best)}: {hits[best.name][:, number].mean():.2%} at {budget} "
        "by cross-validation on held_out and val"
    )
    if best is not first:
        gain = gain_of(hits[best.name][:, number], hits[first.name][:, number])
        low, value, high = (100 * end for end in (gain.low, gain.value, gain.high))
        text += f", {value:+.2f} [{low:+.2f}, {high:+.2f}] points against {_words(first)}"
        if not gain.is_clear:
            text += ", from which it cannot be told with so few samples"
    others = [method for method in methods if method is not best]
    if not others:
        return text
    rival = max(others, key=lambda method: hits[method.name][:, number].mean())
    other = hits[rival.name][:, number].mean()
    text = f"{text}; the best other: {_words(rival)}, {other:.2%}"
    if other <= hits[best.name][:, number].mean():
        return text
    return f"{text}, which cannot be told from it here"


def gain_of(hits: Hits, base: Hits) -> Interval:
    """What hits `[N]` gain over others on the same samples, with a 95 % interval.

    Example:
        >>> gain_of(np.ones(100), np.arange(100) % 2).is_clear
        True
    """
    gaps = hits - base
    value, error = gaps.mean(), (gaps.var() / len(gaps) + unseen_variance(len(gaps))) ** 0.5
    low, high = float(value - SURE * error), float(value + SURE * error)
    return Interval(float(value), low, high, low > 0 or high < 0)


def _words(method: Method) -> str:
    """The method's label, with its thresholds unless the label has them."""
    return method.label if ":" in method.name else f"{method.label}, {method.thresholds}"
