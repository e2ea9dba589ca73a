"""`auto`: exits, answer, scorer and thresholds, chosen by cross-validation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from offramp.advice import subchains
from offramp.advice.best import full_network, where_exits_pay, with_best
from offramp.advice.rating import (
    CrossFit,
    Hits,
    at_most,
    gain_of,
    hits_on,
    is_clearly_more,
    pick,
    pool,
)
from offramp.answers import MajorityVote
from offramp.arrays import one_thread
from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.methods import Fits, Method, find_methods
from offramp.plan import Plan, check_shares
from offramp.policy import Policy
from offramp.price import decision_seconds
from offramp.registry import CANDIDATES

Rate = Callable[[Sequence[int]], npt.ArrayLike]
"""How good a set of exits is for every sample, `[N]`; higher is better."""

NEGLIGIBLE = 1e-3  # of the network without exits; heads that cost less are not worth a search

ANSWER_CANDIDATES = ("baseline", "baseline:smooth", "eefp-logistic", "break-even-no-ensemble")
"""Methods to choose from where answers come without logits."""

VOTES = ("vote", "vote:smooth", "adaptive-consistency-dirichlet", "adaptive-consistency")
"""Methods that need no confidences, only which answers are the same."""

ENOUGH = 10_000
"""Samples of each split, beyond which a choice, a fit and thresholds gain nothing that counts."""

POOLED = (0.25, 0.5, 0.75)
"""Budgets at which methods are rated, in addition to the budgets that are asked for."""


def auto(
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float] = (0.25, 0.5, 0.75),
    methods: Sequence[str | Method] = CANDIDATES,
) -> Plan:
    """The best policy for each budget: exits, answer, scorer and thresholds.

    This is the method `auto` with these candidates, and an error for budgets that are out of
    reach. Test is not touched.

    Args:
        held_out: To choose by, to fit on and to tune on.
        val: More samples for the same.
        budgets: Mean costs as shares of the network without exits.
        methods: To choose from, in the order of trust: the last one is taken where several are
            equally good. Gains are measured against the first.

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
    plan.check_budgets()
    return plan


@dataclass(frozen=True)
class Auto(Method):
    """The best of several methods, chosen for each budget.

    Methods are rated by cross-validation on held_out and val together: fitted on some of the
    samples, with thresholds from others, and counted on the rest, in turn. Several methods may lie
    within two standard errors of the best one at a budget. Then the last of them is taken, since
    with few samples the highest figure owes something to luck.

    The chosen method is fitted on all samples. Its thresholds come from cross-fitted scores: the
    score of each sample is by a copy that was fitted without that sample. A method whose fit is
    random is fitted on held_out with every seed, and its thresholds come from val. Of larger
    splits, 10,000 samples are used.

    With costs in seconds (`Profile.timed`) a budget that no exit can keep gets the network without
    exits, and the plan gives the reason.

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

    @one_thread()
    def plans(
        self,
        held_out: Ledger,
        val: Ledger,
        budgets: Sequence[float],
        seeds: int,
        fits: Fits | None = None,
    ) -> list[Plan]:
        """Choose a method for each budget, and make plans of it, with confidences."""
        if self.candidates == CANDIDATES and subchains.suits(held_out, val):
            return subchains.SUB_CHAINS.plans(held_out, val, budgets, seeds)
        held_out, val = at_most(held_out, ENOUGH), at_most(val, ENOUGH)
        choice = _choose(held_out, val, budgets, self.candidates)
        # Fits of all exits are no use for fewer of them.
        shared = fits if fits is not None and len(choice.exits) == held_out.num_exits else {}
        plans = choice.plans(held_out, val, seeds, shared)
        if held_out.unit == "seconds":
            full = full_network(held_out, val)
            plans = [where_exits_pay(plan, full, val) for plan in plans]
        return [with_best(plan, val) for plan in plans]


AUTO = Auto()


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

    def plans(self, held_out: Ledger, val: Ledger, seeds: int, fits: Fits) -> list[Plan]:
        """One plan per seed if some chosen method's fit is random, and otherwise one in all."""
        views = held_out.keep_exits(self.exits), val.keep_exits(self.exits)
        methods = {method.name: method for method in self.methods.values()}
        fitted = {
            name: self._fitted(method, *views, seeds, fits) for name, method in methods.items()
        }
        names = {budget: method.name for budget, method in self.methods.items()}
        plans = []
        for seed in range(max(map(len, fitted.values()))):
            # A method whose fit is not random has one set of policies, for all seeds.
            of_seed = {name: sets[min(seed, len(sets) - 1)] for name, sets in fitted.items()}
            policies = {budget: of_seed[name][budget] for budget, name in names.items()}
            why = {b: text + policies[b].points.unspent(b) for b, text in self.why.items()}
            plans.append(Plan(policies, self.exits, names, why, self.accuracies))
        return plans

    def _fitted(
        self, method: Method, held_out: Ledger, val: Ledger, seeds: int, fits: Fits
    ) -> Sequence[Mapping[float, Policy]]:
        """Per seed, the policies of a method by budget."""
        # Copies score alike where no seed plays a part, and then share thresholds.
        if type(method).plans is Method.plans and "seed" not in method.scorer.settings():
            policy = self.crossed[method.name].policy(self.pooled)
            return [{b: policy.nearest(b) for b in self.methods}]
        plans = method.plans(held_out, val, list(self.methods), seeds, fits)
        for plan in plans:
            _add_confidence(plan, held_out)
        return plans


def _add_confidence(plan: Plan, held_out: Ledger) -> None:
    """Fit a confidence for the policies of a plan that have none, one for all budgets."""
    for distinct in plan.distinct:
        if distinct.confidence is None:
            distinct.fit_confidence(distinct.view(held_out))
        for policy in plan.values():
            if policy.points is distinct.points:
                policy.confidence = distinct.confidence


