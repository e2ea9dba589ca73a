"""The figures printed in the paper, beside those measured here."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from offramp.errors import ConfigError
from offramp.evaluation import Comparison
from offramp.registry import or_known
from offramp.report import Cell, ResultTable

_COLUMNS = {"25%": "accuracy@0.25", "50%": "accuracy@0.5", "75%": "accuracy@0.75"}
_COLUMNS |= {"ECE": "ece", "EEFP": "eefp"}
_ALIASES = {"eefp-top-5": "eefp", "ccct-top-5": "ccct"}


@cache
def paper_tables() -> dict[str, Any]:
    """The tables of the paper by label, as printed."""
    text = files("offramp_paper").joinpath("experiments/paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def about_table(label: str | None) -> str:
    """What an experiment repeats, in a sentence."""
    if label is None:
        return ""
    if label not in paper_tables():
        return f"It repeats the paper's {label}, a figure for which the paper prints no numbers."
    return f"It repeats the paper's {label}: {paper_tables()[label]['caption']}"


def printed_rows(label: str | None, heading: str) -> dict[str, list[str]] | None:
    """Rows of a table under one of its headings; None where the paper prints no numbers."""
    table = paper_tables().get(label or "")
    if table is None or not heading:
        return None
    groups: dict[str, dict[str, list[str]]] = table["groups"]
    if heading not in groups:
        raise ConfigError(
            f"the paper's {label} has no heading {heading!r}{or_known(heading, groups)}"
        )
    return groups[heading]


def beside_paper(
    comparison: Comparison, label: str | None, heading: str, name: str, title: str
) -> ResultTable | None:
    """A table with *paper* and *here* side by side, or None where the paper prints no numbers.

    Args:
        comparison: Measured here.
        label: Of the paper's table.
        heading: Within that table.
        name: Of the table that is made.
        title: Of the network here.
    """
    rows = printed_rows(label, heading)
    if rows is None or label is None:
        return None
    columns = [each for each in paper_tables()[label]["columns"] if each in _COLUMNS]
    if not columns:
        return None
    heads = [f"{column} {where}" for column in columns for where in ("paper", "here")]
    return ResultTable(
        f"{name}-paper",
        f"Paper and measured here: {heading} there, {title} here",
        ["method", *heads],
        _rows(comparison, rows, columns),
        f"Paper: {label}, as printed. Networks and data differ: compare the differences between "
        "rows, not their levels; intervals are in the tables below.",
    )


def _rows(
    comparison: Comparison, printed: dict[str, list[str]], columns: list[str]
) -> list[list[Cell]]:
    """One row per method that is in both."""
    measured = {method.name: method for method in comparison.methods}
    found = []
    for name, values in printed.items():
        here = measured.get(name) or measured.get(_ALIASES.get(name, name))
        if here is not None:
            pairs = zip(columns, values, strict=True)
            texts = [t for c, value in pairs for t in (value, _measured(here.figures, c))]
            found.append([Cell(text) for text in (here.label, *texts)])
    return found


def _measured(figures: dict[str, Any], column: str) -> str:
    figure = figures.get(_COLUMNS[column])
    if figure is None:
        return "-"
    scale, digits = (100, 2) if column.endswith("%") else (1, 3)
    spread = "" if figure.spread is None else f" ± {scale * figure.spread:.{digits}f}"
    return f"{scale * figure.value:.{digits}f}{spread}"
