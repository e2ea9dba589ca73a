"""`auto`: exits, answer, scorer and thresholds, chosen by cross-validation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.ledger.chunks import folds
from offramp.methods import Fits, Method, Plan, find_methods, keep_exits, register
from offramp.names import CANDIDATES
from offramp.policy import Policy
from offramp.replay import Replay
from offramp.scorers import MaxProbability
from offramp.thresholds.points import OperatingPoints, tune_points

Rate = Callable[[Sequence[int]], float]

NEGLIGIBLE = 1e-3  # of the network without exits; heads that cost less are not worth a search


def choose_exits(ledger: Ledger, rate: Rate) -> list[int]:
    """Drop the exit whose loss is the best riddance, again and again, while that helps.

    The last exit stays, and so do exits whose heads cost next to nothing, or where their cost is
    not known apart: dropping them saves nothing that a closed threshold would not.

    Args:
        ledger: Any split: its costs are looked at.
        rate: How good a set of exits is; higher is better.

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
    costly = [index for index in kept[:-1] if ledger.cost_model.heads[index] > least]
    if not costly:
        return kept
    best = rate(kept)
    while len(kept) > 2 and costly:
        rated = {index: rate([other for other in kept if other != index]) for index in costly}
        worst = max(rated, key=lambda index: rated[index])
        if rated[worst] <= best:
            break
        best = rated[worst]
        kept.remove(worst)
        costly.remove(worst)
    return kept


Hits = npt.NDArray[np.float64]
"""`[N, B]` in [0, 1]: whether each sample is answered rightly at each budget."""

FOLDS = 2
POINTS = 41  # operating points while methods are only compared


def hits_of(
    method: Method,
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float],
    fits: Fits | None = None,
) -> Hits:
    """Hits of a method on all samples of held_out and val, `[N, B]`.

    Fits on held_out that are not random are taken from `fits`, and left there.
    """
    known: Fits = {} if fits is None or "seed" in method.scorer.settings() else fits
    turns = (
        (held_out, val, known),
        (val.as_split("held_out"), held_out.as_split("val"), Fits()),
    )
    found = []
    for fitted_on, rated_on, kept in turns:
        policy, *_ = method.fitted(fitted_on, 1, kept)
        found.append(hits_on(policy, method.thresholds, rated_on, budgets))
    return np.concatenate(found)


def hits_on(policy: Policy, thresholds: str, val: Ledger, budgets: Sequence[float]) -> Hits:
    """Hits of a fitted policy on val, `[N, B]`, with thresholds from the other folds."""
    replay = policy.replay(val, "val")
    hits = np.zeros((len(val), len(budgets)))
    for others, fold in folds(len(val), FOLDS, val.group_numbers):
        rest = replay.take(others)
        inputs = rest.scores, rest.correct, rest.cost_shares
        points = tune_points(*inputs, 0.0, thresholds, POINTS, rest.chances)
        tuned = replace(replay.take(fold), thresholds=points.thresholds)
        hits[fold.numpy()] = _hits(tuned, budgets)
    return hits


def _hits(replay: Replay, budgets: Sequence[float]) -> Hits:
    """Right or wrong under the two points around each budget, mixed as a curve mixes them."""
    curve = replay.curve
    exits = replay.exits_by_point[curve.points]  # [P, n], by growing cost
    right = replay.correct.gather(1, exits.T.long()).double().numpy()  # [n, P]
    spent = curve.costs.numpy()
    columns = []
    for budget in budgets:
        if replay.point_costs.min() > budget + 1e-9:
            # A policy that cannot be that cheap must not be rated at the cost that it can have.
            columns.append(np.zeros(len(right)))
            continue
        place = float(np.interp(budget, spent, np.arange(len(spent))))
        left, share = int(place), place - int(place)
        after = min(left + 1, len(spent) - 1)
        columns.append((1 - share) * right[:, left] + share * right[:, after])
    return np.stack(columns, axis=1)


def pick(hits: dict[str, Hits], number: int) -> str:
    """The method for the budget with this number: good there, and the best over all budgets.

    The highest of several noisy figures is a lucky one. So all methods within one standard error
    of the best at this budget are kept, where the error is that of the difference on the same
    samples; of these, the one that is best on average over all budgets is taken.

    Args:
        hits: By method, on the same samples and for the same budgets.
        number: Of the budget.

    Example:
        >>> lucky, steady = np.zeros((100, 2)), np.zeros((100, 2))
        >>> lucky[:50, 0], steady[2:51, 0], steady[:50, 1] = 1, 1, 1
        >>> pick({"lucky": lucky, "steady": steady}, number=0)
        'steady'
    """
    best = max(hits, key=lambda name: hits[name][:, number].mean())
    close = []
    for name, found in hits.items():
        behind = hits[best][:, number] - found[:, number]
        error = behind.std() / len(behind) ** 0.5
        if behind.mean() <= error:
            close.append(name)
    return max(close, key=lambda name: hits[name].mean())


ANSWER_CANDIDATES = ("baseline", "baseline:smooth", "eefp-logistic", "break-even-no-ensemble")
"""The same where answers come without logits."""

POOLED = (0.25, 0.5, 0.75)
"""Budgets that methods are rated at, besides those that are asked for."""


