"""The figures printed in the paper, beside those measured here."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from offramp.errors import ConfigError
from offramp.evaluation import Comparison
from offramp.evaluation.columns import accuracy_key
from offramp.registry import or_known
from offramp.report import ResultTable
from offramp.report.tables import Cell, cells

_COLUMNS = {"25%": accuracy_key(0.25), "50%": accuracy_key(0.5), "75%": accuracy_key(0.75)}
_COLUMNS |= {"ECE": "ece", "EEFP": "eefp"}
_ALIASES = {"eefp-top-5": "eefp", "ccct-top-5": "ccct"}


@cache
def paper_tables() -> dict[str, Any]:
    """The tables of the paper by label, as printed."""
    text = files("offramp").joinpath("studies/paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def paper_group(label: str, group: str | None) -> dict[str, list[str]] | None:
    """Rows of a table under one of its headings; None where the paper prints no numbers."""
    table = paper_tables().get(label)
    if table is None or group is None:
        return None
    groups: dict[str, dict[str, list[str]]] = table["groups"]
    if group not in groups:
        raise ConfigError(f"the paper's {label} has no heading {group!r}{or_known(group, groups)}")
    return groups[group]


def beside_paper(
    comparison: Comparison, label: str, group: str | None, name: str, title: str
) -> ResultTable | None:
    """A table with *paper* and *here* side by side, or None where the paper prints no numbers.

    `label` and `group` find the paper's figures: its table, and the heading within it.
    """
    rows = paper_group(label, group)
    if rows is None:
        return None
    columns = [each for each in paper_tables()[label]["columns"] if each in _COLUMNS]
    if not columns:
        return None
    heads = [f"{column} {where}" for column in columns for where in ("paper", "here")]
    return ResultTable(
        f"{name}-paper",
        f"Paper and measured here: {group} there, {title} here",
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
            found.append(cells(here.label, *texts))
    return found


def _measured(figures: dict[str, Any], column: str) -> str:
    figure = figures.get(_COLUMNS[column])
    if figure is None:
        return "-"
    scale, digits = (100, 2) if column.endswith("%") else (1, 3)
    spread = "" if figure.spread is None else f" ± {scale * figure.spread:.{digits}f}"
    return f"{scale * figure.value:.{digits}f}{spread}"
