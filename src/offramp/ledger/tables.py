"""Reading answers with confidences from `.npz`, Parquet and JSON lines, whatever wrote them."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offramp.costs import Costs
from offramp.errors import FileFormatError
from offramp.imports import require
from offramp.registry import close_names

TABLES = (".jsonl", ".parquet")
"""Ends of the names of files with a row per sample."""

ROW_NAMES = {"label": "labels", "group": "groups", "id": "sample_ids"}
"""What single values of a row are called, and what all of them are together."""

ALIKE = ("unit", "network")
"""What is the same for all samples."""

BY_STAGE = (
    *("answers", "confidence", "log_confidence", "correct", "costs", "model_costs", "features"),
    "mask",
)
COLUMNS = (*BY_STAGE, *ROW_NAMES, *ALIKE)
ARRAYS = (*BY_STAGE, *ROW_NAMES.values(), *ALIKE)


def has_answers(names: Iterable[str]) -> bool:
    """Whether arrays with these names are answers with confidences, and not logits."""
    return "logits" not in names and bool({"confidence", "log_confidence"} & set(names))


def read_table(path: Path) -> dict[str, Any]:
    """The arguments of `Ledger.from_answers` from a file with a row per sample.

    Raises:
        FileFormatError: With the line, and what was expected there.
    """
    rows = _json_rows(path) if path.suffix == ".jsonl" else _parquet_rows(path)
    if not rows:
        raise FileFormatError(f"{path} has no rows")
    names = {name for row in rows for name in row}
    for number, row in enumerate(rows):
        lacking = sorted(names - set(row))
        if lacking:
            raise FileFormatError(
                f"{path}, row {number + 1} lacks {', '.join(lacking)}, which other rows have"
            )
    table = {name: [row[name] for row in rows] for name in names}
    table |= {name: _alike(path, name, table[name]) for name in ALIKE if name in names}
    found = answers_in(path, table, COLUMNS)
    return {ROW_NAMES.get(name, name): value for name, value in found.items()}


def answers_in(path: Path, found: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """What of a file is known, with the costs of a cascade where each model's own are given.

    Raises:
        FileFormatError: Confidences or costs are missing, or a name looks misspelt.
    """
    lacking = [] if has_answers(found) else ["`confidence` and no `log_confidence`"]
    lacking += [] if {"costs", "model_costs"} & set(found) else ["`costs`"]
    check_names(path, found, known, lacking)
    answers = {name: value for name, value in found.items() if name in known}
    if "model_costs" not in answers:
        return answers
    if "costs" in answers:
        raise FileFormatError(
            f"{path} has `costs`, what a sample had cost by each stage, and `model_costs`, what "
            "each model alone has cost: leave one out"
        )
    costs = Costs.of_members(answers.pop("model_costs"), answers.get("unit", "relative"))
    return {**answers, "costs": costs}


def check_names(
    path: Path, names: Collection[str], known: Collection[str], lacking: Sequence[str]
) -> None:
    """Raise if something is lacking, or a name looks misspelt."""
    foreign = {name.lower(): name for name in names if name not in known}
    guesses = [
        f"`{foreign[near]}` to `{name}`"
        for name in known
        if name not in names
        for near in close_names(name, foreign, cutoff=0.75)
    ]
    rename = f"; rename {' and '.join(guesses)}?" if guesses else ""
    if lacking:
        has = ", ".join(sorted(names)) or "nothing"
        raise FileFormatError(f"{path} has no {' and no '.join(lacking)}; it has {has}{rename}")
    if rename:
        raise FileFormatError(f"{path} has names that look misspelt{rename}")


def _alike(path: Path, name: str, values: list[Any]) -> Any:  # noqa: ANN401
    different = sorted({str(value) for value in values})
    if len(different) > 1:
        raise FileFormatError(
            f"{path}: `{name}` must be the same in all rows, got {', '.join(different[:3])}"
        )
    return values[0]


def _json_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not a text file: {error}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise FileFormatError(f"{path}, line {number} is not valid JSON: {error}") from None
        if not isinstance(row, dict):
            raise FileFormatError(
                f"{path}, line {number} must be an object such as "
                '{"answers": ["a", "b"], "confidence": [0.6, 0.9], "label": "b", "costs": [1, 3]}'
            )
        rows.append(row)
    return rows


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    parquet = require("pyarrow.parquet", extra="train")
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are subclasses
        raise FileFormatError(f"{path} cannot be read as Parquet: {error}") from None
    return rows
