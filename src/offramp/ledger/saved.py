"""The folder of a ledger: JSON and arrays."""

import json
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from offramp import check
from offramp.arrays import Array
from offramp.batch_times import BatchTimes
from offramp.costs import Costs
from offramp.errors import FileFormatError, LedgerError
from offramp.files import read_folder, restore, write_folder
from offramp.ledger.checks import Names
from offramp.ledger.ledger import AnswerLedger, ConfidenceLedger, Ledger, LogitLedger, VoteLedger

VERSION = 1
KINDS = (LogitLedger, AnswerLedger, VoteLedger, ConfidenceLedger)
TYPES = {each.history_type.name: each for each in KINDS}


class _Description(TypedDict):
    """What `save` writes, as far as `load` needs it."""

    split: str
    costs: dict[str, Any]
    network: str | None
    class_names: list[str] | None
    labelled: NotRequired[bool]
    exits: NotRequired[list[int]]
    recorded_on: NotRequired[str | None]
    kind: NotRequired[str]
    batch_times: NotRequired[dict[str, Any] | None]


def save(ledger: Ledger, folder: str | Path) -> Path:
    """Write a ledger as a folder, atomically; return its path."""
    arrays = {"logits": ledger.outputs}
    if ledger.has_labels:
        arrays["labels"] = ledger.labels
    if ledger.sample_ids is not None:
        arrays["sample_ids"] = _as_bytes(ledger.sample_ids)
    if ledger.groups is not None:
        arrays["groups"] = _as_bytes(ledger.groups)
    if ledger.positive is not None:
        arrays["positive"] = ledger.positive
    if ledger.full_right is not None:
        arrays["full_right"] = ledger.full_right
    if ledger.lengths is not None:
        arrays["lengths"] = ledger.lengths
    if (costs := ledger.cost_model).by_sample:
        parts = {"stages": costs.stages, "heads": costs.heads, "reference": costs.reference}
        arrays |= {f"costs.{name}": part for name, part in parts.items()}
    meta = {
        "split": ledger.split,
        "kind": ledger.history_type.name,
        "labelled": ledger.has_labels,
        "shape": [len(ledger), ledger.num_exits, ledger.num_classes],
        "costs": ledger.cost_model.to_json(),
        "batch_times": None if ledger.batch_times is None else ledger.batch_times.to_json(),
        "network": ledger.network,
        "data_fingerprint": ledger.data_fingerprint,
        "class_names": ledger.class_names,
        "exits": ledger.exits,
        "recorded_on": ledger.recorded_on,
    }
    return write_folder(folder, "ledger", VERSION, meta, arrays)


def load(folder: Path, split: str | None = None) -> Ledger:
    """Read what `save` wrote; see `Ledger.load`."""
    meta, arrays = read_folder(folder, "ledger", VERSION)
    by_sample = {key[6:]: value for key, value in arrays.items() if key.startswith("costs.")}
    restore(_Description, meta, f"{folder} is not a complete ledger")
    try:
        ledger_type = TYPES[meta.get("kind", "logits")]  # older files know no other
        ledger: Ledger = ledger_type(
            arrays["logits"],
            arrays["labels"] if meta.get("labelled", True) else None,
            Costs(**{**meta["costs"], **by_sample}),
            split=meta["split"],
            sample_ids=_from_bytes(arrays.get("sample_ids")),
            network=meta["network"],
            class_names=meta["class_names"],
            recorded_on=meta.get("recorded_on"),  # not in older files
            groups=_from_bytes(arrays.get("groups")),
            lengths=arrays.get("lengths"),
        )
        ledger.full_right = arrays.get("full_right")
        ledger.positive = arrays.get("positive")
        ledger.exits = tuple(meta.get("exits", ledger.exits))
        if meta.get("batch_times") is not None:
            ledger.batch_times = BatchTimes.from_json(meta["batch_times"])
            check.same_length(
                "batch_times", ledger.batch_times.stages, ledger.num_exits, "exit", LedgerError
            )
    except LedgerError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{folder} is not a complete ledger: {error}") from None
    if split is not None:
        ledger.require_split(split)
    return ledger


def _as_bytes(names: Names) -> Array:
    return np.frombuffer(json.dumps(names).encode(), dtype=np.uint8)


def _from_bytes(raw: Array | None) -> Names | None:
    return None if raw is None else list(json.loads(raw.tobytes()))
