"""Stages and heads as a runner calls them: folded, compiled, or as they are."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.experimental.optimization import fuse
from torch.fx.node import Argument
from torch.nn.functional import linear
from torch.nn.modules.batchnorm import _BatchNorm

from offramp.networks.inputs import AnyInput
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import Shared, State, move_beside, named_leaves

Module: TypeAlias = Callable[..., Any]
"""A stage or a head, or what is called instead of it."""


def compiled(network: EarlyExitNetwork, backend: bool | str) -> tuple[list[Module], list[Module]]:
    """The stages and the heads, as they will be called."""
    if backend == "fold":
        return _folded(network)
    stages: list[Module] = list(network.stages)
    if backend:
        chosen = "inductor" if backend is True else backend
        stages = [torch.compile(stage, dynamic=True, backend=chosen) for stage in stages]
    return stages, list(network.heads)


@torch.no_grad()
def _folded(network: EarlyExitNetwork) -> tuple[list[Module], list[Module]]:
    """Stages and heads, where there are batch norms as copies with fewer operations."""
    has_norms = any(isinstance(module, _BatchNorm) for module in network.modules())
    if not has_norms or isinstance(network.inputs, AnyInput):  # without an example to try it on
        return compiled(network, False)
    stages: list[Module] = []
    heads: list[Module] = []
    state = move_beside(list(network.stages), network.begin(network.example(2)))
    for stage, head in zip(network.stages, network.heads, strict=True):
        chosen, state = _folded_module(stage, state)
        stages.append(chosen)
        reads_logits = getattr(head, "reads_logits", True)
        heads.append(head if reads_logits else _folded_module(head, state)[0])
    return stages, heads


def _folded_module(module: nn.Module, state: State) -> tuple[Module, Any]:
    """What to call instead of a module, and what the module makes of a state.

    It is the module itself, where torch.fx cannot trace it, or where the copy does something else.
    """
    expected = module(state)
    with suppress(Exception):  # a module may raise anything where torch.fx traces it
        copy = _flattened(fuse(module))
        if _close(copy(state), expected):
            return copy, expected
    return module, expected


def _flattened(traced: nn.Module) -> Module:
    """A traced module that calls functions where it called layers.

    For a single sample in a small network, calling modules takes a tenth of the time.
    """
    assert isinstance(traced, GraphModule)
    for node in traced.graph.nodes:
        layer = traced.get_submodule(node.target) if node.op == "call_module" else None
        if type(layer) is nn.Identity:
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
        elif type(layer) is nn.Linear:
            _call(traced, node, linear, layer)
        elif type(layer) is nn.Conv2d and layer.padding_mode == "zeros":
            settings = layer.stride, layer.padding, layer.dilation, layer.groups
            _call(traced, node, torch.conv2d, layer, *settings)
    traced.recompile()
    forward: Module = traced.forward
    return forward


def _call(
    traced: GraphModule,
    node: Node,
    function: Callable[..., Tensor],
    layer: nn.Module,
    *args: Argument,
) -> None:
    """Let a node call a function with the weights of its layer."""
    names = [name for name in ("weight", "bias") if getattr(layer, name) is not None]
    with traced.graph.inserting_before(node):
        weights = [traced.graph.get_attr(f"{node.target}.{name}") for name in names]
    node.op, node.target = "call_function", function
    node.args = (*node.args, weights[0], weights[1] if len(weights) == 2 else None, *args)


def _close(one: State, other: State) -> bool:
    """Whether two states are the same up to rounding."""
    pairs = zip(named_leaves(one), named_leaves(other), strict=True)
    return all(
        path == same and _close_leaves(leaf, expected) for (path, leaf), (same, expected) in pairs
    )


def _close_leaves(leaf: Tensor | Shared, expected: Tensor | Shared) -> bool:
    if isinstance(leaf, Tensor) and isinstance(expected, Tensor):
        return leaf.shape == expected.shape and torch.allclose(leaf, expected, 1e-3, 1e-4)
    return type(leaf) is type(expected)
