"""Tracing any module with `torch.fx`, and finding its blocks."""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import fx, nn

from offramp.errors import NetworkError
from offramp.networks.layout import has_weight_matrix, is_composite, is_plain_sequential
from offramp.networks.state import evaluating


@dataclass(frozen=True)
class TracedModule:
    """What a module does, as a graph, in eval or in training mode."""

    root: nn.Module
    graph: fx.Graph  # its operations, in the order in which they run
    # what each submodule returned, once for every time that it was called
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


# A sequence with more layers than this, such as all features of a VGG, is not a block.
_MOST_LAYERS = 3


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


def trace_module(root: nn.Module, training: bool) -> TracedModule:
    """Trace a module in one of its two modes; a `NetworkError` says why `torch.fx` cannot."""
    tracer = _Tracer(*_opaque(root))
    try:
        with evaluating(root):
            root.train(training)
            graph = tracer.trace(root, concrete_args=_defaults(root))
    except Exception as error:
        # The user's forward may raise anything when it is given a proxy instead of a tensor.
        raise NetworkError(
            f"torch.fx cannot trace {type(root).__name__}: {error}. Give the network as a list "
            "of stages, or give it a method layout() that returns an offramp.networks.Layout"
        ) from error
    _drop_further_inputs(graph, type(root).__name__)
    result = TracedModule(root, graph, tracer.returned)
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
    """Modules and functions that timm says must not be traced into."""
    if not any(type(child).__module__.startswith("timm.") for child in root.modules()):
        return (), ()
    features = import_module("timm.models._features_fx")
    return tuple(features.get_notrace_modules()), tuple(features.get_notrace_functions())


def scopes_of(node: fx.Node) -> list[str]:
    """Names of the submodules in whose forward a node was made, outermost first."""
    stack = node.meta.get("nn_module_stack", {})
    return [name for name, _ in stack.values()]


def block_names(traced: TracedModule) -> list[str]:
    """Names of modules that look like blocks.

    Preferably these are the outermost modules with weights and children, with containers opened.
    If there are fewer than two, they are sequences of a few layers; and if there are fewer than
    two of those, layers with weights, each with what follows it up to the next one.
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
        elif is_composite(child):
            found.append(path)
    return found


def _short_sequences(root: nn.Module) -> list[str]:
    return [
        name
        for name, module in root.named_modules()
        if name
        and is_plain_sequential(module)
        and 1 <= sum(has_weight_matrix(child) for child in module.modules()) <= _MOST_LAYERS
    ]


def _layer_runs(traced: TracedModule) -> list[str]:
    names: list[str] = []
    newest: str | None = None
    for node in traced.nodes:
        if node.op == "call_module":
            heavy = has_weight_matrix(traced.root.get_submodule(str(node.target)))
            if heavy and newest is not None:
                names.append(newest)
            if heavy or newest is not None:
                newest = str(node.target)
    return names if newest is None else [*names, newest]
