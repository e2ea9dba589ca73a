"""Tables of results: one neutral form, rendered as Markdown, CSV or for the terminal."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from offramp.advice.advise import COLUMNS, Advice
from offramp.evaluation.bootstrap import Interval
from offramp.evaluation.columns import Column, accuracy_column, accuracy_key, share_text
from offramp.evaluation.pairs import PairMix
from offramp.evaluation.references import FixedExit, FixedMix
from offramp.evaluation.results import (
    FIXED_MIX,
    PAIR_MIX,
    RIVALS,
    Comparison,
    Figure,
    MethodResult,
)
from offramp.evaluation.verdict import best_methods
from offramp.replay import AccuracyAt

Reference = FixedExit | FixedMix | PairMix | AccuracyAt
FEW_SAMPLES = 200  # of test: with fewer, half a point cannot be seen


@dataclass(frozen=True)
class Cell:
    """The text of one cell, bold or not."""

    text: str
    bold: bool = False


def cells(*values: object) -> list[Cell]:
    """A row of cells; what is not a cell already becomes one, not bold."""
    return [value if isinstance(value, Cell) else Cell(str(value)) for value in values]


def quantity(value: float) -> str:
    """A cost or a count as people write it.

    Example:
        >>> quantity(5_161_120.0), quantity(41_234_567.0), quantity(12_345), quantity(0.00123456)
        ('5.16 M', '41.2 M', '12,345', '0.00123')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True)
