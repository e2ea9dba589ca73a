"""`export`: one ONNX graph per stage, with its head, answer and scorer inside."""

import copy
import hashlib
import json
import logging
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offramp.answers import CurrentExit
from offramp.errors import FileFormatError, NetworkError
from offramp.extras import require
from offramp.networks.inputs import AnyInput, Inputs, TensorInput, TextInput
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import Shared, State, map_leaves, named_leaves, take
from offramp.onnx.graphs import check_graph
from offramp.onnx.manifest import VERSION, GraphFile, Manifest, StageFile, output_names
from offramp.onnx.single import nested_graph
from offramp.policy import Policy
from offramp.runtime.operating_point import answer_and_score, val_samples
from offramp.runtime.runner import Runner
from offramp.storage import atomic_path, check_target, read_description

OPSET = 20


def export(
    network: EarlyExitNetwork,
    policy: Policy,
    folder: str | Path,
    example: Any = None,  # noqa: ANN401 - a batch as the network takes it
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
    single: bool = False,
    full: bool = True,
) -> Path:
    """Write a network and its policy as ONNX graphs, for `OnnxRunner` or any other program.

    The graphs take any batch size, and texts of any length up to the network's limit; images keep
    their size. Each graph is run once in ONNX Runtime and compared before it is written. The
    description `export.json` comes last, so an interrupted export leaves the older one intact.

    Args:
        network: On any device; exported in float32.
        policy: A policy of this network at an operating point; all of its points are exported.
        folder: Created if needed; an older export there is replaced.
        example: A batch of at least two samples, if the network does not know its inputs.
        progress: Called with the number of finished graphs, their total, and what comes next.
        single: Also write one graph for single samples, in which the stages are nested.
        full: Also write the network without exits, for comparison: `OnnxRunner.full`.

    Returns:
        The folder's path.

    Raises:
        NetworkError: A stage, head, answer or scorer cannot be written as a graph, or the policy
            is for another network.
        MissingExtraError: The extra `onnx` is not installed.
    """
    for needed in ("onnx", "onnxscript", "onnxruntime"):
        require(needed, extra="onnx")
    folder = Path(folder)
    check_target(folder, "export")
    Runner(network, policy)  # raises unless they belong together
    stale = _own_files(folder)
    plain = copy.deepcopy(network).cpu().float().eval()
    inputs, state = _first_state(plain, example)
    files: list[StageFile] = []
    extra: list[GraphFile] = []
    begin = state
    try:
        for exit_index, name in enumerate(network.exit_names):
            progress(exit_index, network.num_exits, name)
            module = StageModule(plain, policy, exit_index, state)
            files.append(_write_graph(module, name, folder, isinstance(inputs, TextInput)))
            state = module.after
        progress(network.num_exits, network.num_exits, "done")
        manifest = _manifest(network, policy, inputs, files)
        if single:
            extra.append(_write_single(manifest, folder))
            manifest = replace(manifest, single=extra[-1])
        if full:
            extra.append(_write_full(plain, begin, folder, isinstance(inputs, TextInput)))
            manifest = replace(manifest, full=extra[-1])
        manifest.write(folder)
    except BaseException:
        stale = [folder / each.file for each in (*files, *extra)]  # half an export is useless
        raise
    finally:
        for path in stale:
            path.unlink(missing_ok=True)
    return folder


def _manifest(
    network: EarlyExitNetwork, policy: Policy, inputs: Inputs, files: list[StageFile]
) -> Manifest:
    assert policy.selected is not None, "a runner has a point"
    return Manifest(
        inputs=inputs,
        num_classes=network.num_classes,
        exit_names=network.exit_names,
        costs=policy.cost_shares,
        points=policy.points,
        selected=policy.selected,
        val_samples=val_samples(policy),
        has_confidence=policy.confidence is not None,
        stages=tuple(files),
        network=network.fingerprint(),
        policy=_fingerprint(policy),
    )


