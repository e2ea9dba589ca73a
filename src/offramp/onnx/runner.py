"""`OnnxRunner`: an export at work in ONNX Runtime, deciding as `Runner` does."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offramp import check
from offramp.arrays import AnyArray, Array, as_tensor, is_floating
from offramp.decide import ExitOutput
from offramp.errors import ConfigError, FileFormatError
from offramp.files import StoredFile
from offramp.imports import require
from offramp.machine import physical_cores
from offramp.networks.inputs import Inputs, TextInput, Tokenizer, check_numbers, tokenized
from offramp.networks.state import leaf_at
from offramp.onnx.manifest import SO_FAR, GraphFile, Manifest, Segment, names
from offramp.runtime.engine import StagedRunner, holds_tensors
from offramp.runtime.hold_budget import hold_window
from offramp.runtime.prepared_points import PreparedPoint, PreparedPoints
from offramp.runtime.shrinking_batch import ShrinkingBatch
from offramp.runtime.stats import Operation


class OnnxRunner(StagedRunner):
    """Runs the graphs of an export exit by exit and removes the samples that stop.

    It needs neither the network nor torch and is used as a `Runner` is: with `stream`, `stats`,
    deadlines and `set_budget`. From the same logits it decides as every other runner; ONNX
    Runtime's logits differ from torch's by rounding. A deadline is checked between graphs, and so
    can be overrun by all stages up to the next open exit.

    Args:
        folder: Folder that `export` wrote.
        threads: Threads of ONNX Runtime; by default one per physical core that the process may
            use, by its affinity and the quota of its container.
        false_alarm_rate: Probability of a false drift alarm in `stats`, over the whole stream.
        hold_budget: As for `Runner`; only points whose exits are in the export are used, so
            export with `points="all"`.
        tokenizer: Makes batches of texts, as for `Runner`.
        clock: Seconds, for deadlines.

    Attributes:
        manifest: The description of the export.
        policy: The policy that was exported, at its first operating point.
        threads: Threads of ONNX Runtime.

    Raises:
        ConfigError: `threads` is not positive.
        FileFormatError: The folder is foreign or damaged, or refers to files outside of it.
        MissingExtraError: The extra `onnx` is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        threads: int | None = None,
        *,
        false_alarm_rate: float = 0.01,
        hold_budget: bool | int = False,
        tokenizer: Tokenizer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if threads is not None:
            check.whole("threads", threads, least=1)
        self.manifest = manifest = Manifest.read(folder)
        self.policy = policy = manifest.load_policy(folder)
        self.threads = threads or physical_cores()
        self._folder, self._tokenizer = Path(folder), tokenizer
        thresholds = policy.points.thresholds
        points = PreparedPoints(
            policy,
            manifest.reads_outputs,
            missing=lambda index: manifest.missing_exits(thresholds[index].tolist()),
        )
        assert policy.selected is not None, "checked where it is loaded"
        assert policy.num_classes is not None
        super().__init__(
            Operation(points, policy.selected, false_alarm_rate, hold_window(hold_budget)),
            policy.num_classes,
            None if policy.confidence is None else policy.confidence.probability,
            clock=clock,
        )
        self._segments = self._open_segments()
        self._first_names = self._state_names(manifest.segments[0])

    def _open_segments(self) -> dict[int, "_Opened"]:
        """The graphs of segments, by the index of their first stage."""
        segments, first, opened = self.manifest.segments, 0, {}
        for segment, after in zip(segments, (*segments[1:], None), strict=True):
            graph = open_graph(self._folder, segment.graph, self.threads)
            following = () if after is None else self._state_names(after)
            opened[first] = _Opened(graph, segment.heads, following, SO_FAR in graph.inputs)
            first = segment.exit_index + 1
        return opened

    def _state_names(self, segment: Segment) -> tuple[str, ...]:
        """Names of the state before a segment. Texts keep theirs, by which padding is found."""
        if isinstance(self.manifest.inputs, TextInput):
            return tuple(str(path[0]) for path in segment.state)
        return names("state", len(segment.state))

    def __repr__(self) -> str:
        manifest, point = self.manifest, self.operation.point.index
        graphs = ", ".join(manifest.exit_names[each.exit_index] for each in manifest.segments)
        return (
            f"OnnxRunner({len(manifest.exit_names)} exits, {self.num_classes} classes, "
            f"{self.threads} thread{'s' * (self.threads > 1)}\n"
            f"  graphs up to: {graphs}\n"
            f"  at {float(self.policy.points.budgets[point]):.1%} of the network without exits)"
        )

    @property
    def thresholds(self) -> Array:
        """`[M]` float64, at the present operating point."""
        found: Array = self.policy.points.thresholds[self.operation.point.index]
        return found

    @property
    def inputs(self) -> Inputs:
        """What a batch looks like."""
        return self.manifest.inputs

    @property
    def about(self) -> dict[str, Any]:
        """What runs: the number of `exits`, and fingerprints of the `network` and the `policy`."""
        manifest = self.manifest
        exits = len(manifest.exit_names)
        return {"exits": exits, "network": manifest.network, "policy": manifest.policy}

    def full(self, x: Any) -> Any:  # noqa: ANN401 - a batch as the network takes it
        """The network without exits in ONNX Runtime, `[N, K]` float32, for comparison.

        An array, or a tensor for tensors.

        Raises:
            ConfigError: The export was made without it, by `export(..., full=False)`.
        """
        leaves = list(self._begin(x).values())
        with self._running(len(leaves[0])):
            (logits,) = self._full.run(leaves)
        return as_tensor(logits) if holds_tensors(x) else logits

    @cached_property
    def _full(self) -> "Graph":
        """Opened when it is first asked for: it has all weights once more."""
        graph = self.manifest.full
        if graph is None:
            raise ConfigError(
                f"{self._folder} was exported without the network without exits: export again "
                "with full=True"
            )
        return open_graph(self._folder, graph, self.threads)

    def _begin(self, x: Any) -> dict[str, Array]:  # noqa: ANN401
        """The arrays that the first graph takes, by name."""
        inputs, first = self.manifest.inputs, self.manifest.segments[0]
        state = inputs.begin(tokenized(x, self._tokenizer, inputs), counted=True)
        leaves = [_to_numpy(leaf_at(state, path)) for path in first.state]
        return dict(zip(self._first_names, leaves, strict=True))

    def _advance(self, point: PreparedPoint, exit_index: int, batch: ShrinkingBatch) -> None:
        """Run all stages up to the next exit, and the heads on the way, with the first of them."""
        opened = self._segments.get(exit_index)
        if opened is None:
            return
        assert isinstance(batch.state, dict), "arrays by name, in the order of the graph's inputs"
        leaves = [*batch.state.values()]
        if opened.reads_logits:
            before = batch.history.outputs
            assert before is not None, "what heads read is kept"
            leaves.append(before[:, :exit_index])
        is_read = any(map(point.decider.needs_head.__getitem__, opened.heads))
        outputs = opened.graph.run(leaves, None if is_read else len(opened.following))
        batch.state = dict(zip(opened.following, outputs, strict=False))
        batch.pending = outputs[-1] if is_read else None

    def _outputs(self, exit_index: int, batch: ShrinkingBatch) -> AnyArray:
        """What the graph that has run put out at one of its exits."""
        assert batch.pending is not None, "only exits that are read are asked"
        return batch.pending[:, self._places[exit_index]]

    @cached_property
    def _places(self) -> dict[int, int]:
        """By exit, which of the logits of its graph are its own."""
        heads = (segment.heads for segment in self.manifest.segments)
        return {exit_index: place for each in heads for place, exit_index in enumerate(each)}

    def _reached(
        self, point: PreparedPoint, exit_index: int, batch: ShrinkingBatch
    ) -> tuple[int, ExitOutput] | None:
        """The exit that the last graph ends with, which may be behind the last stage by number."""
        ends = (segment.exit_index for segment in self.manifest.segments)
        end = next(end for end in ends if end >= exit_index)
        return super()._reached(point, end, batch) if point.decider.is_open[end] else None