def auto(
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float] = (0.25, 0.5, 0.75),
    methods: Sequence[str | Method] = CANDIDATES,
) -> Plan:
    """The best policy for each budget: exits, answer, scorer and thresholds.

    Methods are rated by cross-validation on held_out and val: each of the two is fitted on once,
    while the other gives thresholds and is counted, half by half. Of the methods that cannot be
    told from the best at a budget, the one that is best over all budgets is taken. It is fitted
    on held_out; val is held back for its final thresholds. Test is not touched.

    With costs in seconds (`Profile.timed`) a budget that no exit can keep is given the network
    without exits, and the plan says so: exits do not pay there.

    Args:
        held_out: To choose by, and to fit answers and scorers.
        val: To choose by, and to tune the thresholds of what is chosen.
        budgets: Mean costs as shares of the network without exits.
        methods: To choose from; the first is what gains are measured against.

    Raises:
        BudgetError: A budget is below the cost of the first exit, in another unit than seconds.

    Example:
        >>> from offramp import evaluate, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=500, exits=4)
        >>> plan = auto(splits["held_out"], splits["val"], [0.5], ["baseline", "margin:optimized"])
        >>> round(evaluate(plan[0.5], plan.view(splits["test"])).mean_cost, 1)
        0.5
    """
    (plan,) = Auto(candidates=tuple(methods)).plans(held_out, val, budgets, seeds=1)
    if held_out.unit == "seconds":
        plan = _where_exits_pay(plan, held_out, val)
    for budget, policy in plan.items():
        if len(policy.exits) > 1:
            policy.points.for_budget(budget)  # raises where a budget is out of reach
    fitted = {id(policy.scorer): policy for policy in plan.values()}
    confidences = {
        key: policy.fit_confidence(policy.view(held_out)).confidence
        for key, policy in fitted.items()
    }
    for policy in plan.values():
        policy.confidence = confidences[id(policy.scorer)]
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
            continue
        policies[budget] = full
        why[budget] = (
            f"do not use exits on this machine at this batch size for {budget:.0%} of the time of "
            f"the full network: {found}"
        )
    return replace(plan, policies=policies, why=why)


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

    The choice is made once, with the first seed; then what was chosen is fitted with every seed.

    Args:
        candidates: To choose from.

    Example:
        >>> from offramp import compare, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300, exits=4)
        >>> few = Auto(candidates=("baseline", "baseline:optimized"))
        >>> table = compare(**splits, methods=["baseline", few], budgets=[0.5], resamples=10)
        >>> table["auto"].settings["chosen"]["0.5"] in few.candidates
        True
    """

    name: str = "auto"
    label: str = "Auto"
    thresholds: str = "optimized"
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
        """Choose a method for each budget, and make plans of it as that method would."""
        fits = {} if fits is None else fits
        choice = _choose(held_out, val, budgets, self.candidates, fits)
        views = keep_exits(held_out, choice.exits), keep_exits(val, choice.exits)
        # Fits of all exits are no use for fewer of them.
        shared = fits if views[0] is held_out else {}
        chosen = {method.name: method for method in choice.methods.values()}
        made = {
            name: method.plans(*views, budgets, seeds, shared) for name, method in chosen.items()
        }
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
    """

    methods: dict[float, Method]
    exits: list[int]
    why: dict[float, str]
    accuracies: dict[str, dict[float, float]]

    def plan(self, policies: dict[float, Policy]) -> Plan:
        """The plan of these policies, with the reasons for the choice."""
        names = {budget: method.name for budget, method in self.methods.items()}
        return Plan(policies, self.exits, names, self.why, self.accuracies)


def _choose(
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float],
    methods: Sequence[str | Method],
    fits: Fits,
) -> _Choice:
    """Choose exits and, for each budget, a method."""
    if not budgets or len(set(budgets)) < len(budgets):
        raise ConfigError(f"`budgets` must be distinct and at least one, got {list(budgets)}")
    rated_at = [*budgets, *(budget for budget in POOLED if budget not in budgets)]
    if held_out.kind != "logits" and tuple(methods) == CANDIDATES:
        methods = ANSWER_CANDIDATES
    chosen = find_methods(methods, held_out.num_classes, held_out.kind)
    exits = choose_exits(val, lambda kept: _rate(kept, chosen[0], held_out, val, rated_at))
    views = keep_exits(held_out, exits), keep_exits(val, exits)
    shared = fits if views[0] is held_out else {}
    hits = {method.name: hits_of(method, *views, rated_at, shared) for method in chosen}
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
    return _Choice(picked, exits, why, accuracies)


def _rate(
    kept: Sequence[int],
    method: Method,
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float],
) -> float:
    """How good a set of exits is for the simplest method, with thresholds that fit it."""
    (policy,) = method.policy().fit_seeds(held_out.keep_exits(kept), [0])
    return float(hits_on(policy, "smooth", val.keep_exits(kept), budgets).mean())


def _reason(
    best: Method, methods: Sequence[Method], hits: dict[str, Hits], number: int, budget: str
) -> str:
    """What was chosen, and by how much."""
    first = methods[0]
    gains = 100 * (hits[best.name] - hits[first.name])[:, number]
    spread = gains.std() / len(gains) ** 0.5
    text = (
        f"{_words(best)}: {hits[best.name][:, number].mean():.2%} at {budget} "
        f"by cross-validation on held_out and val, {gains.mean():+.2f} ± {spread:.2f} points "
        f"against {_words(first)}"
    )
    others = [method for method in methods if method is not best]
    if not others:
        return text
    rival = max(others, key=lambda method: hits[method.name][:, number].mean())
    other = hits[rival.name][:, number].mean()
    text = f"{text}; the best other: {_words(rival)}, {other:.2%}"
    if other <= hits[best.name][:, number].mean():
        return text
    return f"{text}, which cannot be told from it here and is not as good over all budgets"


def _words(method: Method) -> str:
    """The method's label, with its thresholds unless the label has them."""
    return method.label if ":" in method.name else f"{method.label}, {method.thresholds}"
