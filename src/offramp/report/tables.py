"""Comparisons as tables: one neutral form, and Markdown, CSV, LaTeX and terminal renderings."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from offramp.evaluation.bootstrap import Interval
from offramp.evaluation.comparison import RIVALS, Comparison, Figure, MethodResult, accuracy_key
from offramp.evaluation.references import FixedExit
from offramp.replay import AccuracyAt

FEW = 200  # test samples, below which half a point cannot be seen


@dataclass(frozen=True)
class Cell:
    """A piece of text, marked or not."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Table:
    r"""A table before it is rendered.

    Example:
        >>> table = Table("t", "A title", ["method", "x"], [[Cell("a|b"), Cell("1", bold=True)]])
        >>> print(table.markdown())
        **A title**
        <BLANKLINE>
        | method | x |
        | --- | ---: |
        | a\|b | **1** |
        >>> print(table.latex().splitlines()[7])
        a|b & \textbf{1} \\
    """

    name: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    caption: str = ""

    def markdown(self) -> str:
        """GitHub's Markdown, the caption below."""
        align = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [_row(self.columns), _row(align)]
        for row in self.rows:
            texts = [cell.text.replace("|", "\\|") for cell in row]
            lines.append(
                _row([f"**{t}**" if c.bold else t for t, c in zip(texts, row, strict=True)])
            )
        parts = [f"**{self.title}**", "\n".join(lines), self.caption]
        return "\n\n".join(part for part in parts if part)

    def latex(self) -> str:
        """A `table` with a booktabs `tabular`."""
        lines = [
            "\\begin{table}",
            f"\\caption{{{_latex(f'{self.title}. {self.caption}'.strip())}}}",
            f"\\label{{tab:{self.name}}}",
            f"\\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
            "\\toprule",
            _latex_row([_latex(column) for column in self.columns]),
            "\\midrule",
        ]
        for row in self.rows:
            texts = [_latex(cell.text) for cell in row]
            marked = [f"\\textbf{{{t}}}" if c.bold else t for t, c in zip(texts, row, strict=True)]
            lines.append(_latex_row(marked))
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"])

    def rich(self) -> RichTable:
        """For the terminal."""
        table = RichTable(
            title=self.title, caption=self.caption, caption_justify="left", box=SIMPLE_HEAD
        )
        for number, column in enumerate(self.columns):
            # Text, not markup: names come from users, and brackets must stay brackets.
            table.add_column(Text(column), justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*(Text(cell.text, "bold" if cell.bold else "") for cell in row))
        return table


def tables(comparison: Comparison) -> list[Table]:
    """The tables of a comparison: methods, differences to the rivals, and each exit alone."""
    found = [_methods(comparison)]
    for rival in ("baseline", "temperature"):
        if any(rival in method.differences for method in comparison.methods):
            found.append(_differences(comparison, rival))
    compared = {method.name for method in comparison.methods}
    if "baseline" in compared and len(compared) > 1:
        found.append(_closed_gaps(comparison))
    return [*found, _exits(comparison)]


def _methods(comparison: Comparison) -> Table:
    shares = [_share(budget) for budget in comparison.budgets]
    seeds = comparison.setting["seeds"]
    return Table(
        "methods",
        "Accuracy (%) at a mean cost of a share of the network without exits",
        ["method", *shares, "ECE", "EEFP", "ECE last"],
        [
            *(_method_row(comparison, method) for method in comparison.methods),
            *_reference_rows(comparison),
        ],
        "Test figures with thresholds from val. ± is the standard deviation over "
        f"{seeds} corrector seed{'s' * (seeds > 1)} (initial weights) on one frozen network; fits "
        "without ± are not random. Bold: cannot be told from the best method (paired bootstrap "
        "over test samples, 95 %). ECE and EEFP are means over all exits but the last; ECE last "
        "is that of the answer's max probability. (@ x) is the nearest cost to a budget that is "
        "out of reach." + _uncharged(comparison) + _coarse(comparison),
    )


