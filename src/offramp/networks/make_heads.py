"""Making heads for the states of a backbone: by name, or by the shape of the state."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from offramp.errors import NetworkError
from offramp.networks.heads import (
    BackboneHead,
    CascadeHead,
    Head,
    HeadMaker,
    LinearHead,
    MLPHead,
    Pool,
    PoolKind,
    TwoConvHead,
)
from offramp.networks.layout import Channels, Layout
from offramp.networks.macs import evaluating
from offramp.networks.state import Path, State, batch_size, check_state, leaf_at

HEADS = ("pooled-linear", "pooled-mlp", "two-conv", "cls-token", "mean-token", "cascade")
_TOKENS: dict[str, PoolKind] = {"cls-token": "first", "mean-token": "mean"}


def heads_for(
    layout: Layout,
    stages: Sequence[nn.Module],
    names: Sequence[str],
    state: State,
    num_classes: int,
    head: str | HeadMaker | None,
) -> list[nn.Module]:
    """Run the stages once, and make a head for each state that comes out.

    Args:
        layout: Of the backbone.
        stages: M modules.
        names: Of the exits.
        state: Where the first stage begins; a few samples.
        num_classes: K.
        head: What the user asked for, see `attach`.

    Returns:
        M heads; the last one is the backbone's own classifier if it has K classes.

    Raises:
        NetworkError: A state without a row per sample, or a head that does not fit its state.
    """
    rows = batch_size(state)
    own = layout.classifier if layout.num_classes in (None, num_classes) else None
    heads: list[nn.Module] = []
    with torch.no_grad(), evaluating(*stages):
        for exit_index, (stage, name) in enumerate(zip(stages, names, strict=True)):
            state = stage(state)
            check_state(state, rows, f"exit {exit_index} ({name})")
            last = exit_index == len(stages) - 1
            if last and own is not None:
                heads.append(BackboneHead(own))
            else:
                heads.append(_head(layout, state, num_classes, head, (exit_index, name, last)))
                _put_beside(heads[-1], stages)
    _check_heads(heads[-1], state, (rows, num_classes))
    return heads


def _head(
    layout: Layout,
    state: State,
    num_classes: int,
    head: str | HeadMaker | None,
    where: tuple[int, str, bool],
) -> nn.Module:
    exit_index, name, last = where
    maker = layout.default_head if head is None else head
    if callable(maker):
        return maker(state, num_classes, exit_index)
    pool = layout.pool or _pool(layout, state, maker, name)
    # The last state has passed the backbone's own last norm, if it has one.
    norm = layout.norm and not last
    return make_head(maker or "pooled-linear", state, pool, num_classes, exit_index, norm)


def _pool(layout: Layout, state: State, head: str | None, name: str) -> Pool:
    leaf, channels = layout.leaves.get(name, ()), layout.channels.get(name)
    return pool_for(state, leaf, channels, head, name)


def _put_beside(head: nn.Module, stages: Sequence[nn.Module]) -> None:
    parameter = next((p for stage in stages for p in stage.parameters()), None)
    if parameter is not None:
        head.to(parameter.device, parameter.dtype)


def _check_heads(last: nn.Module, state: State, shape: tuple[int, int]) -> None:
    """The backbone's own classifier is the only head whose classes nobody has asked for."""
    if not isinstance(last, BackboneHead):
        return
    with evaluating(last):
        logits = last(state)
    if not isinstance(logits, Tensor) or logits.shape != shape:
        found = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise NetworkError(
            f"the backbone must give logits of the shape [N, K], here {list(shape)}, got "
            f"{found}; set `num_classes` to the backbone's own, or give it as a list of stages"
        )


def make_head(
    head: str, state: State, pool: Pool, num_classes: int, exit_index: int, norm: bool = False
) -> Head:
    """Make a head of the named kind for this state.

    Args:
        head: One of `HEADS`.
        state: A state as it arrives at the exit.
        pool: How features are drawn from it.
        num_classes: K.
        exit_index: m; the first cascade head has nothing to read.
        norm: Whether the features should be normalised first.

    Raises:
        NetworkError: An unknown name, or a head that does not fit the state.

    Example:
        >>> make_head("pooled-linear", torch.rand(2, 8, 4, 4), Pool("map"), 3, 0).settings
        {'width': 8, 'num_classes': 3, 'norm': False}
    """
    if head not in HEADS:
        raise NetworkError(f"`head` must be one of {', '.join(HEADS)}, got {head!r}")
    tensor: Tensor = leaf_at(state, pool.leaf)
    if head == "two-conv" and tensor.ndim == 4:
        return TwoConvHead(replace(pool, kind="whole"), tensor.shape[1], num_classes)
    _check_fit(head, tensor)
    if tensor.ndim == 2:
        pool = Pool("flat", pool.leaf)
    elif tensor.ndim == 3:
        pool = replace(pool, kind=_TOKENS.get(head, pool.kind))
    with torch.no_grad():
        width = pool(state).shape[1]
    if head == "pooled-mlp":
        return MLPHead(pool, width, num_classes, norm=norm)
    if head == "cascade":
        return CascadeHead(pool, width, num_classes, first=exit_index == 0, norm=norm)
    return LinearHead(pool, width, num_classes, norm=norm)


def _check_fit(head: str, tensor: Tensor) -> None:
    # A flat state is pooled already; every head but the token heads means a layer on top of it.
    wanted = {"two-conv": (4, 2), "cls-token": (3, 2), "mean-token": (3, 2)}.get(head)
    if wanted and tensor.ndim not in wanted:
        kind = "feature maps [N, C, H, W]" if head == "two-conv" else "tokens [N, T, C]"
        raise NetworkError(
            f"the head `{head}` reads {kind}, and the state is {list(tensor.shape)}; take "
            "another head, such as `pooled-linear`"
        )


def pool_for(
    state: State, leaf: Path, channels: Channels | None, head: str | None, name: str
) -> Pool:
    """The pool that fits the shape of a state.

    Args:
        state: A state as it arrives at the exit.
        leaf: Where in it the features are.
        channels: What the last layer says about its channels, if that is known.
        head: The head that was asked for, which may say what the shape means.
        name: Of the exit, for messages.

    Raises:
        NetworkError: The state is nested and nobody said where the features are, or has a shape
            that may mean several things.
    """
    features = leaf_at(state, leaf)
    if not isinstance(features, Tensor):
        raise NetworkError(
            f"the state after `{name}` holds several tensors, and it is not known which one a "
            "head should read; pass `head=`, a function of (state, num_classes, exit_index)"
        )
    if features.ndim == 2:
        return Pool("flat", leaf)
    if features.ndim == 3 and head in _TOKENS:
        return Pool(_TOKENS[head], leaf)
    if channels is not None:
        return Pool("map" if _are_first(features, channels) else "mean", leaf)
    if features.ndim >= 4:
        return Pool("map", leaf)
    raise NetworkError(
        f"the state after `{name}` has the shape {list(features.shape)}, which may be tokens "
        "[N, T, C] or a sequence [N, C, L]; say head='cls-token' or 'mean-token' for tokens, "
        "or pass a function of (state, num_classes, exit_index)"
    )


def _are_first(features: Tensor, channels: Channels) -> bool:
    """Whether the channels come first, as the sizes show; as the layer says if they do not."""
    first, last = (features.shape[dim] == channels.count for dim in (1, -1))
    return channels.first if first == last else first
