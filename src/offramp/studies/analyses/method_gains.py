"""How much methods gain over the baseline on each network, and which component gains it."""

from collections.abc import Callable, Sequence

import numpy as np

from offramp.errors import ConfigError
from offramp.evaluation import Comparison
from offramp.evaluation.columns import accuracy_key
from offramp.report import ResultTable, Section
from offramp.report.tables import Cell, cells, gap_cell, share_cell
from offramp.studies.results import ExperimentResult

SHOWN = {"eefp": "paper", "auto": "auto"}
# From single components of a method to all of them together.
COMPONENTS = {
    "baseline:smooth": "thresholds alone",
    "eefp": "the paper's score alone",
    "eefp:smooth": "the paper's score, thresholds",
    "eefp-no-history:smooth": "the score without history, thresholds",
    "class-ensemble": "answers from all exits alone",
    "class-ensemble:smooth": "answers from all exits, thresholds",
    "eefp-no-history-class-ensemble:smooth": "all three",
    "eefp-logistic": "ridge logistic corrector, smooth thresholds",
    "break-even": "break-even prices",
    "eenet": "EENet, post hoc",
    "auto": "what auto chooses",
}


def method_gains(results: Sequence[ExperimentResult]) -> Section:
    """The paper's method and `auto` on every network, then single components over all networks."""
    for name in ("baseline", *SHOWN):
        if name not in {method.name for method in results[0].comparison.methods}:
            raise ConfigError(f"[report] `analyses`: gains need {name!r} among the methods")
    return Section(
        "Gains over the baseline",
        note="Accuracy in points over max probability with geometric thresholds, at the same "
        "cost. The paper's method is the corrector with history and geometric thresholds.",
        tables=[_gained(results), _reachable(results), _components(results), _choices(results)],
    )


def _gained(results: Sequence[ExperimentResult]) -> ResultTable:
    def cell(comparison: Comparison, name: str, budget: float) -> Cell:
        return gap_cell(comparison[name].differences["baseline"].get(accuracy_key(budget)), 100)

    title = "Gain of the paper's method and of auto, with 95 % intervals"
    caption = "Bold: the paired interval excludes zero."
    return _per_network("gains", title, results, cell, caption)


def _reachable(results: Sequence[ExperimentResult]) -> ResultTable:
    def cell(comparison: Comparison, name: str, budget: float) -> Cell:
        return share_cell(comparison.reachable_share(name, budget))

    title = "Share of the reachable gap that is closed"
    caption = (
        "From the baseline to a rule that sees the logits of all exits, but no label; - where "
        "that is less than half a point."
    )
    return _per_network("gains-reachable", title, results, cell, caption)


def _per_network(
    name: str,
    title: str,
    results: Sequence[ExperimentResult],
    cell: Callable[[Comparison, str, float], Cell],
    caption: str = "",
) -> ResultTable:
    """The paper's method and `auto` side by side, budget by budget; a row for each network."""
    columns = [(budget, name) for budget in results[0].comparison.budgets for name in SHOWN]
    rows = [
        cells(
            result.experiment.title,
            *(cell(result.comparison, method, budget) for budget, method in columns),
        )
        for result in results
    ]
    heads = [f"{SHOWN[method]}, {budget:.0%}" for budget, method in columns]
    return ResultTable(name, title, ["network", *heads], rows, caption)


def _components(results: Sequence[ExperimentResult]) -> ResultTable:
    budgets = results[0].comparison.budgets
    known = {method.name for method in results[0].comparison.methods}
    rows = []
    for name, component in COMPONENTS.items():
        if name not in known:
            continue
        row: list[object] = [component, name]
        for budget in budgets:
            found = [100 * _gain(result.comparison, name, budget) for result in results]
            low, high = min(found), max(found)
            row.append(f"{np.mean(found):+.2f} ({low:+.2f} to {high:+.2f})")
        rows.append(cells(*row))
    return ResultTable(
        "gains-parts",
        "What each component gains: mean over "
        f"{len(results)} network{'s' * (len(results) > 1)} (smallest to largest)",
        ["component", "method", *(f"{budget:.0%}" for budget in budgets)],
        rows,
    )


def _choices(results: Sequence[ExperimentResult]) -> ResultTable:
    budgets = results[0].comparison.budgets
    rows = []
    for result in results:
        chosen = result.comparison["auto"].settings["chosen"]
        rows.append(cells(result.experiment.title, *(chosen[f"{b:g}"] for b in budgets)))
    return ResultTable(
        "gains-chosen",
        "What auto chose, from held_out and val alone",
        ["network", *(f"{budget:.0%}" for budget in budgets)],
        rows,
    )


def _gain(comparison: Comparison, name: str, budget: float) -> float:
    return comparison[name].accuracy(budget) - comparison["baseline"].accuracy(budget)
