"""Which head each exit of a backbone gets.

The last exit keeps the backbone's own classifier, if that has the number of classes asked for.
Otherwise the head is made by the first of these that applies:

1. the function that was passed to `attach` as `head`;
2. the kind of head that was named there, one of `offramp.registry.HEADS`;
3. the backbone's own kind of head, `Layout.default_head` (MSDNet has one);
4. a linear layer on pooled features.

Features are pooled as the backbone's layout says. If it does not say, flat features `[N, C]` are
taken as they are, and others are averaged over all positions: the channels of a feature map come
first or last as the last layer with weights says, and first if nothing is known. For tokens
`[N, T, C]` of an unknown backbone, `head` has to say which token is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from offramp import check
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
    SeparableHead,
    TwoConvHead,
)
from offramp.networks.layout import Channels, Layout
from offramp.networks.state import State, batch_size, check_state, evaluating, leaf_at
from offramp.registry import HEADS


@dataclass(frozen=True)
class HeadKind:
    """What a name of a head stands for.

    Args:
        module: Its class.
        reads: The states it can read: feature maps `[N, C, H, W]`, tokens `[N, T, C]`, or any.
            All can read flat features `[N, C]`.
        pool: How it reads them; None: as the backbone's layout says.
        at_end: The kind that takes its place at the last exit, where the backbone has done what
            its convolutions or cells would do.
    """

    module: type[Head]
    reads: Literal["any", "maps", "tokens"] = "any"
    pool: PoolKind | None = None
    at_end: str | None = None


POOLED_LINEAR = HeadKind(LinearHead)
POOLED_MLP = HeadKind(MLPHead)
TWO_CONV = HeadKind(TwoConvHead, "maps", "whole")
SEPARABLE = HeadKind(SeparableHead, "maps", "whole", at_end="pooled-linear")
MIXED_POOL = HeadKind(LinearHead, "maps", "max-mean", at_end="pooled-linear")
CLS_TOKEN = HeadKind(LinearHead, "tokens", "first")
MEAN_TOKEN = HeadKind(LinearHead, "tokens", "mean")
CASCADE = HeadKind(CascadeHead)
MIXED_CASCADE = HeadKind(CascadeHead, "maps", "max-mean", at_end="cascade")
_DEFAULT = "pooled-linear"


def choose_heads(
    layout: Layout,
    stages: Sequence[nn.Module],
    names: Sequence[str],
    state: State,
    num_classes: int,
    head: str | HeadMaker | None,
) -> list[nn.Module]:
    """Run the M stages once on a few samples, and make a head for each state that comes out."""
    rows, last = batch_size(state), len(stages) - 1
    keeps_classifier = layout.num_classes in (None, num_classes)
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
            if exit_index == last and layout.classifier is not None and keeps_classifier:
                heads.append(BackboneHead(layout.classifier))
                _check_classifier(heads[-1], state, (rows, num_classes))
                continue
            chosen = head or layout.default_head or _DEFAULT
            if callable(chosen):
                heads.append(chosen(state, num_classes, exit_index))
            else:
                heads.append(_head_by_name(chosen, layout, state, num_classes, names, exit_index))
            _put_beside(heads[-1], stages)
    return heads


def _head_by_name(
    head: str,
    layout: Layout,
    state: State,
    num_classes: int,
    names: Sequence[str],
    exit_index: int,
) -> Head:
    check.one_of("head", head, HEADS, NetworkError)
    is_last = exit_index == len(names) - 1
    if is_last:
        head = HEADS[head].at_end or head
    pool = layout.pool or _choose_pool(layout, state, head, names[exit_index])
    # The last state has passed the backbone's own last norm, if it has one.
    norm = layout.norm and not is_last
    return make_head(head, state, pool, num_classes, exit_index, norm)


def _choose_pool(layout: Layout, state: State, head: str, name: str) -> Pool:
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
    if features.ndim == 3 and HEADS[head].reads == "tokens":
        return Pool("mean", leaf)
    if channels is not None:
        return Pool("map" if _come_first(channels, features) else "mean", leaf)
    if features.ndim >= 4:
        return Pool("map", leaf)
    raise NetworkError(
        f"the state after `{name}` has the shape {list(features.shape)}, which may be tokens "
        "[N, T, C] or a sequence [N, C, L]; say head='cls-token' or 'mean-token' for tokens, "
        "or pass a function of (state, num_classes, exit_index)"
    )


def _come_first(channels: Channels, features: Tensor) -> bool:
    """Whether the channels are the first dimension after the samples, or the last one.

    An operation after the layer may have moved them: the sizes show it if only one of them fits.
    """
    fits_first = features.shape[1] == channels.count
    fits_last = features.shape[-1] == channels.count
    if fits_first and not fits_last:
        return True
    if fits_last and not fits_first:
        return False
    return channels.first


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
    """Make a head of one of the `HEADS` for this state."""
    check.one_of("head", head, HEADS, NetworkError)
    kind: HeadKind = HEADS[head]
    features: Tensor = leaf_at(state, pool.leaf)
    if features.ndim == 2:  # nothing is left to pool or to convolve
        module = LinearHead if kind.pool == "whole" else kind.module
        pool = Pool("flat", pool.leaf)
    else:
        _check_fit(head, kind, features)
        module = kind.module
        pool = replace(pool, kind=kind.pool or pool.kind)
    settings: dict[str, Any] = {}
    if pool.kind != "whole":
        settings["norm"] = norm
    if module is CascadeHead:
        settings["first"] = exit_index == 0
    return module(pool, width=pool.channels(features), num_classes=num_classes, **settings)


def _check_fit(head: str, kind: HeadKind, features: Tensor) -> None:
    """Raise unless the head can read a state that is not flat."""
    shapes = {"maps": "feature maps [N, C, H, W]", "tokens": "tokens [N, T, C]"}
    dims = {"maps": 4, "tokens": 3}
    if kind.reads != "any" and features.ndim != dims[kind.reads]:
        raise NetworkError(
            f"the head `{head}` reads {shapes[kind.reads]}, and the state is "
            f"{list(features.shape)}; choose another head, such as `pooled-linear`"
        )
