"""The description of an export: its graphs, and everything that decisions depend on.

Floats that decisions depend on are written as hexadecimal text, which every language reads back
bit by bit. Files are named without a path: a description cannot point outside its folder.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offramp.errors import FileFormatError
from offramp.networks.inputs import Inputs
from offramp.runtime.operating_point import OperatingPoint, open_exits
from offramp.storage import read_description, write_description
from offramp.thresholds.points import OperatingPoints
from offramp.thresholds.rule import rounded_up

VERSION = 1
_BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.onnx")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class GraphFile:
    """The file of one graph."""

    file: str  # bare file name
    bytes: int  # size of the file
    sha256: str  # hash of its content


@dataclass(frozen=True)
class StageFile(GraphFile):
    """The graph of a stage with its head, answer, scorer and confidence."""

    # the keys and positions that lead to each tensor of the incoming state; these tensors are the
    # graph's inputs `state_0`, `state_1`, ...
    state: tuple[tuple[str | int, ...], ...]
    reads_logits: bool  # whether `logits_so_far` `[n, m, K]` is an input
    reads_answers: bool  # whether `answers_so_far` `[n, m, K]` is an input

    @property
    def input_names(self) -> list[str]:
        """Names of the graph's inputs, in order."""
        names = [f"state_{number}" for number in range(len(self.state))]
        names += ["logits_so_far"] if self.reads_logits else []
        return names + (["answers_so_far"] if self.reads_answers else [])


@dataclass(frozen=True, eq=False)
class Manifest:
    """Everything about an export but the graphs themselves."""

    inputs: Inputs  # what a batch looks like
    num_classes: int  # K
    exit_names: tuple[str, ...]  # `[M]`
    costs: Tensor  # `[M]` float64, cumulative, as shares of the network without exits
    points: OperatingPoints  # the policy's operating points
    selected: int  # index of the chosen point
    val_samples: int  # number of samples that the points were tuned on; 1 if unknown
    has_confidence: bool  # whether the graphs return a confidence
    stages: tuple[StageFile, ...]  # `[M]`, in order
    network: str  # fingerprint of the network
    policy: str  # fingerprint of the policy
    single: GraphFile | None = None  # the graph for one sample, if there is one
    full: GraphFile | None = None  # the graph of the network without exits, if there is one

    def output_names(self, exit_index: int) -> list[str]:
        """Names of the outputs of one graph, in order.

        The state after the stage comes first, except for the last stage; then `logits` of the
        head, `answer`, `score` (not at the last exit), and `confidence` if there is one.
        """
        if exit_index == len(self.stages) - 1:
            return output_names(None, self.has_confidence)
        return output_names(len(self.stages[exit_index + 1].state), self.has_confidence)

    def operating_point(self, selected: int) -> OperatingPoint:
        """The operating point with this index, ready to run."""
        limits = rounded_up(self.points.thresholds[selected], torch.float32)
        return OperatingPoint(
            limits=limits,
            needs_head=open_exits(limits),  # the heads of closed exits run, but nobody looks
            keeps_logits=any(stage.reads_logits for stage in self.stages),
            keeps_answers=any(stage.reads_answers for stage in self.stages),
            costs=self.costs,
            expected_cost=float(self.points.budgets[selected]),
            expected_shares=self.points.shares[selected],
            val_samples=self.val_samples,
        )

    def write(self, folder: Path) -> Path:
        """Write the description into the folder, which completes the export."""
        tensors = self.points.tensors()
        points: dict[str, Any] = {name: hex_floats(value) for name, value in tensors.items()}
        points["full_accuracy"] = self.points.full_accuracy.hex()
        meta = {
            "network": self.network,
            "policy": self.policy,
            "inputs": self.inputs.describe(),
            "num_classes": self.num_classes,
            "exit_names": list(self.exit_names),
            "costs": hex_floats(self.costs),
            "has_confidence": self.has_confidence,
            "selected": self.selected,
            "val_samples": self.val_samples,
            "stages": [
                {**vars(stage), "state": list(map(list, stage.state))} for stage in self.stages
            ],
            "points": points,
        }
        for name, graph in (("single", self.single), ("full", self.full)):
            if graph is not None:
                meta[name] = vars(graph)
        return write_description(folder, "export", VERSION, meta)

    @classmethod
    def read(cls, folder: str | Path) -> "Manifest":
        """Read and check a description; no other file is opened."""
        meta = _Fields(read_description(Path(folder), "export", VERSION), str(folder))
        exit_names = tuple(meta.items("exit_names", str))
        manifest = cls(
            inputs=Inputs.restore(meta.value("inputs", dict)),
            num_classes=meta.value("num_classes", int, lambda k: k > 0, "positive"),
            exit_names=exit_names,
            costs=meta.floats("costs", (len(exit_names),)),
            points=_read_points(meta.nested("points"), len(exit_names)),
            selected=meta.value("selected", int),
            # Missing in the first exports, which therefore raise no drift alarm.
            val_samples=meta.value("val_samples", int, lambda n: n > 0, "positive", default=1),
            has_confidence=meta.value("has_confidence", bool),
            stages=tuple(_read_stage(each, folder) for each in meta.items("stages", dict)),
            network=meta.value("network", str),
            policy=meta.value("policy", str),
            single=_read_extra(meta, "single"),
            full=_read_extra(meta, "full"),
        )
        _check(manifest, str(folder))
        return manifest


