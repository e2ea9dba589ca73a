"""Tracing any module with `torch.fx`, and finding its blocks."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, fx, nn

from offramp.errors import NetworkError
from offramp.hints import close_names
from offramp.networks.layout import Layout, is_plain_sequential


@dataclass(frozen=True)
class Trace:
    """What a module does, as a graph, in eval or in training mode.

    Args:
        root: The module.
        graph: Its operations, in the order in which they run.
        returned: What each submodule returned, once for every time that it was called.
    """

    root: nn.Module
    graph: fx.Graph
    returned: dict[str, list[Any]]

    @property
    def nodes(self) -> list[fx.Node]:
        """The graph's operations without its output."""
        return [node for node in self.graph.nodes if node.op != "output"]

    @property
    def output(self) -> Any:  # noqa: ANN401
        """What the module returns."""
        return next(node for node in self.graph.nodes if node.op == "output").args[0]

    def has_weights(self, node: fx.Node) -> bool:
        """Whether a node uses parameters of the module."""
        if node.op == "call_module":
            module = self.root.get_submodule(str(node.target))
            return any(True for _ in module.parameters())
        return any(each.op == "get_attr" for each in node.all_input_nodes)


# A subclass of one of these is one operation as well, wherever it is defined.
_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.LayerNorm,
)


# A sequence with more layers than this, such as all features of a VGG, is no block.
_SHORT = 3


class _Tracer(fx.Tracer):
    def __init__(self, leaves: tuple[type, ...], functions: tuple[Any, ...]) -> None:
        super().__init__(autowrap_functions=functions)
        self.leaves = (*_LAYERS, *leaves)
        self.returned: dict[str, list[Any]] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self.leaves) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self,
        m: nn.Module,
        forward: Any,  # noqa: ANN401
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # noqa: ANN401
        result = super().call_module(m, forward, args, kwargs)
        self.returned.setdefault(self.path_of_module(m), []).append(result)
        return result


def trace(root: nn.Module, training: bool) -> Trace:
    """Trace a module in one of its two modes.

    Raises:
        NetworkError: `torch.fx` cannot follow it; the message says why.
    """
    tracer = _Tracer(*_opaque(root))
    try:
        with _in_mode(root, training):
            graph = tracer.trace(root, concrete_args=_defaults(root))
    except Exception as error:
        # Whatever the user's forward runs into when it meets a proxy instead of a tensor.
        raise NetworkError(
            f"torch.fx cannot trace {type(root).__name__}: {error}. Give the network as a list "
            "of stages, or give it a method layout() that returns an offramp.networks.Layout"
        ) from error
    _drop_further_inputs(graph, type(root).__name__)
    result = Trace(root, graph, tracer.returned)
    if not isinstance(result.output, fx.Node):
        raise NetworkError(
            f"{type(root).__name__}.forward must return one tensor of logits, and in "
            f"{'training' if training else 'eval'} mode it returns a "
            f"{type(result.output).__name__}; give the network as a list of stages"
        )
    return result


def _defaults(root: nn.Module) -> dict[str, Any]:
    """Arguments of forward after the first that have a default, which they keep."""
    further = list(inspect.signature(root.forward).parameters.values())[1:]
    return {each.name: each.default for each in further if each.default is not each.empty}


def _drop_further_inputs(graph: fx.Graph, name: str) -> None:
    """Drop all inputs but the first, and fx's checks that they have kept their defaults."""
    for node in [node for node in graph.nodes if node.op == "placeholder"][1:]:
        found = dependents(graph.nodes, node)
        if any(each.op == "output" for each in found):
            raise NetworkError(
                f"{name}.forward reads several arguments ({node.name}), and only modules with "
                "one input can be cut; give the network as a list of stages"
            )
        for each in reversed([each for each in graph.nodes if each in found]):
            graph.erase_node(each)


def dependents(nodes: Iterable[fx.Node], root: fx.Node) -> set[fx.Node]:
    """A node, and all of `nodes` that depend on it."""
    found = {root}
    for node in nodes:
        if any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _opaque(root: nn.Module) -> tuple[tuple[type, ...], tuple[Any, ...]]:
    """Modules and functions that timm says must not be looked into."""
    if not any(type(part).__module__.startswith("timm.") for part in root.modules()):
        return (), ()
    features = import_module("timm.models._features_fx")
    return tuple(features.get_notrace_modules()), tuple(features.get_notrace_functions())


