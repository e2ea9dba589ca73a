"""Reading answers with confidences from `.npz`, Parquet and JSON lines, whatever wrote them."""

import json
from collections.abc import Iterable, Mapping
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
    check_names(path, names, COLUMNS)
    for number, row in enumerate(rows):
        lacking = sorted(name for name in names if name not in row)
        if lacking:
            raise FileFormatError(
                f"{path}, row {number + 1} lacks {', '.join(lacking)}, which other rows have"
            )
    table = {ROW_NAMES.get(name, name): [row[name] for row in rows] for name in names}
    found = {name: _alike(path, name, v) if name in ALIKE else v for name, v in table.items()}
    return _priced(path, found)


def check_names(path: Path, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise unless a file has confidences and costs, and no name that looks misspelt."""
    present = set(names)
    foreign = [name for name in present if name not in known]
    guesses = [
        f"`{near}` to `{name}`"
        for name in known
        if name not in present
        for near in close_names(name, foreign, cutoff=0.75)
    ]
    rename = f"; rename {' and '.join(sorted(set(guesses)))}?" if guesses else ""
    missing = [] if has_answers(present) else ["`confidence` and no `log_confidence`"]
    missing += [] if {"costs", "model_costs"} & present else ["`costs`"]
    if missing:
        has = ", ".join(sorted(present))
        raise FileFormatError(f"{path} has no {' and no '.join(missing)}; it has {has}{rename}")
    if rename:
        raise FileFormatError(f"{path} has names that look misspelt{rename}")


def npz_answers(path: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Ledger.from_answers` from the arrays of an `.npz`."""
    check_names(path, arrays, ARRAYS)
    found = {name: arrays[name] for name in ARRAYS if name in arrays}
    return _priced(path, {n: v.item() if n in ALIKE else v for n, v in found.items()})


def _priced(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    """The same with the costs of a cascade, where a file says what each model alone has cost."""
    if "model_costs" not in found:
        return found
    if "costs" in found:
        raise FileFormatError(
            f"{path} has `costs`, what a sample had cost by each stage, and `model_costs`, what "
            "each model alone has cost: leave one out"
        )
    rest = {name: value for name, value in found.items() if name != "model_costs"}
    unit = found.get("unit", "relative")
    return {**rest, "costs": Costs.of_members(found["model_costs"], unit)}


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