def output_names(carried: int | None, has_confidence: bool) -> list[str]:
    """Names of a graph's outputs, in order; `carried` tensors of state, None at the last exit."""
    names = [f"next_{number}" for number in range(carried or 0)] + ["logits", "answer"]
    names += [] if carried is None else ["score"]
    return names + (["confidence"] if has_confidence else [])


def hex_floats(values: Tensor) -> list[Any]:
    """Nested lists of hexadecimal floats.

    Example:
        >>> hex_floats(torch.tensor([0.5, torch.inf], dtype=torch.float64))
        ['0x1.0000000000000p-1', 'inf']
    """
    if values.ndim > 1:
        return [hex_floats(row) for row in values]
    return [float(value).hex() for value in values.double()]


def _read_stage(entry: dict[str, Any], folder: str | Path) -> StageFile:
    meta = _Fields(entry, f"{folder}: a stage")
    state = meta.items("state", list)
    if not all(isinstance(key, str | int) for path in state for key in path):
        raise meta.wrong("state", "lists of names and positions", state)
    return StageFile(
        *_read_file(meta),
        tuple(tuple(path) for path in state),
        meta.value("reads_logits", bool),
        meta.value("reads_answers", bool),
    )


def _read_extra(meta: "_Fields", name: str) -> GraphFile | None:
    return GraphFile(*_read_file(meta.nested(name))) if name in meta.meta else None


def _read_file(meta: "_Fields") -> tuple[str, int, str]:
    """Name, size and hash of a graph."""
    return (
        meta.value("file", str, lambda n: bool(_BARE.fullmatch(n)), "a bare name like a.onnx"),
        meta.value("bytes", int, lambda size: size > 0, "positive"),
        meta.value("sha256", str, lambda d: bool(_DIGEST.fullmatch(d)), "64 hexadecimal digits"),
    )


def _read_points(meta: "_Fields", exits: int) -> OperatingPoints:
    count = len(meta.items("budgets", str))
    return OperatingPoints(
        thresholds=meta.floats("thresholds", (count, exits), infinite=True),
        budgets=meta.floats("budgets", (count,)),
        accuracies=meta.floats("accuracies", (count,)),
        shares=meta.floats("shares", (count, exits)),
        full_accuracy=_number(meta.value("full_accuracy", str), meta, "full_accuracy"),
    )


def _check(manifest: Manifest, folder: str) -> None:
    exits, points = len(manifest.exit_names), len(manifest.points)
    if len(manifest.stages) != exits:
        raise FileFormatError(
            f"{folder} must describe one graph per exit, got {len(manifest.stages)} graphs for "
            f"{exits} exits"
        )
    if not 0 <= manifest.selected < points:
        raise FileFormatError(
            f"{folder}: `selected` must be one of the {points} operating points, got "
            f"{manifest.selected}"
        )
    if not (manifest.costs > 0).all() or not (manifest.costs.diff() > 0).all():
        raise FileFormatError(
            f"{folder}: `costs` must be positive and increase from exit to exit, got "
            f"{manifest.costs.tolist()}"
        )


@dataclass(frozen=True)
class _Fields:
    """A JSON object that is read field by field; each must have the right type."""

    meta: dict[str, Any]
    where: str

    def value(
        self,
        name: str,
        kind: type,
        holds: Callable[[Any], bool] = lambda _: True,
        meaning: str = "",
        default: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401 - of `kind`
        found = self.meta.get(name, default)
        # To Python a bool is an int, but here it is never a count.
        right = isinstance(found, kind) and isinstance(found, bool) == (kind is bool)
        if not right or not holds(found):
            raise self.wrong(name, meaning or f"a {kind.__name__}", found)
        return found

    def nested(self, name: str) -> "_Fields":
        return _Fields(self.value(name, dict), f"{self.where}: {name}")

    def items(self, name: str, kind: type) -> list[Any]:
        found = self.value(name, list)
        if not found or not all(isinstance(each, kind) for each in found):
            raise self.wrong(name, f"a non-empty list of {kind.__name__}", found)
        return list(found)

    def floats(self, name: str, shape: Sequence[int], infinite: bool = False) -> Tensor:
        """Float64 of this shape from hexadecimal text; infinite values only if allowed."""
        found = self.value(name, list)
        rows = found if len(shape) == 2 else [found]
        for row in rows:
            if not isinstance(row, list):
                raise self.wrong(name, "lists of numbers", row)
        numbers = [[_number(each, self, name) for each in row] for row in rows]
        count = shape[0] if len(shape) == 2 else 1
        if len(rows) != count or {len(row) for row in numbers} != {shape[-1]}:
            raise self.wrong(name, f"numbers of shape {list(shape)}", f"{len(rows)} rows")
        values = torch.tensor(numbers, dtype=torch.float64).view(*shape)
        bad = values.isnan() if infinite else ~values.isfinite()
        if bad.any():
            raise self.wrong(name, "numbers", values[bad].tolist()[:3])
        return values

    def wrong(self, name: str, expected: str, found: object) -> FileFormatError:
        """The error for a field that is not what it should be."""
        shown = repr(found)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return FileFormatError(f"{self.where}: `{name}` must be {expected}, got {shown}")


def _number(text: object, meta: _Fields, name: str) -> float:
    try:
        return float.fromhex(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise meta.wrong(name, "hexadecimal floats, such as 0x1.8p+1", text) from None