@contextmanager
def _in_mode(root: nn.Module, training: bool) -> Iterator[None]:
    modes = [(part, part.training) for part in root.modules()]
    root.train(training)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def scopes_of(node: fx.Node) -> list[str]:
    """Names of the submodules in whose forward a node was made, outermost first."""
    stack = node.meta.get("nn_module_stack", {})
    return [name for name, _ in stack.values()]


def lay_out_traced(
    backbone: nn.Module,
    names: Sequence[str] | None,
    example: Any = None,  # noqa: ANN401
) -> Layout:
    """Cut any module that `torch.fx` can trace.

    Args:
        backbone: The module.
        names: Submodules after which to cut; the blocks that can be found by default.
        example: A batch: what skips over a cut is carried in the state, and running the module
            on batches of two sizes shows what belongs to samples.

    Raises:
        NetworkError: The module cannot be traced or cut there; the message says what to do.
    """
    from offramp.networks.fx_split import Cuts

    example = _default_example(backbone) if example is None else example
    if not isinstance(example, Tensor):
        raise NetworkError(
            f"{type(backbone).__name__} is cut by tracing, which needs a batch: pass `example=`, "
            "a tensor such as torch.zeros(2, 3, 32, 32)"
        )
    traced = trace(backbone, training=False)
    modules = [name for name, _ in backbone.named_modules() if name]
    for name in names or ():
        _check_known(name, modules)
    cuts = Cuts(traced)
    wanted = cuts.clean(block_names(traced)) if names is None else cuts.ordered(list(names))
    layout = cuts.lay_out(wanted, example, modules)
    if names is None and len(layout.blocks) < 2:
        raise NetworkError(
            f"no block of {type(backbone).__name__} was found that an exit could come after; "
            "name some with at=[...]"
        )
    return layout


def _check_known(name: str, modules: list[str]) -> None:
    if name not in modules:
        close = close_names(name, modules, 3)
        hint = f"did you mean {' or '.join(close)}?" if close else "see `named_modules()`"
        raise NetworkError(f"the backbone has no module `{name}` to put an exit after; {hint}")


def _default_example(backbone: nn.Module) -> Tensor | None:
    """What models of timm say that they take; the classifiers of torchvision take 224 px."""
    config = getattr(backbone, "default_cfg", None) or {}
    if "input_size" in config:
        return torch.rand(2, *config["input_size"])
    if type(backbone).__module__.startswith("torchvision.models"):
        return torch.rand(2, 3, 224, 224)
    return None


def block_names(traced: Trace) -> list[str]:
    """Names of modules that look like blocks.

    At best they are the outermost modules with weights and children, containers opened. If there
    are fewer than two, they are sequences of a few layers; and if there are fewer than two of
    those, layers with weights, each with what follows it up to the next one.
    """
    root = traced.root
    blocks = _composites(root, "")
    if len(blocks) == 1:
        blocks = _composites(root.get_submodule(blocks[0]), f"{blocks[0]}.")
    for found in (blocks, _short_sequences(root)):
        if len(found) > 1:
            return found
    return _layer_runs(traced)


def _composites(module: nn.Module, prefix: str) -> list[str]:
    found: list[str] = []
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if is_plain_sequential(child) or isinstance(child, nn.ModuleList):
            found += _composites(child, f"{path}.")
        elif any(True for _ in child.children()) and any(True for _ in child.parameters()):
            found.append(path)
    return found


def _short_sequences(root: nn.Module) -> list[str]:
    return [
        name
        for name, module in root.named_modules()
        if name
        and is_plain_sequential(module)
        and 1 <= sum(_is_heavy(part) for part in module.modules()) <= _SHORT
    ]


def _layer_runs(traced: Trace) -> list[str]:
    names: list[str] = []
    newest: str | None = None
    for node in traced.nodes:
        if node.op == "call_module":
            heavy = _is_heavy(traced.root.get_submodule(str(node.target)))
            if heavy and newest is not None:
                names.append(newest)
            if heavy or newest is not None:
                newest = str(node.target)
    return names if newest is None else [*names, newest]


def _is_heavy(module: nn.Module) -> bool:
    """Whether it is a layer with a matrix of weights; a norm only has vectors."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim > 1
