"""A comparison as one tidy CSV: a row per method and figure, numbers in columns of their own."""

import csv
import io
from collections.abc import Iterator
from typing import Any

from offramp.evaluation.comparison import RIVALS, Comparison, MethodResult, accuracy_key

__all__ = ["tidy_csv"]

COLUMNS = ["method", "label", "figure", "value", "spread", "cost", "among_best"]


def tidy_csv(comparison: Comparison) -> str:
    """Methods and reference rows; accuracies as shares, empty cells where there is nothing.

    Example:
        >>> from offramp import compare, synthetic
        >>> table = compare(**synthetic.ledgers(samples=200), methods=["baseline"], resamples=10)
        >>> print(tidy_csv(table).splitlines()[1].split(",")[:3])
        ['baseline', 'Baseline', 'accuracy@0.25']
    """
    out = io.StringIO()
    gaps = [f"{part}_{rival}" for rival in RIVALS for part in ("minus", "low", "high")]
    writer = csv.DictWriter(out, [*COLUMNS, *gaps], lineterminator="\n")
    writer.writeheader()
    for method in comparison.methods:
        writer.writerows(_method_rows(method))
    writer.writerows(_reference_rows(comparison))
    return out.getvalue()


def _method_rows(method: MethodResult) -> Iterator[dict[str, Any]]:
    for column, figure in method.figures.items():
        row: dict[str, Any] = {
            "method": method.name,
            "label": method.label,
            "figure": column,
            "value": figure.value,
            "spread": figure.spread,
            "cost": figure.cost,
            "among_best": int(figure.among_best),
        }
        for rival, found in method.differences.items():
            if column in found:
                gap = found[column]
                row |= {f"minus_{rival}": gap.value, f"low_{rival}": gap.low}
                row[f"high_{rival}"] = gap.high
        yield row


def _reference_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    rows = comparison.references
    for budget, fixed, best in zip(comparison.budgets, rows.best_fixed, rows.oracle, strict=True):
        yield _row("best-fixed-exit", accuracy_key(budget), fixed.accuracy, fixed.cost)
        yield _row("oracle", accuracy_key(budget), best.accuracy, best.cost)
    yield _row("full-network", "accuracy", rows.full.accuracy, rows.full.cost)
    for fixed in rows.fixed:
        yield _row(f"exit-{fixed.exit_index}", "accuracy", fixed.accuracy, fixed.cost)


def _row(method: str, figure: str, value: float, cost: float) -> dict[str, Any]:
    return {"method": method, "figure": figure, "value": value, "cost": cost}
