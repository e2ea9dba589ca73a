"""The description of an export: its graphs, and everything that decisions depend on.

Floats that decisions depend on are written as hexadecimal text, which every language reads back
bit by bit. Files are named without a path: a description cannot point outside its folder.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from offramp.arrays import Array
from offramp.errors import FileFormatError
from offramp.files import read_description, restore, write_description
from offramp.networks.inputs import Inputs
from offramp.runtime.prepared_points import PreparedPoint, open_exits
from offramp.thresholds.points import OperatingPoints
from offramp.thresholds.rule import rounded_up

VERSION = 3
BARE = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\.onnx$"  # names of files without a path
SO_FAR = ("logits_so_far", "answers_so_far")


@dataclass(frozen=True)
class GraphFile:
    """The file of one graph."""

    file: Annotated[str, Meta(pattern=BARE)]
    bytes: Annotated[int, Meta(gt=0)]  # size of the file
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]  # hash of its content
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
        where = str(folder)
        found: _File = restore(_File, read_description(Path(folder), "export", VERSION), where)
        exits = len(found.exit_names)
        read = {
            "inputs": Inputs.restore(found.inputs),
            "costs": _floats(f"{where}: `costs`", found.costs, (exits,)),
            "points": _read_points(found.points, exits, where),
        }
        manifest = cls(**{**vars(found), **read})
        _check(manifest, str(folder))
        return manifest


_EXPONENT = "[0-9]{1,3}|10[01][0-9]|102[0-3]"  # of what a float64 can be
Hex = Annotated[str, Meta(pattern=rf"^(-?0x[01](\.[0-9a-f]+)?p[+-]?({_EXPONENT})|-?inf|nan)$")]


@dataclass
class _Points:
    """Operating points in the file."""

    thresholds: list[list[Hex]]
    budgets: Annotated[list[Hex], Meta(min_length=1)]
    accuracies: list[Hex]
    shares: list[list[Hex]]
    full_accuracy: Hex


@dataclass
class _File:
    """A manifest in the file, where what decisions depend on is text."""

    inputs: dict[str, Any]
    num_classes: Annotated[int, Meta(gt=0)]
    exit_names: Annotated[tuple[str, ...], Meta(min_length=1)]
    costs: list[Hex]
    points: _Points
    selected: int
    val_samples: Annotated[int, Meta(gt=0)]
    segments: Annotated[tuple[Segment, ...], Meta(min_length=1)]
    network: str
    policy: str
    confidence: GraphFile | None = None
    full: GraphFile | None = None
    notes: dict[str, Any] = field(default_factory=dict)


def hex_floats(values: Array) -> list[Any]:
    """Nested lists of hexadecimal floats.

    Example:
        >>> hex_floats(np.array([0.5, np.inf]))
        ['0x1.0000000000000p-1', 'inf']
    """
    if values.ndim > 1:
        return [hex_floats(row) for row in values]
    return [float(value).hex() for value in values]


def _read_points(found: _Points, exits: int, where: str) -> OperatingPoints:
    count, name = len(found.budgets), f"{where}: `points.{{}}`".format
    return OperatingPoints(
        thresholds=_floats(name("thresholds"), found.thresholds, (count, exits), "infinite"),
        budgets=_floats(name("budgets"), found.budgets, (count,)),
        accuracies=_floats(name("accuracies"), found.accuracies, (count,), "unknown"),
        shares=_floats(name("shares"), found.shares, (count, exits)),
        full_accuracy=float.fromhex(found.full_accuracy),
    )


def _floats(name: str, texts: list[Any], shape: tuple[int, ...], may_be: str = "") -> Array:
    """Float64 of this shape from hexadecimal text, finite unless they may be something else."""
    rows = texts if len(shape) == 2 else [texts]
    found = [[float.fromhex(text) for text in row] for row in rows]
    if len(found) != (1, *shape)[-2] or {len(row) for row in found} != {shape[-1]}:
        raise FileFormatError(f"{name} must be numbers of shape {list(shape)}")
    values = np.array(found).reshape(shape)
    allowed = {"infinite": ~np.isnan(values), "unknown": ~np.isinf(values)}
    bad = values[~allowed.get(may_be, np.isfinite(values))]
    if bad.size:
        raise FileFormatError(f"{name} must be numbers, got {bad.tolist()[:3]}")
    return values


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