class ResultTable:
    r"""A table before it is rendered.

    Example:
        >>> rows = [cells("a|b", Cell("1", bold=True))]
        >>> table = ResultTable("t", "A title", ["method", "x"], rows)
        >>> print(table.markdown())
        **A title**
        <BLANKLINE>
        | method | x |
        | --- | ---: |
        | a\|b | **1** |
    """

    name: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    caption: str = ""

    def markdown(self) -> str:
        """Render as GitHub's Markdown, with the caption below."""
        align = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [_row(self.columns), _row(align)]
        for row in self.rows:
            texts = [cell.text.replace("|", "\\|") for cell in row]
            lines.append(
                _row([f"**{t}**" if c.bold else t for t, c in zip(texts, row, strict=True)])
            )
        parts = [f"**{self.title}**", "\n".join(lines), self.caption]
        return "\n\n".join(part for part in parts if part)

    def csv(self) -> str:
        """Render as CSV: the title, the columns, and the cells as they are shown."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([self.title])
        writer.writerow(self.columns)
        writer.writerows([[cell.text for cell in row] for row in self.rows])
        return out.getvalue()

    def rich(self) -> RichTable:
        """Render for the terminal."""
        headed = any(self.columns)  # else it lists facts, which are texts
        table = RichTable(
            title=self.title,
            title_justify="left",
            caption=self.caption,
            caption_justify="left",
            box=SIMPLE_HEAD,
            show_header=headed,
        )
        for number, column in enumerate(self.columns):
            # Text, not markup: names come from users, and brackets must stay brackets.
            table.add_column(Text(column), justify="right" if number and headed else "left")
        for row in self.rows:
            table.add_row(*(Text(cell.text, "bold" if cell.bold else "") for cell in row))
        return table


def comparison_tables(comparison: Comparison) -> list[ResultTable]:
    """The tables of a comparison: methods, differences to the rivals, and each exit alone."""
    found = [*_verdict_table(comparison), _methods(comparison)]
    for rival in (*RIVALS, FIXED_MIX, PAIR_MIX):
        if any(rival in method.differences for method in comparison.methods):
            found.append(_differences(comparison, rival))
    compared = {method.name for method in comparison.methods}
    of = comparison.history_type
    # Of confidences alone, what is reachable is a guess, and no bound to take shares of.
    if "baseline" in compared and len(compared) > 1 and "answers" in of.offers:
        found.append(_reachable_shares(comparison))
    if not of.has_logits:
        found.append(_ways_to_stop(comparison))
    return [*found, _exits(comparison)]


def _verdict_table(comparison: Comparison) -> list[ResultTable]:
    rows = []
    for best in best_methods(comparison):
        column = accuracy_column(best.budget)
        accuracy = _cell(best.method.figures[column.key], column).text
        gaps = (best.over_mix, best.over_best_fixed, best.over_full)
        shown = (_gap_cell(gap, column.scale) for gap in gaps)
        rows.append(cells(share_text(best.budget), best.name, accuracy, *shown))
    columns = [f"over the {each}" for each in ("mix of two fixed exits", "best fixed exit")]
    table = ResultTable(
        "verdict",
        "The best method at each budget",
        ["budget", "best method", "accuracy", *columns, "over the full network"],
        rows,
        "Differences in points at the cost of the method. The intervals hold for all "
        f"{len(comparison.methods)} methods at once, 95 %, since the best of several owes "
        "something to luck. Bold: the interval excludes zero.",
    )
    return [table] if rows else []


def _methods(comparison: Comparison) -> ResultTable:
    def row(method: MethodResult) -> list[Cell]:
        figures = (_cell(method.figures[column.key], column) for column in comparison.columns)
        return cells(method.label, method.thresholds, *figures)

    budgets = comparison.budgets
    blank = [""] * (len(comparison.columns) - len(budgets))
    references = [
        cells(label, "", *map(_reference, points, budgets), *blank)
        for _, label, points in reference_points(comparison)
    ]
    return ResultTable(
        "methods",
        "Accuracy (%) at a mean cost of a share of the network without exits",
        ["method", "thresholds", *(column.head for column in comparison.columns)],
        [*map(row, comparison.methods), *references],
        " ".join(_about_methods(comparison)),
    )


def _about_methods(comparison: Comparison) -> Iterator[str]:
    """What the table of methods shows, and what to beware of."""
    seeds, unit = comparison.setting["seeds"], comparison.setting["unit"]
    samples, of = comparison.setting["samples"]["test"], comparison.history_type
    seen = "logits" if of.has_logits else " and ".join(of.offers)
    yield (
        "Measured on test with thresholds chosen on val. ± is the standard deviation over "
        f"{seeds} corrector seed{'s' * (seeds > 1)} (initial weights) on one frozen network; "
        "methods without ± are deterministic. Bold: not significantly different from the best "
        "method (paired bootstrap over test samples, 95 %). ECE and EEFP are means over all exits "
        "but the last; ECE last is that of the max probability of the last answer. (@ x) is the "
        "cost nearest to a budget that is out of reach. The mix answers at one of two exits, at "
        f"random; Reachable sees the {seen} of all exits, but no label; the oracle sees "
        "the labels."
    )
    if comparison.references.pair_mixes:
        yield (
            "The mix of two-model cascades takes one of two pairs of models at random, with a "
            "threshold on the confidence of the first; pairs and thresholds are the best on "
            "held_out and val together."
        )
    if any(method.thresholds == "geometric" for method in comparison.methods):
        yield (  # so `fit` finds other figures
            "Geometric thresholds are the paper's; `offramp fit` and `Policy.tune` choose smooth "
            "ones, which a method has here if it is named so, as in eefp:smooth."
        )
    if unit != "macs":  # which answers and scorers are counted in
        yield f"Costs ({unit}) do not include answers and scorers."
    if samples < FEW_SAMPLES:
        yield (
            f"Only {samples} test samples: each is worth {100 / samples:.1f} points, and figures "
            "and intervals say little."
        )


def advice_table(advice: Advice) -> ResultTable:
    """The figures of an advice, a row per budget."""
    rows = [cells(*row) for row in advice.rows()]
    title = "What was chosen for each budget, on test"
    caption = (
        "Differences in points, with 95 % intervals (paired bootstrap over test samples). The mix "
        "answers at one of the two best fixed exits, at random, for the same mean cost."
    )
    return ResultTable("advice", title, COLUMNS, rows, caption)


def reference_points(comparison: Comparison) -> list[tuple[str, str, Sequence[Reference]]]:
    """Names, labels and points of what methods are compared with, one point per budget."""
    found = comparison.references
    rows: list[tuple[str, str, Sequence[Reference]]] = [
        ("best-fixed-exit", "Best fixed exit", found.best_fixed),
        ("fixed-mix", "Mix of two fixed exits", found.mixes),
        (PAIR_MIX, "Mix of two-model cascades", found.pair_mixes),
        ("full-network", "Full network", [found.full] * len(comparison.budgets)),
        ("reachable", "Reachable", found.reachable),
        ("oracle", "Oracle", found.oracle),
    ]
    return [row for row in rows if row[2]]


def _reference(point: Reference, budget: float) -> str:
    out_of_reach = f" (@ {share_text(point.cost)})" if point.cost > budget + 1e-9 else ""
    return f"{100 * point.accuracy:.2f}{out_of_reach}"


def _differences(comparison: Comparison, rival: str) -> ResultTable:
    def row(method: MethodResult) -> list[Cell]:
        found = method.differences[rival]
        gaps = [_gap_cell(found.get(column.key), column.scale) for column in columns]
        return cells(method.label, method.thresholds, *gaps)

    of_accuracy = {accuracy_key(budget) for budget in comparison.budgets}
    columns = [
        column
        for column in comparison.compared
        if rival in RIVALS or column.key in of_accuracy  # fixed exits have no scores
    ]
    methods = [method for method in comparison.methods if rival in method.differences]
    mixes = {FIXED_MIX: "the mix of two fixed exits", PAIR_MIX: "the mix of two-model cascades"}
    named = mixes.get(rival, rival)
    return ResultTable(
        f"versus-{rival}",
        f"Difference to {named}, with 95 % intervals",
        ["method", "thresholds", *(column.head for column in columns)],
        [row(method) for method in methods],
        "Accuracy in points; paired bootstrap over test samples. Bold: the interval excludes "
        "zero.",
    )


def _reachable_shares(comparison: Comparison) -> ResultTable:
    """The share of the reachable gain over the baseline that each method achieves."""

    def row(method: MethodResult) -> list[Cell]:
        shares = [comparison.reachable_share(method.name, each) for each in comparison.budgets]
        texts = ("-" if np.isnan(share) else f"{share:+.1%}" for share in shares)
        return cells(method.label, method.thresholds, *texts)

    return ResultTable(
        "reachable-gap",
        "Share of the reachable gap that each method closes",
        ["method", "thresholds", *(share_text(budget) for budget in comparison.budgets)],
        [row(method) for method in comparison.methods if method.name != "baseline"],
        "From the baseline to a rule that sees the logits of all exits, but no label; - where "
        "that is less than half a point.",
    )


def _ways_to_stop(comparison: Comparison) -> ResultTable:
    rows = []
    for method in comparison.methods:
        points = method.diagnostics.points
        places = [int(abs(points.budgets - budget).argmin()) for budget in comparison.budgets]
        shares = [f"{points.sure[n].sum():.1%} / {points.gave_up[n].sum():.1%}" for n in places]
        rows.append(cells(method.label, *shares))
    return ResultTable(
        "ways",
        "Stopped early: sure / hopeless",
        ["method", *(share_text(budget) for budget in comparison.budgets)],
        rows,
        "Shares of the test samples that stopped before their last stage with a confidence of at "
        "least one half, and with less: going on was not worth it. The others went to the end.",
    )


def _exits(comparison: Comparison) -> ResultTable:
    first = comparison.methods[0].exits[0]
    rows = [
        cells(
            fixed.exit_index,
            f"{fixed.cost:.1%}",
            f"{100 * fixed.accuracy:.2f}",
            *(_number(values[fixed.exit_index]) for values in (first.ece, first.eefp)),
        )
        for fixed in comparison.references.fixed
    ]
    label = comparison.methods[0].label.lower()
    return ResultTable(
        "exits",
        "Each exit alone",
        ["exit", "cost", "accuracy", f"ECE {label}", f"EEFP {label}"],
        rows,
        "Cost is that of a network with this exit only, as a share of the network without exits. "
        f"{comparison.references.hopeless_share:.1%} of the test samples are hopeless: no exit "
        "gets them right.",
    )


def _cell(figure: Figure, column: Column) -> Cell:
    text = column.text(figure.value)
    if figure.spread is not None and not np.isnan(figure.value):
        text += f" ± {column.text(figure.spread)}"
    if figure.cost is not None:
        text += f" (@ {share_text(figure.cost)})"
    return Cell(text, figure.among_best)


def _gap_cell(gap: Interval | None, scale: float) -> Cell:
    """A difference with its interval, or a dash; bold where the interval excludes zero."""
    if gap is None:
        return Cell("-")
    digits = 2 if scale == 100 else 3
    value, low, high = (_signed(scale * x, digits) for x in (gap.value, gap.low, gap.high))
    return Cell(f"{value} [{low}, {high}]", gap.is_clear)


def _number(value: float, digits: int = 3) -> str:
    return "-" if np.isnan(value) else f"{value:.{digits}f}"


def _signed(value: float, digits: int) -> str:
    """A number with its sign; zero is never negative."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def verdicts(comparison: Comparison, rival: str = "temperature") -> list[str]:
    """One sentence per method that compares its accuracy with a rival's at every budget.

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
            each = [
                f"{_verdict(gaps[accuracy_key(budget)])} at {budget:.0%}"
                for budget in comparison.budgets
            ]
            found.append(f"{method.label} against {rival}: {', '.join(each)}.")
    return found


def _verdict(gap: Interval) -> str:
    points = 100 * gap.value
    if not gap.is_clear:
        return f"no clear difference ({round(points, 2) + 0.0:+.2f} points)"
    return f"{'better' if points > 0 else 'worse'} by {abs(points):.2f} points"
