"""ONNX graphs: opened only if they are the described ones, and run, without torch."""

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offramp.errors import FileFormatError
from offramp.extras import require
from offramp.onnx.manifest import GraphFile

Array = npt.NDArray[Any]


class Graph:
    """One graph in ONNX Runtime, with the names of its `inputs` and `outputs` in order."""

    def __init__(self, session: Any) -> None:  # noqa: ANN401 - an InferenceSession
        self.inputs = [each.name for each in session.get_inputs()]
        self.outputs = [each.name for each in session.get_outputs()]
        self._session = session
        self._part = require("onnxruntime", extra="onnx").RunOptions()
        self._part.only_execute_path_to_fetches = True

    def run(self, arrays: Sequence[Array], first: int | None = None) -> list[Array]:
        """Run it on arrays in the order of its inputs; with `first`, only the first outputs.

        Nothing is copied: ONNX Runtime reads contiguous arrays where they are. Binding inputs and
        outputs was measured to be no faster. What only other outputs need is not run.
        """
        pairs = zip(self.inputs, arrays, strict=True)
        feeds = {name: np.ascontiguousarray(array) for name, array in pairs}
        found: list[Array] = (
            self._session.run(self.outputs, feeds)
            if first is None
            else self._session.run(self.outputs[:first], feeds, self._part)
        )
        return found


def open_graph(folder: Path, described: GraphFile, threads: int) -> Graph:
    """Open one graph of an export.

    Raises `FileFormatError` if the file is missing or a link, is not the one that was written,
    refers to other files, or has other inputs and outputs than described.
    """
    path = folder / described.file
    if path.is_symlink():
        raise FileFormatError(f"{path} is a link, and an export holds its graphs itself")
    if not path.is_file():
        raise FileFormatError(f"{path} is missing, though the description names it")
    content = path.read_bytes() if path.stat().st_size == described.bytes else b""
    if hashlib.sha256(content).hexdigest() != described.sha256:
        raise FileFormatError(
            f"{path} is truncated or was replaced: its size or hash is not the described one; "
            "export again"
        )
    graph = graph_of(content, str(path), threads)
    _check_names(path, "inputs", graph.inputs, described.inputs)
    _check_names(path, "outputs", graph.outputs, described.outputs)
    return graph


def graph_of(content: bytes, name: str, threads: int = 1) -> Graph:
    """A graph that is in memory; raises `FileFormatError` if it cannot be run."""
    return Graph(_session(content, name, threads))


def _check_names(path: Path, what: str, found: list[str], expected: Sequence[str]) -> None:
    if found != list(expected):
        raise FileFormatError(
            f"{path} must have the {what} {', '.join(expected)}, got {', '.join(found)}"
        )


def _session(content: bytes, name: str, threads: int, optimized: Path | None = None) -> Any:  # noqa: ANN401
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


def optimized(content: bytes, name: str) -> bytes:
    """The same graph with constants folded and normalisation merged into convolutions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.onnx"
        _session(content, name, threads=1, optimized=path)
        return path.read_bytes()