def _choose(
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float],
    methods: Sequence[str | Method],
) -> _Choice:
    """Choose exits and, for each budget, a method."""
    check_shares(budgets)
    rated_at = [*budgets, *(budget for budget in POOLED if budget not in budgets)]
    if tuple(methods) == CANDIDATES and not held_out.has_logits:
        methods = _candidates_for(held_out)
    candidates = find_methods(methods, held_out.num_classes, held_out.history_type)
    exits = choose_exits(val, lambda kept: _rate(kept, candidates[0], held_out, val, rated_at))
    pooled = pool(held_out, val).keep_exits(exits)
    crossed = _crossed(candidates, pooled)
    hits = {name: found.hits(rated_at) for name, found in crossed.items()}
    by_name = {method.name: method for method in candidates}
    picked, why = {}, {}
    spent = "time" if val.unit == "seconds" else "compute"
    seconds = _seconds(crossed, pooled) if val.unit == "seconds" else None
    for number, budget in enumerate(budgets):
        picked[budget] = by_name[pick(hits, number, seconds)]
        here = {name: found[:, number] for name, found in hits.items()}
        why[budget] = _why_chosen(picked[budget], candidates, here, f"{budget:.0%} of the {spent}")
    accuracies = {
        name: dict(zip(budgets, found.mean(axis=0).tolist(), strict=False))
        for name, found in hits.items()
    }
    return _Choice(picked, exits, why, accuracies, pooled, crossed)


def _candidates_for(answers: Ledger) -> Sequence[str]:
    """Methods for answers: votes, where they can be counted, and what reads confidences."""
    if not MajorityVote().can_read(answers.history_type):
        return ANSWER_CANDIDATES
    return (*VOTES, *ANSWER_CANDIDATES) if subchains.states_confidence(answers) else VOTES


def _seconds(crossed: Mapping[str, CrossFit], ledger: Ledger) -> dict[str, float]:
    """By method, what a decision about one item takes, at all exits together."""
    shape = ledger.num_exits, ledger.num_classes, ledger.history_type
    return {
        name: float(decision_seconds(policy.answer, policy.scorer, *shape).sum())
        for name, policy in ((name, found.policies[0]) for name, found in crossed.items())
    }


def choose_exits(ledger: Ledger, rate: Rate) -> list[int]:
    """Drop the exit whose removal improves the rating most, one by one, while that clearly helps.

    Where samples are few, the best of several ratings owes something to luck, so a gain must be
    more than two standard errors.

    The last exit stays. So do exits whose heads cost next to nothing, and exits whose heads have
    no known cost of their own: a closed threshold saves as much as dropping them.

    Args:
        ledger: Any split, for its costs.
        rate: How good a set of exits is for every sample, `[N]`; higher is better.

    Returns:
        Indices of the exits to keep, ascending.

    Example:
        >>> from offramp import Costs
        >>> costs = Costs(stages=(1, 1, 1), heads=(1, 1, 1))
        >>> ledger = Ledger(np.zeros((4, 3, 2)), [0, 1, 0, 1], costs, split="val")
        >>> choose_exits(ledger, lambda exits: -float(0 in exits))
        [1, 2]
    """
    kept = list(range(ledger.num_exits))
    least = NEGLIGIBLE * ledger.reference_cost
    heads = ledger.cost_model.mean().heads.tolist()
    costly = [index for index in kept[:-1] if heads[index] > least]
    if not costly:
        return kept
    rating = np.atleast_1d(rate(kept))
    while costly and len(kept) > 2:
        without = {
            index: np.atleast_1d(rate([other for other in kept if other != index]))
            for index in costly
        }
        dropped = max(without, key=lambda index: float(without[index].mean()))
        if not is_clearly_more(without[dropped], rating):
            break
        rating = without[dropped]
        kept.remove(dropped)
        costly.remove(dropped)
    return kept


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


def _crossed(methods: Sequence[Method], pooled: Ledger) -> dict[str, CrossFit]:
    """Every method cross-fitted; those that differ in their thresholds only, once."""
    fits: dict[str, CrossFit] = {}
    found: dict[str, CrossFit] = {}
    for method in methods:
        fit = repr((method.scorer.describe(), method.answer.describe()))
        if fit not in fits:
            fits[fit] = CrossFit.of(method, pooled)
        found[method.name] = replace(fits[fit], method=method)
    return found


def _why_chosen(
    best: Method, methods: Sequence[Method], hits: Mapping[str, Hits], budget: str
) -> str:
    """What was chosen by hits `[N]`, by how much, and how sure that is."""
    first, reached = methods[0], {name: found.mean() for name, found in hits.items()}
    text = (
        f"{_words(best)}: {reached[best.name]:.2%} at {budget} "
        "by cross-validation on held_out and val"
    )
    if best is not first:
        gain = gain_of(hits[best.name], hits[first.name])
        low, value, high = (100 * end for end in (gain.low, gain.value, gain.high))
        text += f", {value:+.2f} [{low:+.2f}, {high:+.2f}] points against {_words(first)}"
        if not gain.is_clear:
            text += ", from which it cannot be told with so few samples"
    others = [method for method in methods if method is not best]
    if not others:
        return text
    rival = max(others, key=lambda method: reached[method.name])
    text += f"; the best other: {_words(rival)}, {reached[rival.name]:.2%}"
    if reached[rival.name] > reached[best.name]:
        text += ", which cannot be told from it here"
    return text


def _words(method: Method) -> str:
    """The method's label, with its thresholds unless the label has them."""
    return method.label if ":" in method.name else f"{method.label}, {method.thresholds}"