def _uncharged(comparison: Comparison) -> str:
    """Answers and scorers are counted in MACs, which are added to MACs only."""
    if comparison.setting["unit"] == "macs":
        return ""
    return f" Costs are {comparison.setting['unit']}, so that answers and scorers are not charged."


def _coarse(comparison: Comparison) -> str:
    """A warning where one sample more or less shows in the figures."""
    samples = comparison.setting["samples"]["test"]
    if samples >= FEW:
        return ""
    return (
        f" Only {samples} test samples: one of them is {100 / samples:.1f} points, so that "
        "figures and intervals say little."
    )


def _method_row(comparison: Comparison, method: MethodResult) -> list[Cell]:
    figures = method.figures
    accuracies = [
        _cell(figures[accuracy_key(budget)], percent=True) for budget in comparison.budgets
    ]
    others = [_cell(figures[column]) for column in ("ece", "eefp", "ece_last")]
    return [Cell(method.label), *accuracies, *others]


def _reference_rows(comparison: Comparison) -> list[list[Cell]]:
    rows = comparison.references
    blank = [Cell("")] * 3
    budgets = comparison.budgets
    full = [rows.full] * len(budgets)
    return [
        [Cell("Best fixed exit"), *map(_reference_cell, rows.best_fixed, budgets), *blank],
        [Cell("Full network"), *map(_reference_cell, full, budgets), *blank],
        [Cell("Oracle"), *map(_reference_cell, rows.oracle, budgets), *blank],
    ]


def _reference_cell(point: FixedExit | AccuracyAt, budget: float) -> Cell:
    out_of_reach = f" (@ {_share(point.cost)})" if point.cost > budget + 1e-9 else ""
    return Cell(f"{100 * point.accuracy:.2f}{out_of_reach}")


def _differences(comparison: Comparison, rival: str) -> Table:
    def row(method: MethodResult) -> list[Cell]:
        found = method.differences[rival]
        cells = [
            gap_cell(found.get(column), 100 if column.startswith("accuracy") else 1)
            for column in comparison.columns
        ]
        return [Cell(method.label), *cells]

    shares = [_share(budget) for budget in comparison.budgets]
    methods = [method for method in comparison.methods if rival in method.differences]
    return Table(
        f"versus-{rival}",
        f"Difference to {rival}, with 95 % intervals",
        ["method", *shares, "ECE", "EEFP"],
        [row(method) for method in methods],
        "Accuracy in points; paired bootstrap over test samples. Bold: the interval leaves zero "
        "out.",
    )


def _closed_gaps(comparison: Comparison) -> Table:
    """How much of what could be gained over the baseline each method gains."""

    def row(method: MethodResult) -> list[Cell]:
        shares = [comparison.closed_gap(method.name, budget) for budget in comparison.budgets]
        return [Cell(method.label), *(gap_share_cell(share) for share in shares)]

    return Table(
        "closed-gap",
        "Share of the gap between baseline and oracle that each method closes",
        ["method", *(_share(budget) for budget in comparison.budgets)],
        [row(method) for method in comparison.methods if method.name != "baseline"],
        "The oracle knows which exits are right, so that no method can close the whole gap.",
    )


def _exits(comparison: Comparison) -> Table:
    first = comparison.methods[0].exits[0]
    rows = [
        [
            Cell(str(fixed.exit_index)),
            Cell(f"{fixed.cost:.1%}"),
            Cell(f"{100 * fixed.accuracy:.2f}"),
            *(Cell(_number(values[fixed.exit_index])) for values in (first.ece, first.eefp)),
        ]
        for fixed in comparison.references.fixed
    ]
    label = comparison.methods[0].label.lower()
    return Table(
        "exits",
        "Each exit alone",
        ["exit", "cost", "accuracy", f"ECE {label}", f"EEFP {label}"],
        rows,
        "Cost of a network that has only this exit, as a share of the network without exits. "
        f"{comparison.references.hopeless_share:.1%} of the test samples are hopeless: no exit "
        "gets them right.",
    )