class StageModule(nn.Module):
    """One stage with its head, answer, scorer and confidence: flat tensors in and out.

    `state` is that of an example before the stage, `after` the one behind it. What all samples
    share in a state must not depend on the batch.
    """

    def __init__(
        self, network: EarlyExitNetwork, policy: Policy, exit_index: int, state: State
    ) -> None:
        super().__init__()
        self.stage, self.head = network.stages[exit_index], network.heads[exit_index]
        self.policy, self.exit_index, self.template = policy, exit_index, state
        self.is_last = exit_index == network.num_exits - 1
        self.after = self._advanced()
        self.num_classes = network.num_classes
        scores_back = policy.scorer.reads_history and not self.is_last
        reads = [self._head_reads, policy.answer.reads_history, scores_back]
        self.reads_logits = exit_index > 0 and any(reads)
        plain = type(policy.answer) is CurrentExit
        self.reads_answers = exit_index > 0 and scores_back and not plain

    @property
    def _head_reads(self) -> bool:
        return bool(getattr(self.head, "reads_logits", True)) and self.exit_index > 0

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the stage; `output_names` says in which order the outputs come."""
        inputs = iter(tensors)
        state: State = self.stage(map_leaves(lambda _: next(inputs), self.template))
        before = next(inputs) if self.reads_logits else None
        earlier = next(inputs) if self.reads_answers else None
        logits = self.head(state, before if self._head_reads else None).float()
        now = logits.unsqueeze(1)
        # If nothing looks back, the new logits stand in for the earlier ones.
        so_far = now.expand(-1, self.exit_index + 1, -1)
        if before is not None:
            so_far = torch.cat([before, now], dim=1)
        answer, scores = answer_and_score(self.policy, so_far, earlier, score=not self.is_last)
        outputs = [] if self.is_last else _tensors(state)
        outputs += [logits, answer] + ([] if scores is None else [scores])
        if self.policy.confidence is not None:
            exits = torch.full_like(answer[:, 0], self.exit_index, dtype=torch.long)
            outputs.append(self.policy.confidence.probability(answer, exits, scores))
        # An output of a graph must be neither one of its inputs nor another output.
        return tuple(each.clone() for each in outputs)

    def example(self) -> tuple[Tensor, ...]:
        """The graph's inputs, for the example."""
        leaves = _tensors(self.template)
        shape = len(leaves[0]), self.exit_index, self.num_classes
        # Separate tensors: one given twice would become one input.
        reads = range(self.reads_logits + self.reads_answers)
        return (*leaves, *(torch.rand(shape) for _ in reads))

    @torch.no_grad()
    def _advanced(self) -> State:
        """The example's state after this stage; its shared parts must not depend on the batch."""
        after: State = self.stage(self.template)
        fewer: State = self.stage(take(self.template, torch.tensor([1])))
        pairs = zip(named_leaves(after), named_leaves(fewer), strict=True)
        for (path, one), (_, other) in pairs:
            if isinstance(one, Shared) and not _same(one.value, other.value):  # type: ignore[union-attr]
                raise NetworkError(
                    f"the state after stage {self.exit_index} cannot be exported: its shared part "
                    f"{list(path)} changes with the batch, and a graph keeps it fixed"
                )
        return after

    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        carried = None if self.is_last else len(_tensors(self.after))
        return output_names(carried, self.policy.confidence is not None)

    def paths(self) -> tuple[tuple[str | int, ...], ...]:
        """The keys and positions that lead to each tensor of the incoming state."""
        leaves = named_leaves(self.template)
        return tuple(path for path, leaf in leaves if isinstance(leaf, Tensor))


class FullModule(nn.Module):
    """The network without exits: all stages and the last head, flat tensors in, logits out."""

    def __init__(self, network: EarlyExitNetwork, state: State) -> None:
        super().__init__()
        self.network, self.template = network, state

    def forward(self, *tensors: Tensor) -> Tensor:
        """Logits `[n, K]` of the last exit; earlier heads run only if later ones read them."""
        inputs, logits = iter(tensors), list[Tensor]()
        state: State = map_leaves(lambda _: next(inputs), self.template)
        heads = self.network.heads
        reads = any(getattr(head, "reads_logits", True) for head in list(heads)[1:])
        for exit_index in range(self.network.num_exits):
            state = self.network.advance(exit_index, state)
            if reads or exit_index == len(heads) - 1:
                so_far = torch.stack(logits, 1) if logits else None
                logits.append(self.network.head(exit_index, state, so_far).float())
        return logits[-1]


