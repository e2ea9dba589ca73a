"""The promises of a threshold method."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from offramp.testing.promises import Promise, expect, hold
from offramp.testing.subjects import threshold_cases
from offramp.thresholds import exits_taken
from offramp.thresholds.points import OperatingPoints, ThresholdMethod, points_of

POINTS = 21
SEARCH_TOLERANCE = 0.02  # of accuracy


def check_threshold_method(method: ThresholdMethod) -> None:
    """Hold a threshold method against every promise that the library builds on.

    Args:
        method: Takes scores `[N, M]`, correct `[N, M]`, costs `[M]` and a number of points, and
            gives thresholds `[P, M]`. To use it by name, put it into
            `offramp.thresholds.THRESHOLD_METHODS`.

    Raises:
        PromiseError: With each broken promise, what was expected, and what happened.

    Example:
        >>> from offramp import thresholds
        >>> check_threshold_method(thresholds.THRESHOLD_METHODS["geometric"])
        >>> def one_size_fits_all(scores, correct, costs, points):
        ...     return torch.zeros(1, len(costs), dtype=torch.float64)
        >>> check_threshold_method(one_size_fits_all)
        Traceback (most recent call last):
        offramp.errors.PromiseError: one_size_fits_all breaks 2 promises: ...
    """
    name = getattr(method, "__name__", type(method).__name__)
    hold(name, THRESHOLD_PROMISES, MethodSpecimen(method))


@dataclass
class Case:
    """What a method was given, and what it gave."""

    scores: Tensor
    correct: Tensor
    costs: Tensor
    thresholds: Tensor

    @property
    def points(self) -> OperatingPoints:
        """The operating points that a policy would keep."""
        return points_of(self.thresholds, self.scores, self.correct, self.costs, 0.5)


@dataclass
class MethodSpecimen:
    """A threshold method under examination."""

    method: ThresholdMethod

    def ask(self, scores: Tensor, correct: Tensor, costs: Tensor) -> Tensor:
        """What it gives for copies of these."""
        return self.method(scores.clone(), correct.clone(), costs.clone(), POINTS)

    @cached_property
    def cases(self) -> dict[str, Case]:
        """What it gives for every case, by what is special about the case."""
        return {
            name: Case(*inputs, self.ask(*inputs)) for name, inputs in threshold_cases().items()
        }


def _thresholds_are_points(specimen: MethodSpecimen) -> None:
    for name, case in specimen.cases.items():
        found, exits = case.thresholds, len(case.costs)
        kept = isinstance(found, Tensor) and found.ndim == 2 and found.shape[1] == exits
        shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        expect(kept, f"a tensor [P, M] with M = {exits} ({name})", f"got {shape}")
        text = f"1 to {POINTS} operating points, as many as were asked for or fewer ({name})"
        expect(1 <= len(found) <= POINTS, text, f"got {len(found)}")
        text = "float64, which decides as the scores' own type does"
        expect(found.dtype == torch.float64, text, f"got {found.dtype}")


def _thresholds_are_limits(specimen: MethodSpecimen) -> None:
    for name, case in specimen.cases.items():
        count = int(case.thresholds.isnan().sum())
        text = "numbers, or +inf to close an exit, or -inf to stop all"
        expect(count == 0, text, f"there are {count} NaN ({name})")


def _thresholds_lie_between(specimen: MethodSpecimen) -> None:
    for name, case in specimen.cases.items():
        for m in range(len(case.costs) - 1):
            column = case.thresholds[:, m]
            hit = column[torch.isin(column, case.scores[:, m].double())]
            text = "thresholds midway between neighbouring scores, where rounding cannot flip them"
            expect(not len(hit), text, f"{hit[:1].tolist()} is a score at exit {m} ({name})")


def _budgets_are_kept(specimen: MethodSpecimen) -> None:
    for name, case in specimen.cases.items():
        points, cheapest = case.points, float(case.costs[0])
        reached = float(points.budgets[0])
        text = f"a point for every budget from that of exit 0 alone, {cheapest:.3f}, on"
        expect(reached <= cheapest + 1e-9, text, f"the cheapest costs {reached:.3f} ({name})")
        for budget in torch.linspace(cheapest, 1.0, 7).tolist():
            chosen = points.thresholds[points.for_budget(max(budget, cheapest))]
            cost = float(case.costs[exits_taken(case.scores, chosen).long()].mean())
            text = f"a cost on val of at most the budget, {budget:.3f}"
            expect(cost <= max(budget, cheapest) + 1e-6, text, f"it is {cost:.3f} ({name})")


def _budgets_are_used(specimen: MethodSpecimen) -> None:
    case = specimen.cases["scores that all differ"]
    best = float(case.points.accuracies.max())
    first = float(case.correct[:, 0].double().mean())
    text = "some point to be more accurate than stopping everybody at exit 0"
    expect(best > first, text, f"the best has {best:.3f}, exit 0 has {first:.3f}")


def _order_does_not_matter(specimen: MethodSpecimen) -> None:
    case = specimen.cases["scores that all differ"]
    order = torch.randperm(len(case.scores), generator=torch.Generator().manual_seed(1))
    inputs = case.scores[order], case.correct[order], case.costs
    other = Case(*inputs, specimen.ask(*inputs))
    for budget in (0.4, 0.6, 0.8):
        one, two = (float(c.points.accuracies[c.points.for_budget(budget)]) for c in (case, other))
        # Sums in another order may tip a search the other way; they do not change what it finds.
        text = f"the same accuracy on val at the budget {budget} for samples in another order"
        expect(abs(one - two) <= SEARCH_TOLERANCE, text, f"it is {one:.3f} and {two:.3f}")


def _method_repeats(specimen: MethodSpecimen) -> None:
    for name, case in specimen.cases.items():
        inputs = case.scores.clone(), case.correct.clone(), case.costs.clone()
        found = specimen.method(*inputs, POINTS)
        kept = found.shape == case.thresholds.shape and torch.equal(found, case.thresholds)
        expect(kept, "the same thresholds from the same scores", f"they differ ({name})")
        left = (case.scores, case.correct, case.costs)
        kept = all(torch.equal(one, two) for one, two in zip(inputs, left, strict=True))
        expect(kept, "scores, correct and costs as they were", f"it changed them ({name})")


THRESHOLD_PROMISES = [
    Promise("thresholds are one row per operating point", _thresholds_are_points, basic=True),
    Promise("+inf closes an exit", _thresholds_are_limits, basic=True),
    Promise("thresholds lie between scores", _thresholds_lie_between),
    Promise("the cost on val is not above the budget", _budgets_are_kept, basic=True),
    Promise("a larger budget buys accuracy", _budgets_are_used),
    Promise("the same scores give the same thresholds", _method_repeats, basic=True),
    Promise("the order of the samples does not matter", _order_does_not_matter),
]
