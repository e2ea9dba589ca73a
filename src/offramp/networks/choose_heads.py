"""Which head each exit of a backbone gets.

The last exit keeps the backbone's own classifier, if that has the number of classes asked for.
Otherwise the head is made by the first of these that applies:

1. the function that was passed to `attach` as `head`;
2. the kind of head that was named there, one of `HEADS`;
3. the backbone's own kind of head, `Layout.default_head` (MSDNet has one);
4. a linear layer on pooled features.

Features are pooled as the backbone's layout says. If it does not say, flat features `[N, C]` are
taken as they are, and others are averaged over all positions: the channels of a feature map come
first or last as the last layer with weights says, and first if nothing is known. For tokens
`[N, T, C]` of an unknown backbone, `head` has to say which token is read.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from offramp.errors import NetworkError
from offramp.names import HEADS
from offramp.networks.heads import (
    BackboneHead,
    CascadeHead,
    Head,
    HeadMaker,
    LinearHead,
    MLPHead,
    Pool,
    PoolKind,
    SeparableHead,
    TwoConvHead,
)
from offramp.networks.layout import Channels, Layout
from offramp.networks.state import State, batch_size, check_state, evaluating, leaf_at

_MAPS: dict[str, type[TwoConvHead | SeparableHead]] = {
    "two-conv": TwoConvHead,
    "separable": SeparableHead,
}
_MIXED = ("mixed-pool", "mixed-cascade")
_TOKENS: dict[str, PoolKind] = {"cls-token": "first", "mean-token": "mean"}
# The backbone has done by its end what the convolutions or the cells of these would do.
_AT_THE_END = {
    "separable": "pooled-linear",
    "mixed-pool": "pooled-linear",
    "mixed-cascade": "cascade",
}


def choose_heads(
    layout: Layout,
    stages: Sequence[nn.Module],
    names: Sequence[str],
    state: State,
    num_classes: int,
    head: str | HeadMaker | None,
) -> list[nn.Module]:
    """Run the M stages once on a few samples, and make a head for each state that comes out."""
    rows = batch_size(state)
    own = layout.classifier if layout.num_classes in (None, num_classes) else None
    heads: list[nn.Module] = []
    with torch.no_grad(), evaluating(*stages):
        for exit_index, (stage, name) in enumerate(zip(stages, names, strict=True)):
            try:
                state = stage(state)
            except RuntimeError as error:
                raise NetworkError(
                    f"the backbone cannot be run on `example`, up to the exit after `{name}`: "
                    f"{str(error).splitlines()[0]}"
                ) from None
            check_state(state, rows, f"exit {exit_index} ({name})")
            if exit_index == len(stages) - 1 and own is not None:
                heads.append(BackboneHead(own))
                _check_classifier(heads[-1], state, (rows, num_classes))
            else:
                heads.append(_choose_head(layout, state, num_classes, head, names, exit_index))
                _put_beside(heads[-1], stages)
    return heads


def _choose_head(
    layout: Layout,
    state: State,
    num_classes: int,
    head: str | HeadMaker | None,
    names: Sequence[str],
    exit_index: int,
) -> nn.Module:
    chosen = layout.default_head if head is None else head
    if callable(chosen):
        return chosen(state, num_classes, exit_index)
    is_last = exit_index == len(names) - 1
    if is_last and chosen is not None:
        chosen = _AT_THE_END.get(chosen, chosen)
    pool = layout.pool or _choose_pool(layout, state, chosen, names[exit_index])
    # The last state has passed the backbone's own last norm, if it has one.
    norm = layout.norm and not is_last
    return make_head(chosen or "pooled-linear", state, pool, num_classes, exit_index, norm)


def _choose_pool(layout: Layout, state: State, head: str | None, name: str) -> Pool:
    """The pool that fits the shape of the state at an exit; raises where that is ambiguous."""
    leaf, channels = layout.leaves.get(name, ()), layout.channels.get(name)
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


def _put_beside(head: nn.Module, stages: Sequence[nn.Module]) -> None:
    parameter = next((p for stage in stages for p in stage.parameters()), None)
    if parameter is not None:
        head.to(parameter.device, parameter.dtype)


def _check_classifier(classifier: nn.Module, state: State, shape: tuple[int, int]) -> None:
    """Raise unless the backbone's own classifier gives logits of the right shape."""
    with evaluating(classifier):
        logits = classifier(state)
    if not isinstance(logits, Tensor) or logits.shape != shape:
        found = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise NetworkError(
            f"the backbone must give logits of the shape [N, K], here {list(shape)}, got "
            f"{found}; set `num_classes` to the backbone's own, or give it as a list of stages"
        )


def make_head(
    head: str, state: State, pool: Pool, num_classes: int, exit_index: int, norm: bool = False
) -> Head:
    """Make a head of one of the kinds in `HEADS` for this state."""
    if head not in HEADS:
        raise NetworkError(f"`head` must be one of {', '.join(HEADS)}, got {head!r}")
    tensor: Tensor = leaf_at(state, pool.leaf)
    if head in _MAPS and tensor.ndim == 4:
        return _MAPS[head](replace(pool, kind="whole"), tensor.shape[1], num_classes)
    _check_fit(head, tensor)
    if tensor.ndim == 2:
        pool = Pool("flat", pool.leaf)
    elif tensor.ndim == 3:
        pool = replace(pool, kind=_TOKENS.get(head, pool.kind))
    with torch.no_grad():
        width = pool(state).shape[1]
    if head in _MIXED and tensor.ndim == 4:
        pool, width = replace(pool, kind="max-mean"), tensor.shape[1]
    if head == "pooled-mlp":
        return MLPHead(pool, width, num_classes, norm=norm)
    if head in ("cascade", "mixed-cascade"):
        return CascadeHead(pool, width, num_classes, first=exit_index == 0, norm=norm)
    return LinearHead(pool, width, num_classes, norm=norm)


def _check_fit(head: str, tensor: Tensor) -> None:
    # Any head can read a flat state, which is pooled already.
    maps, tokens = ((*_MAPS, *_MIXED), (4, 2)), (_TOKENS, (3, 2))
    wanted = next((dims for heads, dims in (maps, tokens) if head in heads), None)
    if wanted and tensor.ndim not in wanted:
        kind = "tokens [N, T, C]" if head in _TOKENS else "feature maps [N, C, H, W]"
        raise NetworkError(
            f"the head `{head}` reads {kind}, and the state is {list(tensor.shape)}; choose "
            "another head, such as `pooled-linear`"
        )