class _Opened(NamedTuple):
    """A segment whose graph is open."""

    graph: "Graph"
    heads: tuple[int, ...]  # the exits whose logits it has
    following: tuple[str, ...]  # names of the state behind it
    reads_logits: bool


class Graph:
    """One graph in ONNX Runtime, with the names of its `inputs` and `outputs` in order."""

    def __init__(self, session: Any) -> None:  # noqa: ANN401 - an InferenceSession
        self.inputs = [each.name for each in session.get_inputs()]
        self.outputs = [each.name for each in session.get_outputs()]
        self._session = session
        # Made once: ONNX Runtime makes them anew for every run without any.
        self._whole, self._part = (
            require("onnxruntime", extra="onnx").RunOptions() for _ in range(2)
        )
        self._part.only_execute_path_to_fetches = True

    def run(self, arrays: Sequence[Array], first: int | None = None) -> list[Array]:
        """Run it on arrays in the order of its inputs; with `first`, only the first outputs.

        Nothing is copied: ONNX Runtime reads contiguous arrays where they are. Binding inputs and
        outputs was measured to be no faster. What only other outputs need is not run.
        """
        feeds = dict(zip(self.inputs, map(np.ascontiguousarray, arrays), strict=True))
        outputs, options = self.outputs, self._whole
        if first is not None:
            outputs, options = outputs[:first], self._part
        found: list[Array] = self._session.run(outputs, feeds, options)
        return found


