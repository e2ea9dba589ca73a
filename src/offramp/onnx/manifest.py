"""The description of an export: its graphs, and everything that decisions depend on.

Floats that decisions depend on are written as hexadecimal text, which every language reads back
bit by bit. Files are named without a path: a description cannot point outside its folder.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offramp.arrays import Array
from offramp.errors import FileFormatError
from offramp.files import read_description, write_description
from offramp.networks.inputs import Inputs
from offramp.runtime.ladder import PreparedPoint, open_exits
from offramp.thresholds.points import OperatingPoints
from offramp.thresholds.rule import rounded_up

VERSION = 3
BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.onnx")
_DIGEST = re.compile(r"[0-9a-f]{64}")
SO_FAR = ("logits_so_far", "answers_so_far")


@dataclass(frozen=True)
class GraphFile:
    """The file of one graph."""

    file: str  # bare file name
    bytes: int  # size of the file
    sha256: str  # hash of its content
    inputs: tuple[str, ...]  # names, in order
    outputs: tuple[str, ...]  # names, in order

    @property
    def reads_logits(self) -> bool:
        """Whether the logits `[n, m, K]` of the m exits before are an input."""
        return SO_FAR[0] in self.inputs

    @property
    def reads_answers(self) -> bool:
        """Whether the answers `[n, m, K]` at the m exits before are an input."""
        return SO_FAR[1] in self.inputs


@dataclass(frozen=True)
class Segment:
    """The way from one exit of an export to the next, that exit included, as one graph.

    Exits that are closed have no segment of their own; where something later reads their logits,
    the graph returns them.
    """

    exit_index: int  # the exit that it ends with
    # the keys and positions that lead to each tensor of the incoming state; these tensors are the
    # inputs `state_0`, `state_1`, ... of the graph
    state: tuple[tuple[str | int, ...], ...]
    graph: GraphFile  # stages, head, answer and scorer

    @property
    def carried(self) -> int:
        """How many tensors it passes on to the next segment."""
        return sum(name.startswith("next_") for name in self.graph.outputs)


@dataclass(frozen=True, eq=False)
class Manifest:
    """Everything about an export but the graphs themselves."""

    inputs: Inputs  # what a batch looks like
    num_classes: int  # K
    exit_names: tuple[str, ...]  # `[M]`
    costs: Array  # `[M]` float64, cumulative, as shares of the network without exits
    points: OperatingPoints  # the policy's operating points
    selected: int  # index of the chosen point
    val_samples: int  # number of samples that the points were tuned on; 1 if unknown
    segments: tuple[Segment, ...]  # in order; the last one ends with the last exit
    network: str  # fingerprint of the network
    policy: str  # fingerprint of the policy
    confidence: GraphFile | None = None  # the probability that answers are right, if known
    full: GraphFile | None = None  # the network without exits, if there is one
    notes: dict[str, Any] = field(default_factory=dict)  # what else its reader should know

    @property
    def graphs(self) -> list[GraphFile]:
        """All graphs of the export."""
        own = [segment.graph for segment in self.segments]
        return own + [graph for graph in (self.confidence, self.full) if graph is not None]

    def missing_exits(self, selected: int) -> list[str]:
        """Names of the exits that are open at a point, and that the graphs do not have."""
        present = {segment.exit_index for segment in self.segments}
        is_open = open_exits(self.points.thresholds[selected].tolist())
        return [
            self.exit_names[index]
            for index, each in enumerate(is_open)
            if each and index not in present
        ]

    def operating_point(self, selected: int) -> PreparedPoint:
        """The operating point with this index, ready to run."""
        limits = rounded_up(self.points.thresholds[selected], np.float32).tolist()
        return PreparedPoint(
            index=selected,
            limits=tuple(limits),
            needs_head=open_exits(limits),  # graphs return what others read
            keeps_logits=any(graph.reads_logits for graph in self.graphs),
            keeps_answers=any(graph.reads_answers for graph in self.graphs),
            costs=tuple(self.costs.tolist()),
            expected_cost=float(self.points.budgets[selected]),
            expected_shares=tuple(self.points.shares[selected].tolist()),
            val_samples=self.val_samples,
        )

    def write(self, folder: Path) -> Path:
        """Write the description into the folder, which completes the export."""
        tensors = self.points.tensors()
        points: dict[str, Any] = {name: hex_floats(value) for name, value in tensors.items()}
        points["full_accuracy"] = self.points.full_accuracy.hex()
        extra = {"confidence": self.confidence, "full": self.full}
        meta = {
            "network": self.network,
            "policy": self.policy,
            "inputs": self.inputs.describe(),
            "num_classes": self.num_classes,
            "exit_names": list(self.exit_names),
            "costs": hex_floats(self.costs),
            "selected": self.selected,
            "val_samples": self.val_samples,
            "segments": [asdict(segment) for segment in self.segments],
            **{name: asdict(graph) for name, graph in extra.items() if graph is not None},
            "points": points,
            "notes": self.notes,
        }
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
            val_samples=meta.value("val_samples", int, lambda n: n > 0, "positive"),
            segments=tuple(_read_segment(each, folder) for each in meta.items("segments", dict)),
            network=meta.value("network", str),
            policy=meta.value("policy", str),
            confidence=_read_graph(meta, "confidence") if "confidence" in meta.meta else None,
            full=_read_graph(meta, "full") if "full" in meta.meta else None,
            notes=meta.value("notes", dict) if "notes" in meta.meta else {},
        )
        _check(manifest, str(folder))
        return manifest


def hex_floats(values: Array) -> list[Any]:
    """Nested lists of hexadecimal floats.

    Example:
        >>> hex_floats(np.array([0.5, np.inf]))
        ['0x1.0000000000000p-1', 'inf']
    """
    if values.ndim > 1:
        return [hex_floats(row) for row in values]
    return [float(value).hex() for value in values]


def _read_segment(entry: dict[str, Any], folder: str | Path) -> Segment:
    meta = _Fields(entry, f"{folder}: a segment")
    state = meta.items("state", list)
    if not all(isinstance(key, str | int) for path in state for key in path):
        raise meta.wrong("state", "lists of names and positions", state)
    return Segment(
        meta.value("exit_index", int),
        tuple(tuple(path) for path in state),
        _read_graph(meta, "graph"),
    )


def _read_graph(parent: "_Fields", name: str) -> GraphFile:
    meta = parent.nested(name)
    return GraphFile(
        meta.value("file", str, lambda n: bool(BARE.fullmatch(n)), "a bare name like a.onnx"),
        meta.value("bytes", int, lambda size: size > 0, "positive"),
        meta.value("sha256", str, lambda d: bool(_DIGEST.fullmatch(d)), "64 hexadecimal digits"),
        tuple(meta.items("inputs", str)),
        tuple(meta.items("outputs", str)),
    )


def _read_points(meta: "_Fields", exits: int) -> OperatingPoints:
    count = len(meta.items("budgets", str))
    return OperatingPoints(
        thresholds=meta.floats("thresholds", (count, exits), infinite=True),
        budgets=meta.floats("budgets", (count,)),
        accuracies=meta.floats("accuracies", (count,), unknown=True),
        shares=meta.floats("shares", (count, exits)),
        full_accuracy=_number(meta.value("full_accuracy", str), meta, "full_accuracy"),
    )


def names(prefix: str, count: int) -> tuple[str, ...]:
    """Names of the tensors of a state.

    Example:
        >>> names("state", 2)
        ('state_0', 'state_1')
    """
    return tuple(f"{prefix}_{number}" for number in range(count))


def _fits(segment: Segment, after: Segment | None) -> bool:
    """Whether inputs and outputs have the right names, and lead on to the next segment."""
    graph, carried = segment.graph, segment.carried
    last, states = after is None, names("state", len(segment.state))
    history, own = ("logits", "answers"), ("answer", "score")[: 1 if last else 2]
    return (
        graph.inputs in [(*states, *SO_FAR[:count]) for count in range(3)]
        and graph.outputs
        in [(*names("next", carried), *history[:count], *own) for count in range(3)]
        and carried == (0 if after is None else len(after.state))
    )


def _check(manifest: Manifest, folder: str) -> None:
    exits, points = len(manifest.exit_names), len(manifest.points)
    ends = [segment.exit_index for segment in manifest.segments]
    if ends != sorted(set(ends) & set(range(exits))) or ends[-1] != exits - 1:
        raise FileFormatError(
            f"{folder}: the segments must end with exits in order, and with the last of the "
            f"{exits}, got {ends}"
        )
    for segment, after in zip(manifest.segments, (*manifest.segments[1:], None), strict=True):
        if not _fits(segment, after):
            raise FileFormatError(
                f"{folder}: the graph of exit {segment.exit_index} does not fit the others; "
                "export again"
            )
    if not 0 <= manifest.selected < points:
        raise FileFormatError(
            f"{folder}: `selected` must be one of the {points} operating points, got "
            f"{manifest.selected}"
        )
    if missing := manifest.missing_exits(manifest.selected):
        raise FileFormatError(
            f"{folder} has no graphs of the exits {', '.join(missing)}, which are open at the "
            "chosen point; export again"
        )
    if not (manifest.costs > 0).all() or not (np.diff(manifest.costs) > 0).all():
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
    ) -> Any:  # noqa: ANN401 - of `kind`
        found = self.meta.get(name)
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

    def floats(
        self, name: str, shape: Sequence[int], infinite: bool = False, unknown: bool = False
    ) -> Array:
        """Float64 of this shape from hexadecimal text; infinite values and nan only if allowed."""
        found = self.value(name, list)
        rows = found if len(shape) == 2 else [found]
        for row in rows:
            if not isinstance(row, list):
                raise self.wrong(name, "lists of numbers", row)
        numbers = [[_number(each, self, name) for each in row] for row in rows]
        count = shape[0] if len(shape) == 2 else 1
        if len(rows) != count or {len(row) for row in numbers} != {shape[-1]}:
            raise self.wrong(name, f"numbers of shape {list(shape)}", f"{len(rows)} rows")
        values = np.array(numbers, dtype=np.float64).reshape(shape)
        bad = (np.isinf(values) & (not infinite)) | (np.isnan(values) & (not unknown))
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
