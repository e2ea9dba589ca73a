"""How much methods gain over the baseline on each network, and which part of them brings it."""

from collections.abc import Callable, Sequence

import numpy as np

from offramp.errors import ConfigError
from offramp.evaluation import Comparison
from offramp.evaluation.comparison import accuracy_key
from offramp.report import Table
from offramp.report.tables import Cell, gap_cell, gap_share_cell
from offramp.studies.results import CaseResult, Findings, cells

RIVALS = {"eefp": "paper", "auto": "auto"}
# From one part of a method to all of them.
PARTS = {
    "baseline:optimized": "thresholds alone",
    "eefp": "the paper's score alone",
    "eefp:optimized": "the paper's score, thresholds",
    "eefp-no-history:optimized": "the score without history, thresholds",
    "class-ensemble": "answers from all exits alone",
    "class-ensemble:optimized": "answers from all exits, thresholds",
    "eefp-no-history-class-ensemble:optimized": "all three",
    "value:optimized": "value of continuing, thresholds",
    "forecast:optimized": "forecast, thresholds",
    "eenet": "EENet, post hoc",
    "auto": "what auto chooses",
}


def gains(results: Sequence[CaseResult]) -> Findings:
    """The paper's own method and `auto` on every network, then the parts over all networks.

    Raises:
        ConfigError: The study does not compare what it takes.
    """
    for name in ("baseline", *RIVALS):
        if name not in {method.name for method in results[0].comparison.methods}:
            raise ConfigError(f"[report] `analyses`: gains need {name!r} among the methods")
    return Findings(
        "What is gained over the baseline",
        "Accuracy in points over max probability with geometric thresholds, at the same cost. The "
        "paper's own method is the corrector with history and geometric thresholds.",
        [_gained(results), _closed(results), _parts(results), _choices(results)],
    )


def _gained(results: Sequence[CaseResult]) -> Table:
    def cell(comparison: Comparison, name: str, budget: float) -> Cell:
        return gap_cell(comparison[name].differences["baseline"].get(accuracy_key(budget)), 100)

    title = "Gain of the paper's method and of auto, with 95 % intervals"
    caption = "Bold: the paired interval leaves zero out."
    return _per_network("gains", title, results, cell, caption)


def _closed(results: Sequence[CaseResult]) -> Table:
    def cell(comparison: Comparison, name: str, budget: float) -> Cell:
        return gap_share_cell(comparison.closed_gap(name, budget))

    title = "Share of the gap between baseline and oracle that is closed"
    return _per_network("gains-closed", title, results, cell)


def _per_network(
    name: str,
    title: str,
    results: Sequence[CaseResult],
    cell: Callable[[Comparison, str, float], Cell],
    caption: str = "",
) -> Table:
    """The paper's method and `auto` side by side, budget by budget; a row for each network."""
    columns = [(budget, who) for budget in results[0].comparison.budgets for who in RIVALS]
    rows = [
        [
            Cell(result.case.title),
            *(cell(result.comparison, method, budget) for budget, method in columns),
        ]
        for result in results
    ]
    heads = [f"{RIVALS[who]}, {budget:.0%}" for budget, who in columns]
    return Table(name, title, ["network", *heads], rows, caption)


def _parts(results: Sequence[CaseResult]) -> Table:
    budgets = results[0].comparison.budgets
    known = {method.name for method in results[0].comparison.methods}
    rows = []
    for name, part in PARTS.items():
        if name not in known:
            continue
        row: list[object] = [part, name]
        for budget in budgets:
            found = [100 * _gain(result.comparison, name, budget) for result in results]
            low, high = min(found), max(found)
            row.append(f"{np.mean(found):+.2f} ({low:+.2f} to {high:+.2f})")
        rows.append(cells(*row))
    return Table(
        "gains-parts",
        "Which part brings what: mean gain over "
        f"{len(results)} network{'s' * (len(results) > 1)} (least and most)",
        ["part", "method", *(f"{budget:.0%}" for budget in budgets)],
        rows,
    )


def _choices(results: Sequence[CaseResult]) -> Table:
    budgets = results[0].comparison.budgets
    rows = []
    for result in results:
        chosen = result.comparison["auto"].settings["chosen"]
        rows.append(cells(result.case.title, *(chosen[f"{b:g}"] for b in budgets)))
    return Table(
        "gains-chosen",
        "What auto chose, from held_out and val alone",
        ["network", *(f"{budget:.0%}" for budget in budgets)],
        rows,
    )


def _gain(comparison: Comparison, name: str, budget: float) -> float:
    column = accuracy_key(budget)
    reached, baseline = (comparison[each].figures[column].value for each in (name, "baseline"))
    return reached - baseline
