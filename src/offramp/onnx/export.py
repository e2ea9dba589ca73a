"""`export`: a network and its policy as ONNX graphs, from one open exit to the next."""

import copy
import hashlib
import logging
import re
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from offramp import check
from offramp.decide import open_exits
from offramp.errors import FileFormatError, NetworkError
from offramp.files import atomic_path, check_alone, read_json, stored_in
from offramp.imports import require
from offramp.networks.inputs import AnyInput, Inputs, TextInput, inputs_like
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import State
from offramp.onnx.cut import NotCuttableError, Traced, Values
from offramp.onnx.manifest import BARE, LOGITS, POLICY, SO_FAR, GraphFile, Manifest, Segment, names
from offramp.onnx.modules import (
    ExportedNetwork,
    FullModule,
    GraphModule,
    SegmentModule,
    WholeModule,
)
from offramp.onnx.runner import graph_of, session_of
from offramp.policy import Policy
from offramp.progress import Progress, showing
from offramp.runtime.runner import network_of

logger = logging.getLogger(__name__)

OPSET = 20
AGREEMENT = 1e-3  # largest difference of outputs, relative to 1 + their size


def export(
    network: EarlyExitNetwork,
    policy: Policy,
    folder: str | Path,
    example: Any = None,  # noqa: ANN401 - a batch as the network takes it
    progress: bool | Progress = True,
    points: Literal["selected", "all"] = "selected",
    full: bool = True,
    notes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a network as ONNX graphs, and its policy beside them, for `OnnxRunner`.

    All stages from one exit to the next, and the head of that exit, are one graph. Exits that are
    closed disappear, so that ONNX Runtime optimises across them. The graphs put out logits, and
    the policy decides by them as it does everywhere, so neither needs torch.

    The graphs take any batch size, and texts of any length up to the network's limit; images keep
    their size. Each graph is run once in ONNX Runtime and compared before it is written. The
    description `export.json` comes last, so an interrupted export leaves the older one intact.

    Args:
        network: On any device; exported in float32.
        policy: A policy of this network at an operating point.
        folder: Created if needed; an older export there is replaced.
        example: A batch of at least two samples, if the network does not know its inputs.
        progress: Whether progress is shown, on stderr; or an `offramp.progress.Progress`.
        points: `selected` keeps the exits that are open at the policy's operating point, which
            is fastest; `OnnxRunner.set_budget` then reaches the points that open no others.
            `all` keeps the exits that are open at any point.
        full: Also write the network without exits, for comparison: `OnnxRunner.full`.
        notes: JSON values to keep in `export.json`, such as `class_names`; `offramp export` notes
            how images are read.

    Returns:
        The folder's path.

    Raises:
        NetworkError: A stage or head cannot be written as a graph, or the policy is for another
            network.
        ConfigError: `points` is something else.
        MissingExtraError: The extra `onnx` is not installed.
    """
    check.one_of("points", points, ("selected", "all"))
    require_packages()
    check_alone(folder, "export")
    with showing(progress) as shown:
        shown.step(0, 1, "tracing the network")
        made = Tracing(network, example)
        return made.export(policy, folder, shown, points=points, full=full, notes=notes)


def require_packages() -> None:
    """Raise `MissingExtraError` unless graphs can be written."""
    for needed in ("onnx", "onnxscript", "onnxruntime"):
        require(needed, extra="onnx")


class Tracing:
    """A network that is traced once, for any number of exports with some of its exits.

    Args:
        network: As for `export`.
        example: As for `export`.
    """

    def __init__(self, network: EarlyExitNetwork, example: Any = None) -> None:  # noqa: ANN401
        self.network = network
        self.plain = copy.deepcopy(network).cpu().float().eval()
        self.inputs, self.state = _first_state(self.plain, example)
        self.is_text = isinstance(self.inputs, TextInput)

    @cached_property
    def _traced(self) -> Traced | None:
        """The whole network; None if it cannot be traced in one piece."""
        module = WholeModule(self.plain, self.state)
        try:
            return Traced(_content(module, "the network", self.is_text))
        except NetworkError as error:  # what is wrong is told of the graph in which it is
            logger.debug("graphs are traced one by one: %s", error)
            return None

    def export(
        self,
        policy: Policy,
        folder: str | Path,
        progress: Progress,
        *,
        points: str = "selected",
        full: bool = True,
        notes: Mapping[str, Any] | None = None,
    ) -> Path:
        """As `export`, of a policy for this network."""
        folder = Path(folder)
        stale = _own_files(folder)
        is_whole = network_of(policy, self.network) is self.network
        plain = self.plain if is_whole else self.plain.keep_exits(policy.exits)
        exits = range(plain.num_exits) if is_whole else policy.exits
        exported = ExportedNetwork(plain, policy, _kept_exits(policy, points))
        total = len(exported.kept) + full
        writer = _Writer(folder, self, exits, total, progress)
        try:
            manifest = Manifest(
                inputs=self.inputs,
                exit_names=tuple(plain.exit_names),
                reads_outputs=tuple(exported.head_reads),
                segments=_write_segments(writer, exported, self.state),
                network=self.network.fingerprint(),
                policy=policy.fingerprint(),
                full=(
                    writer.write(
                        FullModule(exported, self.state), "full", "the network without exits"
                    )
                    if full
                    else None
                ),
                policy_folder=writer.write_policy(policy),
                notes=dict(notes or {}),
            )
            manifest.write(folder)
        except BaseException:
            stale = writer.written  # half an export is useless
            raise
        finally:
            for path in stale:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        progress.step(total, total, "done")
        return folder

    def content(self, module: GraphModule, exits: Sequence[int], what: str) -> bytes:
        """A module as a graph: cut out of the whole network, or traced by itself.

        Args:
            module: Of a network that has these exits.
            exits: Numbers of these exits in the whole network.
            what: Its name in messages.
        """
        if self._traced is not None:
            with torch.inference_mode():
                examples = dict(zip(module.outputs, module(*module.args), strict=True))
            examples |= dict(zip(module.inputs, module.args, strict=True))
            sizes = {name: _dynamic(name, self.is_text) for name in module.inputs}
            try:
                return self._traced.part(*_ends(module, exits), examples, sizes)
            except NotCuttableError as error:
                logger.debug("%s is traced by itself: it needs %s", what, error)
        return _content(module, what, self.is_text)


def _ends(module: GraphModule, exits: Sequence[int]) -> tuple[Values, Values]:
    """By name of the inputs and the outputs of a module, what they are in the whole network."""
    states = tuple(name for name in module.inputs if name != SO_FAR)
    given: Values
    if isinstance(module, FullModule):
        return {name: (name,) for name in states}, {LOGITS: (f"answer_{exits[-1]}",)}
    assert isinstance(module, SegmentModule)
    first, end = module.exits[0], exits[module.exits[-1]]
    before = names(f"after_{exits[first - 1]}", len(states)) if first else states
    given = {name: (value,) for name, value in zip(states, before, strict=True)}
    if SO_FAR in module.inputs:
        given[SO_FAR] = tuple(f"{LOGITS}_{exits[each]}" for each in range(first))
    carried = names("next", len(module.outputs) - 1)
    after = names(f"after_{end}", len(carried))
    wanted: Values = {name: (value,) for name, value in zip(carried, after, strict=True)}
    return given, {**wanted, LOGITS: tuple(f"{LOGITS}_{exits[each]}" for each in module.run)}


def _kept_exits(policy: Policy, points: str) -> list[int]:
    """The exits that are open at the selected operating point, or at any."""
    everywhere = policy.points.thresholds.min(axis=0)
    lowest = (everywhere if points == "all" else policy.thresholds).tolist()
    return [index for index, is_open in enumerate(open_exits(lowest)) if is_open]


def _write_segments(
    writer: "_Writer", exported: ExportedNetwork, state: State
) -> tuple[Segment, ...]:
    segments = []
    for exits in exported.segments():
        end, name = exits[-1], exported.network.exit_names[exits[-1]]
        module = SegmentModule(exported, exits, state)
        state = module.after
        graph = writer.write(module, f"exit-{end}", f"the way to exit {end} ({name})")
        segments.append(Segment(module.run, module.paths(), graph))
    return tuple(segments)


class _Writer:
    """Turns modules into checked graphs in a folder; `written` are the paths so far."""

    def __init__(
        self,
        folder: Path,
        made_from: Tracing,
        exits: Sequence[int],
        total: int,
        progress: Progress,
    ) -> None:
        self.written: list[Path] = []
        self._folder, self._made_from, self._exits = folder, made_from, exits
        self._total, self._progress = total, progress

    def write(self, module: GraphModule, stem: str, what: str) -> GraphFile:
        """Write one graph under a fresh name that begins with `stem`."""
        self._progress.step(len(self.written), self._total, what)
        content = _optimized(self._made_from.content(module, self._exits, what), what)
        _check_graph(content, module, module.args, what)
        path = self._folder / f"{stem}-{secrets.token_hex(4)}.onnx"
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)
        self.written.append(path)
        digest = hashlib.sha256(content).hexdigest()
        return GraphFile(path.name, len(content), digest, module.inputs, module.outputs)

    def write_policy(self, policy: Policy) -> str:
        """Write the policy under a fresh name, which is returned."""
        path = self._folder / f"policy-{secrets.token_hex(4)}"
        self.written.append(path)
        policy.save(path)
        return path.name


def _content(module: GraphModule, what: str, is_text: bool) -> bytes:
    """A module as a graph, as the exporter of torch makes it."""
    try:
        with _quietly(), torch.no_grad():
            program = torch.onnx.export(
                module,
                module.args,
                dynamo=True,
                opset_version=OPSET,
                input_names=list(module.inputs),
                output_names=list(module.outputs),
                dynamic_shapes=[_dynamic_shapes(module, is_text)],
                verbose=False,
            )
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, ValueError, TypeError) as error:
        raise NetworkError(
            f"{what} cannot be written as an ONNX graph: {_reason(error)}"
        ) from error
    assert program is not None, "dynamo=True returns a program"
    content: bytes = program.model_proto.SerializeToString()
    return content


def _dynamic_shapes(module: GraphModule, is_text: bool) -> tuple[Any, ...]:  # as torch takes them
    dims = {name: torch.export.Dim(name) for name in ("batch", "length")}
    return tuple(
        {place: dims[size] for place, size in _dynamic(name, is_text).items()}
        for name in module.inputs
    )


def _dynamic(name: str, is_text: bool) -> dict[int, str]:
    """The dimensions of an input that have no fixed size: texts may have any length, too."""
    return {0: "batch", 1: "length"} if is_text and name != SO_FAR else {0: "batch"}


def _optimized(content: bytes, name: str) -> bytes:
    """The same graph with constants folded and normalisation merged into convolutions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.onnx"
        session_of(content, name, threads=1, optimized=path)
        return path.read_bytes()


def _check_graph(content: bytes, module: nn.Module, args: Sequence[Tensor], name: str) -> None:
    """Raise `NetworkError` unless a graph returns what the module does, for all and for one."""
    graph = graph_of(content, name)
    for rows in (slice(None), slice(1)):
        inputs = [each[rows].contiguous() for each in args]
        with torch.inference_mode():
            wanted = module(*inputs)
        found = map(torch.from_numpy, graph.run([each.numpy() for each in inputs]))
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            off = ((one - other).abs() / (1 + other.abs())).max() if one.numel() else 0.0
            if one.shape != other.shape or not off <= AGREEMENT:
                raise NetworkError(
                    f"{name} returns something else as an ONNX graph: output {number} has a "
                    f"relative error of {float(off):.2g}, and at most {AGREEMENT:g} is allowed"
                )


def _first_state(network: EarlyExitNetwork, example: Any) -> tuple[Inputs, State]:  # noqa: ANN401
    """The inputs that the export takes, and the state of an example."""
    inputs = network.inputs
    if isinstance(inputs, AnyInput):
        inputs = inputs_like(example)
    # Several samples: torch.export treats sizes of 0 and 1 as constants.
    state = network.begin(network.example(3) if example is None else example)
    return inputs, state


def _reason(error: BaseException) -> str:
    """The first line of the root cause; the exporter wraps it in advice on debugging torch."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporter, and torch's trace, which doubles the time an export takes."""
    names = ("torch.onnx", "torch.__trace", "onnxscript.optimizer._constant_folding")
    loggers = [logging.getLogger(name) for name in names]
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


def _own_files(folder: Path) -> list[Path]:
    """Graphs and policy of an older export, of whatever version: what its description names."""
    try:
        older = read_json(folder / "export.json")
    except (OSError, FileFormatError):
        return []
    names = [entry["file"] for entry in stored_in(older) if re.fullmatch(BARE, entry["file"])]
    policy = older.get("policy_folder") if isinstance(older, dict) else None
    if isinstance(policy, str) and re.fullmatch(POLICY, policy):
        names.append(policy)
    return [folder / name for name in names]
