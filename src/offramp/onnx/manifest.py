"""The description of an export: its graphs, and where its policy is.

Files are named without a path: a description cannot point outside its folder.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from offramp.decide import open_exits
from offramp.errors import FileFormatError
from offramp.files import read_description, restore, write_description
from offramp.networks.inputs import Inputs
from offramp.policy import Policy

VERSION = 5
BARE = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\.onnx$"  # names of files without a path
POLICY = r"^policy-[0-9a-f]{8}$"
SO_FAR, LOGITS = "logits_so_far", "logits"


@dataclass(frozen=True)
class GraphFile:
    """The file of one graph."""

    file: Annotated[str, Meta(pattern=BARE)]
    bytes: Annotated[int, Meta(gt=0)]  # size of the file
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]  # hash of its content
    inputs: tuple[str, ...]  # names, in order
    outputs: tuple[str, ...]  # names, in order


@dataclass(frozen=True)
class Segment:
    """The way from one exit of an export to the next, that exit included, as one graph.

    Exits that are closed have no segment of their own; where something later reads their logits,
    the graph returns them, too.
    """

    heads: Annotated[tuple[int, ...], Meta(min_length=1)]  # exits whose logits `[n, e, K]` it has
    # the keys and positions that lead to each tensor of the incoming state; these tensors are the
    # inputs `state_0`, `state_1`, ... of the graph
    state: tuple[tuple[str | int, ...], ...]
    graph: GraphFile  # stages and heads

    @property
    def exit_index(self) -> int:
        """The exit that it ends with."""
        return self.heads[-1]

    @property
    def carried(self) -> int:
        """How many tensors it passes on to the next segment."""
        return sum(name.startswith("next_") for name in self.graph.outputs)


@dataclass(frozen=True, eq=False)
class Manifest:
    """Everything about an export but the graphs and the policy themselves."""

    inputs: Inputs  # what a batch looks like
    exit_names: tuple[str, ...]  # `[M]`
    reads_outputs: tuple[bool, ...]  # `[M]`, which heads read the logits of the exits before them
    segments: tuple[Segment, ...]  # in order; the last one ends with the last exit
    network: str  # fingerprint of the network
    policy: str  # fingerprint of the policy
    policy_folder: str  # name of the folder with the policy
    full: GraphFile | None = None  # the network without exits, if there is one
    notes: dict[str, Any] = field(default_factory=dict)  # what else its reader should know

    @property
    def graphs(self) -> list[GraphFile]:
        """All graphs of the export."""
        own = [segment.graph for segment in self.segments]
        return own if self.full is None else [*own, self.full]

    def missing_exits(self, thresholds: Sequence[float]) -> list[str]:
        """Names of the exits that are open with these thresholds, and that no graph has."""
        present = {segment.exit_index for segment in self.segments}
        return [
            self.exit_names[index]
            for index, is_open in enumerate(open_exits(thresholds))
            if is_open and index not in present
        ]

    def load_policy(self, folder: str | Path) -> Policy:
        """The policy that was exported, at its operating point.

        Raises:
            FileFormatError: It is missing or damaged, or not the one that was exported.
        """
        where = Path(folder) / self.policy_folder
        policy = Policy.load(where)
        if policy.fingerprint() != self.policy:
            raise FileFormatError(f"{where} is not the policy that was exported; export again")
        if len(policy.exits) != len(self.exit_names) or policy.selected is None:
            raise FileFormatError(
                f"{where} must be at an operating point of {len(self.exit_names)} exits; export "
                "again"
            )
        if missing := self.missing_exits(policy.thresholds.tolist()):
            raise FileFormatError(
                f"{folder} has no graphs of the exits {', '.join(missing)}, which are open at the "
                "chosen point; export again"
            )
        return policy

    def write(self, folder: Path) -> Path:
        """Write the description into the folder, which completes the export."""
        meta = {
            **{name: value for name, value in vars(self).items() if value is not None},
            "inputs": self.inputs.describe(),
            "segments": [asdict(segment) for segment in self.segments],
        }
        if self.full is not None:
            meta["full"] = asdict(self.full)
        return write_description(folder, "export", VERSION, meta)

    @classmethod
    def read(cls, folder: str | Path) -> "Manifest":
        """Read and check a description; no other file is opened."""
        where = str(folder)
        found: _File = restore(_File, read_description(Path(folder), "export", VERSION), where)
        manifest = cls(**{**vars(found), "inputs": Inputs.restore(found.inputs)})
        _check(manifest, where)
        return manifest


@dataclass
class _File:
    """A manifest in the file."""

    inputs: dict[str, Any]
    exit_names: Annotated[tuple[str, ...], Meta(min_length=1)]
    reads_outputs: tuple[bool, ...]
    segments: Annotated[tuple[Segment, ...], Meta(min_length=1)]
    network: str
    policy: str
    policy_folder: Annotated[str, Meta(pattern=POLICY)]
    full: GraphFile | None = None
    notes: dict[str, Any] = field(default_factory=dict)


def names(prefix: str, count: int) -> tuple[str, ...]:
    """Names of the tensors of a state.

    Example:
        >>> names("state", 2)
        ('state_0', 'state_1')
    """
    return tuple(f"{prefix}_{number}" for number in range(count))


def _fits(segment: Segment, after: Segment | None) -> bool:
    """Whether inputs and outputs have the right names, and lead on to the next segment."""
    graph, states = segment.graph, names("state", len(segment.state))
    carried = 0 if after is None else len(after.state)
    return graph.inputs in [states, (*states, SO_FAR)] and graph.outputs == (
        *names("next", carried),
        LOGITS,
    )


def _check(manifest: Manifest, folder: str) -> None:
    exits = len(manifest.exit_names)
    heads = [exit_index for segment in manifest.segments for exit_index in segment.heads]
    if heads != sorted(set(heads) & set(range(exits))) or heads[-1] != exits - 1:
        raise FileFormatError(
            f"{folder}: the segments must have exits in order, and end with the last of the "
            f"{exits}, got {heads}"
        )
    if len(manifest.reads_outputs) != exits:
        raise FileFormatError(f"{folder}: `reads_outputs` must have {exits} values")
    for segment, after in zip(manifest.segments, (*manifest.segments[1:], None), strict=True):
        if not _fits(segment, after):
            raise FileFormatError(
                f"{folder}: the graph of exit {segment.exit_index} does not fit the others; "
                "export again"
            )
