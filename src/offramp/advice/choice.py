"""`auto`: exits, answer, scorer and thresholds, chosen by cross-validation."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offramp.advice.exits import choose_exits
from offramp.errors import BudgetError, ConfigError
from offramp.evaluation.curve import curve_of
from offramp.ledger import Ledger
from offramp.methods import Method, find_methods
from offramp.policy import Policy
from offramp.thresholds.points import tune_points
from offramp.tracing import Trace

__all__ = ["CANDIDATES", "Plan", "auto"]

CANDIDATES = (
    *("baseline", "baseline:optimized", "ensemble:optimized"),
    *("ours:optimized", "ours-no-history:optimized", "value:optimized", "ours-ensemble:optimized"),
)
"""Methods that `auto` chooses from; the first is what the others are held against."""

FOLDS = 5
POINTS = 41  # operating points while methods are only compared


@dataclass(frozen=True)
class Plan(Mapping[float, Policy]):
    """A policy for every budget, with the reason for it.

    Attributes:
        policies: By budget, each at its operating point.
        exits: Numbers of the exits that are kept; policies want `plan.view(ledger)`.
        why: By budget, a sentence.
        accuracies: By method and budget, cross-validated on val.
    """

    policies: dict[float, Policy]
    exits: list[int]
    why: dict[float, str]
    accuracies: dict[str, dict[float, float]]

    def __getitem__(self, budget: float) -> Policy:
        """The policy for one of the budgets that were asked for."""
        if budget not in self.policies:
            known = ", ".join(f"{known:g}" for known in self.policies)
            raise BudgetError(f"this plan is for the budgets {known}, got {budget}")
        return self.policies[budget]

    def __iter__(self) -> Iterator[float]:
        return iter(self.policies)

    def __len__(self) -> int:
        return len(self.policies)

    def view(self, ledger: Ledger) -> Ledger:
        """A ledger with the exits that are kept."""
        return ledger if len(self.exits) == ledger.num_exits else ledger.keep_exits(self.exits)


def auto(
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float] = (0.25, 0.5, 0.75),
    methods: Sequence[str | Method] = CANDIDATES,
) -> Plan:
    """The best policy for each budget: exits, answer, scorer and thresholds.

    Every method is fitted on held_out. Then val is cut into five folds; thresholds come from four
    of them and the accuracy from the fifth, which is held back, in turn. The best method for a
    budget gets its final thresholds from all of val. Test is not touched.

    Args:
        held_out: To fit answers and scorers.
        val: To choose by, and to tune the thresholds of what is chosen.
        budgets: Mean costs as shares of the network without exits.
        methods: To choose from; the first is what gains are measured against.

    Example:
        >>> from offramp import evaluate, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=500, exits=4)
        >>> plan = auto(splits["held_out"], splits["val"], [0.5], ["baseline", "margin:optimized"])
        >>> round(evaluate(plan[0.5], plan.view(splits["test"])).mean_cost, 1)
        0.5
    """
    if not budgets or len(set(budgets)) < len(budgets):
        raise ConfigError(f"`budgets` must be distinct and at least one, got {list(budgets)}")
    chosen = find_methods(methods, held_out.num_classes)
    exits = choose_exits(val, lambda kept: _rate(kept, chosen[0], held_out, val, budgets))
    kept = [ledger.keep_exits(exits) for ledger in (held_out, val)]
    rated, fitted = {}, {}
    for method in chosen:
        fitted[method.name] = method.policy().fit(kept[0])
        rated[method.name] = _crossvalidate(method, fitted[method.name], kept[1], budgets)
    policies, why = {}, {}
    for number, budget in enumerate(budgets):
        ranking = sorted(chosen, key=lambda m: -rated[m.name][:, number].mean())
        best = ranking[0]
        tuned = copy(fitted[best.name]).tune(kept[1], best.thresholds)
        policies[budget] = tuned.at(budget=budget)
        why[budget] = _reason(ranking, rated, chosen[0], number, budget)
    accuracies = {
        name: dict(zip(budgets, folds.mean(axis=0).tolist(), strict=True))
        for name, folds in rated.items()
    }
    return Plan(policies, exits, why, accuracies)


def _crossvalidate(
    method: Method, policy: Policy, val: Ledger, budgets: Sequence[float]
) -> np.ndarray:
    """Accuracies `[folds, budgets]` on the fold that thresholds were not chosen on."""
    trace = policy.trace(val, "val")
    costs = policy.costs(val) / val.reference_cost
    order = torch.randperm(len(val), generator=torch.Generator().manual_seed(0))
    folds = order.tensor_split(FOLDS)
    return np.array(
        [_measure_fold(trace, costs, method.thresholds, fold, budgets) for fold in folds]
    )


def _measure_fold(
    trace: Trace, costs: Tensor, thresholds: str, fold: Tensor, budgets: Sequence[float]
) -> list[float]:
    others = torch.ones(len(trace.labels), dtype=torch.bool)
    others[fold] = False
    points = tune_points(
        trace.scores[others], trace.correct[others], costs, 0.0, thresholds, POINTS
    )
    curve = curve_of(trace.take(fold), points.thresholds, costs)
    # A policy that cannot be that cheap must not be rated at the cost that it can have.
    return [curve.at(b).accuracy if costs[0] <= b + 1e-9 else 0.0 for b in budgets]


def _rate(
    kept: Sequence[int],
    method: Method,
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float],
) -> float:
    """How good a set of exits is for the simplest method, with thresholds that fit it."""
    parts = held_out.keep_exits(kept), val.keep_exits(kept)
    policy = method.policy().fit(parts[0])
    best = Method("rate", "Rate", method.scorer, method.answer, "optimized")
    return float(_crossvalidate(best, policy, parts[1], budgets).mean())


def _reason(
    ranking: Sequence[Method],
    rated: dict[str, np.ndarray],
    first: Method,
    number: int,
    budget: float,
) -> str:
    """What was chosen, and by how much."""
    best = ranking[0]
    gains = 100 * (rated[best.name] - rated[first.name])[:, number]
    spread = gains.std(ddof=1) / len(gains) ** 0.5
    text = (
        f"{_words(best)}: {rated[best.name][:, number].mean():.2%} at "
        f"{budget:.0%} of the compute by {FOLDS}-fold cross-validation on val, "
        f"{gains.mean():+.2f} ± {spread:.2f} points against {_words(first)}"
    )
    if len(ranking) == 1:
        return text
    second = ranking[1]
    return f"{text}; next best: {_words(second)}, {rated[second.name][:, number].mean():.2%}"


def _words(method: Method) -> str:
    """The method's label, with its thresholds unless the label has them."""
    return method.label if ":" in method.name else f"{method.label}, {method.thresholds}"