def _cell(figure: Figure, percent: bool = False) -> Cell:
    scale, digits = (100, 2) if percent else (1, 3)
    text = _number(scale * figure.value, digits)
    if figure.spread is not None and not np.isnan(figure.value):
        text += f" ± {scale * figure.spread:.{digits}f}"
    if figure.cost is not None:
        text += f" (@ {_share(figure.cost)})"
    return Cell(text, figure.among_best)


def gap_share_cell(share: float) -> Cell:
    """A share of the gap to the oracle, or a dash where there is no gap."""
    return Cell("-" if np.isnan(share) else f"{share:+.1%}")


def gap_cell(gap: Interval | None, scale: float) -> Cell:
    """A difference with its interval, or a dash; bold where the interval leaves zero out.

    Args:
        gap: The difference.
        scale: 100 for points.
    """
    if gap is None:
        return Cell("-")
    digits = 2 if scale == 100 else 3
    value, low, high = (_signed(scale * x, digits) for x in (gap.value, gap.low, gap.high))
    return Cell(f"{value} [{low}, {high}]", gap.is_clear)


def _number(value: float, digits: int = 3) -> str:
    return "-" if np.isnan(value) else f"{value:.{digits}f}"


def _share(value: float) -> str:
    """Percent, with a digit more where that says more."""
    return f"{round(100 * value, 1):g}%"


def _signed(value: float, digits: int) -> str:
    """With a sign, and never minus zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + " \\\\"


_LATEX = {"&": "\\&", "%": "\\%", "_": "\\_", "#": "\\#", "$": "\\$", "{": "\\{", "}": "\\}"}
_LATEX |= {"\\": "\\textbackslash{}", "±": "$\\pm$", "~": "\\textasciitilde{}", "^": "\\^{}"}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def verdicts(comparison: Comparison, rival: str = "temperature") -> list[str]:
    """One sentence per method on its accuracy against a rival's, at every budget.

    Example:
        >>> from offramp import compare, synthetic
        >>> table = compare(**synthetic.ledgers(samples=500), methods=["baseline", "temperature"])
        >>> verdicts(table)[0].startswith("Baseline against temperature: ")
        True
    """
    found = []
    for method in comparison.methods:
        if rival in method.differences:
            gaps = method.differences[rival]
            parts = [
                f"{_word(gaps[accuracy_key(budget)])} at {budget:.0%}"
                for budget in comparison.budgets
            ]
            found.append(f"{method.label} against {rival}: {', '.join(parts)}.")
    return found


def _word(gap: Interval) -> str:
    points = 100 * gap.value
    if not gap.is_clear:
        return f"no clear difference ({round(points, 2) + 0.0:+.2f} points)"
    return f"{'better' if points > 0 else 'worse'} by {abs(points):.2f} points"


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
    writer.writerows(_tidy_reference_rows(comparison))
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


def _tidy_reference_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    rows = comparison.references
    for budget, fixed, best in zip(comparison.budgets, rows.best_fixed, rows.oracle, strict=True):
        yield _tidy_row("best-fixed-exit", accuracy_key(budget), fixed.accuracy, fixed.cost)
        yield _tidy_row("oracle", accuracy_key(budget), best.accuracy, best.cost)
    yield _tidy_row("full-network", "accuracy", rows.full.accuracy, rows.full.cost)
    for fixed in rows.fixed:
        yield _tidy_row(f"exit-{fixed.exit_index}", "accuracy", fixed.accuracy, fixed.cost)


def _tidy_row(method: str, figure: str, value: float, cost: float) -> dict[str, Any]:
    return {"method": method, "figure": figure, "value": value, "cost": cost}
