"""The promises of a threshold method."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from offramp.testing.promises import Promises, check_promises, expect
from offramp.thresholds import exits_taken
from offramp.thresholds.points import OperatingPoints
from offramp.thresholds.tuning import ScoredSamples, ThresholdMethod

POINTS = 21
SEARCH_TOLERANCE = 0.02  # of accuracy
PROMISES = Promises()


def check_threshold_method(method: ThresholdMethod) -> None:
    """Check a threshold method against every promise that the library relies on.

    Args:
        method: Takes scores `[N, M]`, correct `[N, M]`, costs `[M]` and a number of points, and
            returns thresholds `[P, M]`. To use it by name, add it:
            `offramp.registry.THRESHOLDS.add(name, method)`.

    Raises:
        PromiseError: With each broken promise, what was expected and what happened.

    Example:
        >>> from offramp.registry import THRESHOLDS
        >>> check_threshold_method(THRESHOLDS["geometric"])
        >>> def one_size_fits_all(scores, correct, costs, points):
        ...     return torch.zeros(1, len(costs), dtype=torch.float64)
        >>> check_threshold_method(one_size_fits_all)
        Traceback (most recent call last):
        offramp.errors.PromiseError: one_size_fits_all breaks the promise 'the cost on val stays
        within the budget': expected a point for every budget from the cost of exit 0, ...
    """
    name = getattr(method, "__name__", type(method).__name__)
    check_promises(name, PROMISES, MethodUnderTest(method))


def _inputs() -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Scores `[N, M]`, correct `[N, M]` and costs `[M]`, by description.

    As in practice, the scores of the last exit are `+inf`.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = {}
    for name, exits, score in (
        ("distinct scores", 4, lambda x: x),
        ("two exits", 2, lambda x: x),
        ("many tied scores", 4, lambda x: x.round()),
        ("all scores equal", 3, torch.zeros_like),
    ):
        scores = score(torch.randn(200, exits, generator=generator))
        odds = scores + torch.linspace(0, 2, exits)
        correct = torch.rand(200, exits, generator=generator) < odds.sigmoid()
        scores[:, -1] = torch.inf
        inputs[name] = scores, correct, torch.linspace(0.2, 1.0, exits, dtype=torch.float64)
    return inputs


@dataclass
class MethodRun:
    """What a method was given and what it returned."""

    scores: Tensor
    correct: Tensor
    costs: Tensor
    thresholds: Tensor

    @property
    def points(self) -> OperatingPoints:
        """The operating points that a policy would keep."""
        val = ScoredSamples(self.scores, self.correct, self.costs)
        return val.points_of(self.thresholds, 0.5)


@dataclass
class MethodUnderTest:
    """A threshold method under test, run on every input once."""

    method: ThresholdMethod

    def run(self, scores: Tensor, correct: Tensor, costs: Tensor) -> MethodRun:
        """The method on copies of these."""
        found = self.method(scores.clone(), correct.clone(), costs.clone(), POINTS)
        return MethodRun(scores, correct, costs, found)

    @cached_property
    def runs(self) -> dict[str, MethodRun]:
        """By description of the input."""
        return {name: self.run(*inputs) for name, inputs in _inputs().items()}


@PROMISES.add("thresholds are one row per operating point", basic=True)
def _thresholds_are_points(tested: MethodUnderTest) -> None:
    for name, run in tested.runs.items():
        found, exits = run.thresholds, len(run.costs)
        kept = isinstance(found, Tensor) and found.ndim == 2 and found.shape[1] == exits
        shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        expect(kept, f"a tensor [P, M] with M = {exits} ({name})", f"got {shape}")
        text = f"1 to {POINTS} operating points, at most as many as requested ({name})"
        expect(1 <= len(found) <= POINTS, text, f"got {len(found)}")
        text = "float64 thresholds, which compare exactly with scores of any type"
        expect(found.dtype == torch.float64, text, f"got {found.dtype}")


@PROMISES.add("thresholds are never NaN", basic=True)
def _thresholds_are_limits(tested: MethodUnderTest) -> None:
    for name, run in tested.runs.items():
        count = int(run.thresholds.isnan().sum())
        text = "numbers, +inf to close an exit, or -inf to stop every sample"
        expect(count == 0, text, f"{count} are NaN ({name})")


@PROMISES.add("thresholds lie between scores")
def _thresholds_lie_between(tested: MethodUnderTest) -> None:
    for name, run in tested.runs.items():
        for exit_index in range(len(run.costs) - 1):
            column = run.thresholds[:, exit_index]
            hit = column[torch.isin(column, run.scores[:, exit_index].double())]
            text = "thresholds midway between scores, where rounding changes no decision"
            happened = f"{hit[:1].tolist()} is a score at exit {exit_index} ({name})"
            expect(not len(hit), text, happened)


@PROMISES.add("the cost on val stays within the budget", basic=True)
def _budgets_are_kept(tested: MethodUnderTest) -> None:
    for name, run in tested.runs.items():
        points, cheapest = run.points, float(run.costs[0])
        reached = float(points.budgets[0])
        text = f"a point for every budget from the cost of exit 0, {cheapest:.3f}, upwards"
        expect(reached <= cheapest + 1e-9, text, f"the cheapest costs {reached:.3f} ({name})")
        for budget in torch.linspace(cheapest, 1.0, 7).tolist():
            chosen = points.thresholds[points.for_budget(max(budget, cheapest))]
            cost = float(run.costs[exits_taken(run.scores, chosen).long()].mean())
            text = f"a cost on val of at most the budget, {budget:.3f}"
            expect(cost <= max(budget, cheapest) + 1e-6, text, f"it is {cost:.3f} ({name})")


@PROMISES.add("a larger budget buys accuracy")
def _budgets_are_used(tested: MethodUnderTest) -> None:
    run = tested.runs["distinct scores"]
    best = float(run.points.accuracies.max())
    first = float(run.correct[:, 0].double().mean())
    text = "some point to be more accurate than stopping every sample at exit 0"
    expect(best > first, text, f"the best reaches {best:.3f}, exit 0 {first:.3f}")


@PROMISES.add("the order of the samples does not matter")
def _order_does_not_matter(tested: MethodUnderTest) -> None:
    run = tested.runs["distinct scores"]
    order = torch.randperm(len(run.scores), generator=torch.Generator().manual_seed(1))
    inputs = run.scores[order], run.correct[order], run.costs
    other = tested.run(*inputs)
    for budget in (0.4, 0.6, 0.8):
        one, two = (
            float(points.accuracies[points.for_budget(budget)])
            for points in (run.points, other.points)
        )
        # Summation order may change the path of a search, but not how good its result is.
        text = f"the same accuracy on val at the budget {budget} for samples in another order"
        expect(abs(one - two) <= SEARCH_TOLERANCE, text, f"it is {one:.3f} and {two:.3f}")


@PROMISES.add("the same scores give the same thresholds", basic=True)
def _method_repeats(tested: MethodUnderTest) -> None:
    for name, run in tested.runs.items():
        inputs = run.scores.clone(), run.correct.clone(), run.costs.clone()
        found = tested.method(*inputs, POINTS)
        kept = found.shape == run.thresholds.shape and torch.equal(found, run.thresholds)
        expect(kept, "the same thresholds from the same scores", f"they differ ({name})")
        left = (run.scores, run.correct, run.costs)
        kept = all(torch.equal(one, two) for one, two in zip(inputs, left, strict=True))
        expect(kept, "scores, correct and costs unchanged", f"it changed them ({name})")
