"""Policies on disk: a folder with JSON and arrays, and a fingerprint of what was learned."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar

import numpy as np

from offramp import check
from offramp.answers import Answer
from offramp.arrays import Array
from offramp.batch_times import BatchTimes
from offramp.component import Component
from offramp.confidence import Confidence
from offramp.costs import Costs
from offramp.errors import (
    BudgetError,
    ConfigError,
    FileFormatError,
    LedgerError,
    NotFittedError,
)
from offramp.files import read_folder, restore, write_folder
from offramp.imports import installed_version
from offramp.ledger.history import HISTORIES, History
from offramp.ledger.origin import SplitUse
from offramp.replay import try_out
from offramp.scorers import Scorer
from offramp.thresholds.rule import OperatingPoints

if TYPE_CHECKING:
    from offramp.policy.policy import Policy

VERSION = 1
FLOAT64, INT64 = np.dtype(np.float64), np.dtype(np.int64)
MOST_CLASSES = 10_000_000

Made = TypeVar("Made", bound="Policy")


@dataclass(frozen=True)
class Provenance:
    """How a policy was made, for its file; data and network have fingerprints, too.

    Attributes:
        name: Of the method, or what the maker called it.
        date: When it was saved first, in UTC.
        version: Of the library.
        data: Where the ledgers were, if that was given.
    """

    name: str
    date: str
    version: str
    data: str | None = None

    def __str__(self) -> str:
        data = "" if self.data is None else f" from {self.data}"
        return f"{self.name}, made {self.date[:10]} with offramp {self.version}{data}"


class _Description(TypedDict):
    """What `Policy.save` writes, as far as `load` needs it."""

    answer: dict[str, Any]
    scorer: dict[str, Any]
    network: str | None
    costs: dict[str, Any]
    batch_times: NotRequired[dict[str, Any] | None]
    num_classes: int
    exits: NotRequired[list[int]]
    selected: int | None
    guarantee: NotRequired[str | None]
    uses: list[SplitUse]
    full_accuracy: float | None
    confidence: NotRequired[dict[str, Any] | None]
    made: NotRequired[Provenance]


def save(policy: "Policy", folder: str | Path, name: str | None, data: str | None) -> Path:
    """Write a policy as a folder, atomically; see `Policy.save`."""
    if policy.cost_model is None:
        raise NotFittedError("this policy is not fitted; call fit(held_out) before save")
    arrays = _arrays(policy) | {f"seen.{step}": hashes for step, hashes in policy.seen.items()}
    full = policy.points.full_accuracy if policy.is_tuned else math.nan
    meta: dict[str, Any] = {
        "confidence": None,
        **{part: component.describe() for part, component in _components(policy).items()},
        "network": policy.network,
        "costs": policy.cost_model.to_json(),
        "batch_times": None if policy.batch_times is None else policy.batch_times.to_json(),
        "num_classes": policy.num_classes,
        "kind": policy.history_type.name,
        "exits": policy.exits,
        "selected": policy.selected,
        "guarantee": policy.guarantee,
        "uses": [asdict(use) for use in policy.uses],
        "full_accuracy": None if math.isnan(full) else full,  # JSON knows no nan
        "made": asdict(_provenance(policy, name, data)),
    }
    return write_folder(folder, "policy", VERSION, meta, arrays)


def _components(policy: "Policy") -> dict[str, Component]:
    parts = {"answer": policy.answer, "scorer": policy.scorer, "confidence": policy.confidence}
    return {part: component for part, component in parts.items() if component is not None}


def _arrays(policy: "Policy") -> dict[str, Array]:
    """Everything that was learned, and the operating points, by part and name."""
    parts = {part: component.state() for part, component in _components(policy).items()}
    if policy.is_tuned:
        parts["points"] = policy.points.tensors()
    return {
        f"{part}.{key}": value for part, found in parts.items() for key, value in found.items()
    }


def _provenance(policy: "Policy", name: str | None, data: str | None) -> Provenance:
    """What was known when the policy was first saved, with the name and data given now."""
    if policy.made is None:
        parts = f"{type(policy.scorer).__name__}, {type(policy.answer).__name__}"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        policy.made = Provenance(parts, now, installed_version("offramp") or "unknown")
    given = {"name": name, "data": data}
    policy.made = replace(policy.made, **{k: v for k, v in given.items() if v is not None})
    return policy.made


def load(policy_type: type[Made], folder: str | Path) -> Made:
    """Read a policy that `save` wrote; see `Policy.load`."""
    meta, arrays = read_folder(folder, "policy", VERSION)
    where = f"{folder} is not a complete policy"
    restore(_Description, meta, where)
    names = ("answer", "scorer", "seen", "points", "confidence")
    parts: dict[str, dict[str, Array]] = {name: {} for name in names}
    try:
        for name, value in arrays.items():
            part, _, key = name.partition(".")
            parts[part][key] = np.array(value)  # what decides must not change with the file
        policy = policy_type(
            Scorer.restore(meta["scorer"], parts["scorer"]),
            Answer.restore(meta["answer"], parts["answer"]),
        )
        policy.cost_model, policy.num_classes = Costs(**meta["costs"]), meta["num_classes"]
        if meta.get("batch_times") is not None:
            policy.batch_times = BatchTimes.from_json(meta["batch_times"])
        # Older files know logits only.
        policy.history_type = HISTORIES[meta.get("kind", History.name)]
        policy.exits = tuple(meta.get("exits", range(policy.cost_model.num_exits)))
        policy.seen = parts["seen"]
        if meta.get("confidence") is not None:
            policy.confidence = Confidence.restore(meta["confidence"], parts["confidence"])
        policy.network = meta["network"]
        policy.uses = [SplitUse(**use) for use in meta["uses"]]
        if parts["points"]:
            full = meta["full_accuracy"]
            full = math.nan if full is None else full
            policy = policy.with_points(OperatingPoints(**parts["points"], full_accuracy=full))
            chosen = meta["selected"]
            policy = policy if chosen is None else policy.at_point(chosen)
        policy.guarantee = meta.get("guarantee")
        policy.made = Provenance(**meta["made"]) if "made" in meta else None
    except (KeyError, TypeError, ValueError, BudgetError, LedgerError, ConfigError) as error:
        raise FileFormatError(f"{where}: {error}") from None
    _check_arrays(policy, where)
    return policy


def fingerprint(policy: "Policy") -> str:
    """A hash of everything that was learned, of the costs, and of the operating points.

    The point that is chosen is not part of it: it changes while a policy is used.
    """
    digest = hashlib.sha256()
    costs = None if policy.cost_model is None else policy.cost_model.to_json()
    kind = policy.history_type.name
    known = [kind, policy.num_classes, list(policy.exits), policy.network, costs]
    digest.update(json.dumps(known).encode())
    for component in _components(policy).values():
        digest.update(json.dumps(component.describe(), sort_keys=True, default=str).encode())
    for name, array in sorted(_arrays(policy).items()):
        digest.update(f"{name} {array.dtype} {list(array.shape)} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _check_arrays(policy: "Policy", where: str) -> None:
    """Raise `FileFormatError` unless arrays of a file fit its exits and classes."""
    assert policy.cost_model is not None and policy.num_classes is not None
    exits = policy.cost_model.num_exits
    if len(policy.exits) != exits or list(policy.exits) != sorted(set(policy.exits)):
        raise FileFormatError(f"{where}: {exits} exits have costs, got exits {policy.exits}")
    if not 1 <= policy.num_classes <= MOST_CLASSES:
        raise FileFormatError(f"{where}: `num_classes` cannot be {policy.num_classes}")
    check.arrays(policy.seen, dict.fromkeys(policy.seen, (INT64, (None,))), where)
    if policy.is_tuned:
        _check_points(policy.points, exits, where)
    if policy.confidence is not None:
        weights = {"weights_": (exits, 4), "plain_weights_": (exits, 3)}
        wanted = {name: (FLOAT64, shape) for name, shape in weights.items()}
        check.arrays(policy.confidence.state(), wanted, where)
    if policy.history_type.has_logits:
        try_out(policy.answer, policy.scorer, exits, policy.num_classes, where)


def _check_points(points: OperatingPoints, exits: int, where: str) -> None:
    """Raise `FileFormatError` unless these can be operating points for so many exits."""
    count = len(points.budgets) if points.budgets.ndim else 0
    per_exit = {"thresholds", "shares"}
    shapes = {n: (count, exits) if n in per_exit else (count,) for n in points.tensors()}
    wanted = {name: (FLOAT64, shape) for name, shape in shapes.items()}
    check.arrays(points.tensors(), wanted, where)
    if not (count and np.isfinite(points.budgets).all() and (np.diff(points.budgets) >= 0).all()):
        raise FileFormatError(f"{where}: `points.budgets` must be ascending numbers")
    if np.isnan(points.thresholds).any():
        raise FileFormatError(f"{where}: `points.thresholds` has what is no number")