def open_graph(folder: Path, described: GraphFile, threads: int) -> Graph:
    """Open one graph of an export.

    Raises `FileFormatError` if the file is missing or not the one that was written, refers to
    other files, or has other inputs and outputs than described.
    """
    stored = StoredFile(described.file, described.bytes, described.sha256)
    path = stored.checked(folder)
    graph = graph_of(path.read_bytes(), str(path), threads)
    _check_names(path, "inputs", graph.inputs, described.inputs)
    _check_names(path, "outputs", graph.outputs, described.outputs)
    return graph


def graph_of(content: bytes, name: str, threads: int = 1) -> Graph:
    """A graph that is in memory; raises `FileFormatError` if it cannot be run."""
    return Graph(session_of(content, name, threads))


def _check_names(path: Path, what: str, found: list[str], expected: Sequence[str]) -> None:
    if found != list(expected):
        raise FileFormatError(
            f"{path} must have the {what} {', '.join(expected)}, got {', '.join(found)}"
        )


def session_of(content: bytes, name: str, threads: int, optimized: Path | None = None) -> Any:  # noqa: ANN401
    """A session on `threads` threads; with `optimized`, the simplified graph is written there."""
    runtime, onnx = require("onnxruntime", extra="onnx"), require("onnx", extra="onnx")
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's error classes are not public
        raise FileFormatError(f"{name} is not an ONNX graph: {error}") from None
    # A graph can refer to any file on the machine; exports never do.
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise FileFormatError(f"{name} refers to data in another file, which is never opened")
    options = runtime.SessionOptions()
    # Explicit numbers: left to itself, ONNX Runtime ties its threads to cores, whatever else runs.
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    # Every graph has its own threads. Those that sleep between operators cost half of the speed of
    # single samples; those that spin on after a run take the cores of the next graph's.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    if optimized is not None:
        # What this level makes of a graph runs on any machine and needs no operators of its own.
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(optimized)
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no class
        raise FileFormatError(f"{name} cannot be run by ONNX Runtime: {error}") from None


def _to_numpy(leaf: Array) -> np.ndarray[Any, Any]:
    """A leaf of a state as an array, in the memory that it has; half precision as float32."""
    if not isinstance(leaf, np.ndarray):
        narrow = is_floating(leaf) and leaf.itemsize < 4
        leaf = (leaf.float() if narrow else leaf).numpy(force=True)
    array: np.ndarray[Any, Any] = leaf
    check_numbers(array)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _tensors(graph: Any) -> Iterator[Any]:  # noqa: ANN401 - protobuf messages
    """All constants of a graph and of the graphs nested in it."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)
