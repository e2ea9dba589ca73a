"""ONNX graphs: opened without trusting the file, run, and compared with their origin."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offramp.errors import FileFormatError, NetworkError
from offramp.extras import require
from offramp.onnx.manifest import GraphFile

AGREEMENT = 1e-3  # largest difference of outputs, relative to 1 + their size


def open_graph(
    folder: Path, graph: GraphFile, inputs: Sequence[str], outputs: Sequence[str], threads: int
) -> Any:  # noqa: ANN401
    """Open one graph of an export as an `onnxruntime.InferenceSession`.

    Raises `FileFormatError` if the file is missing, is not the one that was written, refers to
    other files, or has other inputs and outputs than described.
    """
    path = folder / graph.file
    if not path.is_file():
        raise FileFormatError(f"{path} is missing, though the description names it")
    content = path.read_bytes()
    if len(content) != graph.bytes or hashlib.sha256(content).hexdigest() != graph.sha256:
        raise FileFormatError(
            f"{path} is truncated or was replaced: its size or hash is not the described one; "
            "export again"
        )
    session = _session(content, str(path), threads)
    _check_names(path, "inputs", [each.name for each in session.get_inputs()], inputs)
    _check_names(path, "outputs", [each.name for each in session.get_outputs()], outputs)
    return session


def _check_names(path: Path, what: str, found: list[str], expected: Sequence[str]) -> None:
    if found != list(expected):
        raise FileFormatError(
            f"{path} must have the {what} {', '.join(expected)}, got {', '.join(found)}"
        )


def _session(content: bytes, name: str, threads: int) -> Any:  # noqa: ANN401
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
    options.log_severity_level = 3
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


def run_graph(session: Any, tensors: Sequence[Tensor]) -> list[Tensor]:  # noqa: ANN401
    """Run a graph on tensors in the order of its inputs; contiguous ones are not copied."""
    names = [each.name for each in session.get_inputs()]
    feeds = {name: each.contiguous().numpy() for name, each in zip(names, tensors, strict=True)}
    return [torch.from_numpy(each) for each in session.run(None, feeds)]


def check_graph(content: bytes, module: nn.Module, args: Sequence[Tensor], name: str) -> None:
    """Raise `NetworkError` unless a graph returns what the module does, for all and for one."""
    session = _session(content, name, threads=1)
    for rows in (slice(None), slice(1)):
        inputs = [each[rows].contiguous() for each in args]
        with torch.inference_mode():
            returned = module(*inputs)
        wanted = (returned,) if isinstance(returned, Tensor) else returned
        pairs = zip(run_graph(session, inputs), wanted, strict=True)
        for number, (one, other) in enumerate(pairs):
            off = ((one - other).abs() / (1 + other.abs())).max() if one.numel() else 0.0
            if one.shape != other.shape or not off <= AGREEMENT:
                raise NetworkError(
                    f"{name} returns something else as an ONNX graph: output {number} has a "
                    f"relative error of {float(off):.2g}, and at most {AGREEMENT:g} is allowed"
                )