def _tensors(state: State) -> list[Tensor]:
    return [leaf for _, leaf in named_leaves(state) if isinstance(leaf, Tensor)]


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - whatever is shared
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def _first_state(network: EarlyExitNetwork, example: Any) -> tuple[Inputs, State]:  # noqa: ANN401
    """The inputs that the export takes, and the state of an example."""
    inputs = network.inputs
    if isinstance(inputs, AnyInput) and isinstance(example, Tensor):
        inputs = TensorInput.like(example)
    # Several samples: torch.export treats sizes of 0 and 1 as constants.
    state = network.begin(network.example(3) if example is None else example)
    return inputs, state


def _write_graph(module: StageModule, name: str, folder: Path, is_text: bool) -> StageFile:
    file = f"stage-{module.exit_index}-{secrets.token_hex(4)}.onnx"
    graph = StageFile(file, 1, "0" * 64, module.paths(), module.reads_logits, module.reads_answers)
    content = _content(
        module,
        module.example(),
        (graph.input_names, module.output_names()),
        f"exit {module.exit_index} ({name})",
        is_text,
    )
    written = _written(folder / file, content)
    return StageFile(*written, graph.state, graph.reads_logits, graph.reads_answers)


def _write_full(network: EarlyExitNetwork, state: State, folder: Path, is_text: bool) -> GraphFile:
    example = tuple(_tensors(state))
    names = [f"state_{number}" for number in range(len(example))], ["logits"]
    content = _content(
        FullModule(network, state), example, names, "the network without exits", is_text
    )
    return GraphFile(*_written(folder / f"full-{secrets.token_hex(4)}.onnx", content))


def _content(
    module: nn.Module,
    args: tuple[Tensor, ...],
    names: tuple[list[str], list[str]],
    what: str,
    is_text: bool,
) -> bytes:
    """A module as a checked graph; `names` are those of its inputs and of its outputs."""
    leaves = sum(name.startswith("state_") for name in names[0])
    try:
        with _quietly(), torch.no_grad():
            program = torch.onnx.export(
                module,
                args,
                dynamo=True,
                opset_version=OPSET,
                input_names=names[0],
                output_names=names[1],
                dynamic_shapes=[_dynamic(args, leaves, is_text)],
                verbose=False,
            )
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, ValueError, TypeError) as error:
        raise NetworkError(
            f"{what} cannot be written as an ONNX graph: {_reason(error)}"
        ) from error
    assert program is not None, "dynamo=True returns a program"
    content: bytes = program.model_proto.SerializeToString()
    check_graph(content, module, args, what)
    return content


def _write_single(manifest: Manifest, folder: Path) -> GraphFile:
    contents = [(folder / stage.file).read_bytes() for stage in manifest.stages]
    limits = manifest.operating_point(manifest.selected).limits
    content = nested_graph(contents, manifest.stages, limits, manifest.has_confidence)
    return GraphFile(*_written(folder / f"single-{secrets.token_hex(4)}.onnx", content))


def _written(path: Path, content: bytes) -> tuple[str, int, str]:
    """Write a graph, and return its file name, size and hash."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    return path.name, len(content), hashlib.sha256(content).hexdigest()


def _reason(error: BaseException) -> str:
    """The first line of the root cause; the exporter wraps it in advice on debugging torch."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _dynamic(args: tuple[Tensor, ...], leaves: int, is_text: bool) -> tuple[dict[int, Any], ...]:
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    state = {0: batch, 1: length} if is_text else {0: batch}
    return tuple(state if number < leaves else {0: batch} for number in range(len(args)))


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporter, and torch's trace, which doubles the time an export takes."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.__trace")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _fingerprint(policy: Policy) -> str:
    """A hash of everything that the policy has learned, and of its operating points."""
    digest = hashlib.sha256()
    components: dict[str, Any] = {"answer": policy.answer, "scorer": policy.scorer}
    if policy.confidence is not None:
        components["confidence"] = policy.confidence
    tensors = {f"points.{key}": value for key, value in policy.points.tensors().items()}
    for name, component in components.items():
        digest.update(json.dumps(component.describe(), sort_keys=True, default=str).encode())
        tensors |= {f"{name}.{key}": value for key, value in component.state().items()}
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _own_files(folder: Path) -> list[Path]:
    """The graphs of an older export: those that its description names."""
    try:
        older = read_description(folder, "export", VERSION)
        extra = [older[name] for name in ("single", "full") if name in older]
        names = [graph["file"] for graph in (*older["stages"], *extra)]
        return [folder / name for name in names if Path(name).name == name]
    except (FileFormatError, KeyError, TypeError):
        return []
