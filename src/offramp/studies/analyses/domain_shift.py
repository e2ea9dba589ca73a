"""Trained on one domain, tested on others: accuracy, calibration, and the drift of the cost."""

from collections.abc import Sequence

import numpy as np

from offramp.evaluation.columns import accuracy_key
from offramp.evaluation.results import MethodResult
from offramp.report import ResultTable, Section
from offramp.report.tables import cells
from offramp.studies.results import ExperimentResult


def domain_shift(results: Sequence[ExperimentResult]) -> Section:
    """One table per budget for cost drift, and one for accuracy, ECE and EEFP on each domain."""
    budgets = results[0].comparison.budgets
    return Section(
        "On other domains",
        note="held_out and val come from the source domain alone: thresholds are chosen without "
        "any sample of the target. On the target the mean cost drifts away from the budget, "
        "and nothing keeps it there.",
        tables=[_figures(results), *(_drift(results, budget) for budget in budgets)],
    )


def _figures(results: Sequence[ExperimentResult]) -> ResultTable:
    budgets = results[0].comparison.budgets
    rows = []
    for result in results:
        for method in result.comparison.methods:
            numbers = method.figures
            accuracies = [f"{100 * numbers[accuracy_key(b)].value:.2f}" for b in budgets]
            others = [f"{numbers[name].value:.3f}" for name in ("ece", "eefp")]
            rows.append(cells(result.experiment.title, method.label, *accuracies, *others))
    return ResultTable(
        "domains",
        "Accuracy (%) at equal cost, ECE and EEFP",
        ["source → target", "method", *(f"{b:.0%}" for b in budgets), "ECE", "EEFP"],
        rows,
        "Accuracies are compared at the cost spent on the target.",
    )


def _drift(results: Sequence[ExperimentResult], budget: float) -> ResultTable:
    methods = results[0].comparison.methods
    rows = []
    for result in results:
        row: list[str] = [result.experiment.title]
        for method in methods:
            cost, accuracy = _at(result.comparison[method.name], budget)
            row.append(f"{cost:.1%} ({100 * (cost - budget):+.1f}), {100 * accuracy:.2f}")
        rows.append(cells(*row))
    return ResultTable(
        f"drift-{round(100 * budget)}",
        f"Cost on the target of the policy for a budget of {budget:.0%} on val of the source",
        ["source → target", *(method.label for method in methods)],
        rows,
        "Cost as a share of the network without exits, its distance from the budget in points (in "
        "brackets), and the accuracy (%); first seed.",
    )


def _at(method: MethodResult, budget: float) -> tuple[float, float]:
    points = method.diagnostics.points
    place = int(np.abs(points.budgets - budget).argmin())
    return float(points.costs[place]), float(points.accuracies[place])
