"""The command `trees`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from offramp.cli.console import out
from offramp.cli.options import there
from offramp.errors import ConfigError, FileFormatError
from offramp.imports import require
from offramp.registry import or_known


def trees_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", callback=there)],
    data: Annotated[Path, typer.Argument(metavar="DATA", callback=there)],
    label: str = "label",
    max_drop: float = 0.002,
    delta: float = 0.05,
    freq: int = 5,
) -> None:
    """Certify a margin for LightGBM's own early stop: settings for its `predict`.

    With probability 1 - delta over the draw of the rows, the accuracy on new rows is at most
    --max-drop below that of all trees. Where no margin can be certified, or none is quicker, the
    settings are those of all trees. For other libraries, see docs/guides/boosted-trees.md.

    Args:
        model: Text file that LightGBM saved.
        data: Table (.parquet or .csv) of rows that the model was not trained on.
        label: Column with the classes as the model counts them, from 0 on.
        max_drop: Accuracy that may be lost, 0.002 for a fifth of a point.
        delta: Probability with which it may be more.
        freq: Rounds of trees between two checks of the margin.
    """
    from offramp.trees import early_stop

    lightgbm = require("lightgbm", extra="trees")
    try:
        booster = lightgbm.Booster(model_file=model)
    except lightgbm.basic.LightGBMError as error:
        raise FileFormatError(
            f"{model} must be a text file that LightGBM saved: {error}"
        ) from None
    rows, labels = _table(data, label, booster.feature_name())
    found = early_stop(booster, rows, labels, max_drop, delta, freq)
    out.print(found.why)
    out.print(", ".join(f"{name}={value!r}" for name, value in found.items()))
    out.give(settings=dict(found), drop=found.drop, rounds=found.rounds, seconds=found.seconds)


def _table(path: Path, label: str, features: list[str]) -> tuple[Any, Any]:
    """Rows and labels; columns by the names of the features, or else all others in their order."""
    pandas = require("pandas", extra="trees")
    readers = {".parquet": pandas.read_parquet, ".csv": pandas.read_csv}
    if path.suffix not in readers:
        raise FileFormatError(f"DATA must be a .parquet or a .csv file, got {path}")
    table = readers[path.suffix](path)
    if label not in table:
        raise ConfigError(f"--label: {path} has no column {label!r}{or_known(label, table)}")
    labels, rows = table[label].to_numpy(), table.drop(columns=label)
    if set(features) <= set(rows):
        return rows[features], labels
    if rows.shape[1] != len(features):
        raise ConfigError(
            f"{path} must have the {len(features)} features of the model besides {label!r}, got "
            f"{rows.shape[1]} columns"
        )
    return rows, labels
