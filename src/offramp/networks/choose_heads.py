"""Which head each exit of a backbone gets.

The last exit keeps the backbone's own classifier, if that has the number of classes asked for.
Every other exit gets the first of these that is given:

1. `attach(..., head=...)`: a function that makes heads, or the name of a kind in
   `offramp.registry.HEADS`;
2. `Layout.default_head` of the backbone, such a function (MSDNet has one);
3. the kind `mixed-pool` for feature maps of more than 4 x 4 cells, while it has no more than a
   million weights; else `pooled-linear`. The mean over an early feature map says little: on frozen
   backbones, the first exits are two to four times as accurate with it (`benchmarks/heads.py`).

A head of a named kind reads features from the state, by the first of these rules that applies:

1. flat features `[N, C]` as they are;
2. as the kind states: `two-conv` reads the whole feature map, `cls-token` the first token;
3. as the backbone's layout states, `Layout.pool`: of texts, the mean token;
4. the mean over all positions. The channels come first or last as in the output of the last layer
   with weights, and first if nothing is known. For tokens `[N, T, C]` of an unknown backbone,
   `head` has to state which token is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from offramp import check
from offramp.errors import NetworkError
from offramp.networks.heads import (
    GRID,
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
            Flat features `[N, C]` can be read by all.
        pool: How it reads them; None: as the backbone's layout says.
        last: Name of the kind that the last exit gets instead: there the backbone has already
            done what the convolutions or cells of this one would do.
    """

    module: type[Head]
    reads: Literal["any", "maps", "tokens"] = "any"
    pool: PoolKind | None = None
    last: str | None = None


POOLED_LINEAR = HeadKind(LinearHead)
POOLED_MLP = HeadKind(MLPHead)
TWO_CONV = HeadKind(TwoConvHead, "maps", "whole")
SEPARABLE = HeadKind(SeparableHead, "maps", "whole", last="pooled-linear")
MIXED_POOL = HeadKind(LinearHead, "maps", "max-mean", last="pooled-linear")
CLS_TOKEN = HeadKind(LinearHead, "tokens", "first")
MEAN_TOKEN = HeadKind(LinearHead, "tokens", "mean")
CASCADE = HeadKind(CascadeHead)
MIXED_CASCADE = HeadKind(CascadeHead, "maps", "max-mean", last="cascade")
MOST_WEIGHTS = 2**20  # of a head that nobody asked for


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
    chosen = head or layout.default_head
    heads: list[nn.Module] = []
    with torch.no_grad(), evaluating(*stages):
        for exit_index, (stage, name) in enumerate(zip(stages, names, strict=True)):
            state = _run(stage, state, name)
            check_state(state, rows, f"exit {exit_index} ({name})")
            if exit_index == last and layout.classifier is not None and keeps_classifier:
                heads.append(BackboneHead(layout.classifier))
                _check_classifier(heads[-1], state, (rows, num_classes))
                continue
            if callable(chosen):
                made = chosen(state, num_classes, exit_index)
            else:
                made = _named_head(chosen, layout, state, num_classes, names, exit_index)
            heads.append(_moved_beside(made, stages))
    return heads


def _run(stage: nn.Module, state: State, name: str) -> State:
    try:
        result: State = stage(state)
    except RuntimeError as error:
        raise NetworkError(
            f"the backbone cannot be run on `example`, up to the exit after `{name}`: "
            f"{str(error).splitlines()[0]}"
        ) from None
    return result


def _named_head(
    head: str | None,
    layout: Layout,
    state: State,
    num_classes: int,
    names: Sequence[str],
    exit_index: int,
) -> Head:
    """A head of one of the `HEADS` for the state at an exit; None: the default."""
    head = head or _default_kind(layout, state, num_classes, names[exit_index])
    check.one_of("head", head, HEADS, NetworkError)
    is_last = exit_index == len(names) - 1
    if is_last:
        head = HEADS[head].last or head
    kind: HeadKind = HEADS[head]
    pool = layout.pool or _choose_pool(layout, state, kind, names[exit_index])
    features: Tensor = leaf_at(state, pool.leaf)
    module = kind.module
    if features.ndim == 2:
        pool = Pool("flat", pool.leaf)
        if issubclass(module, TwoConvHead):  # there is nothing to convolve
            module = LinearHead
    else:
        _check_fit(head, kind, features)
        pool = replace(pool, kind=kind.pool or pool.kind)
    settings: dict[str, Any] = {}
    if not issubclass(module, TwoConvHead):
        # The last state has passed the backbone's own last norm, if it has one.
        settings["norm"] = layout.norm and not is_last
    if issubclass(module, CascadeHead):
        settings["first"] = exit_index == 0
    return module(pool, width=pool.channels(features), num_classes=num_classes, **settings)


def _default_kind(layout: Layout, state: State, num_classes: int, name: str) -> str:
    pool = layout.pool or _choose_pool(layout, state, POOLED_LINEAR, name)
    features: Tensor = leaf_at(state, pool.leaf)
    if pool.kind != "map" or features.ndim != 4 or min(features.shape[2:]) <= GRID:
        return "pooled-linear"
    weights = GRID**2 * features.shape[1] * num_classes
    return "mixed-pool" if weights <= MOST_WEIGHTS else "pooled-linear"


def _choose_pool(layout: Layout, state: State, kind: HeadKind, name: str) -> Pool:
    """How the state after `name` is read, where the layout does not say it for all states."""
    leaf, channels = layout.leaves.get(name, ()), layout.channels.get(name)
    features = leaf_at(state, leaf)
    if not isinstance(features, Tensor):
        raise NetworkError(
            f"the state after `{name}` holds several tensors, and it is not known which one a "
            "head should read; pass `head=`, a function of (state, num_classes, exit_index)"
        )
    if features.ndim == 2:
        return Pool("flat", leaf)
    if features.ndim == 3 and kind.reads == "tokens":
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
    fits_first, fits_last = (features.shape[dim] == channels.count for dim in (1, -1))
    return channels.first if fits_first == fits_last else fits_first


def _moved_beside(head: nn.Module, stages: Sequence[nn.Module]) -> nn.Module:
    """A head on the device and in the precision of the backbone."""
    parameter = next((p for stage in stages for p in stage.parameters()), None)
    return head if parameter is None else head.to(parameter.device, parameter.dtype)


def _check_classifier(classifier: nn.Module, state: State, shape: tuple[int, int]) -> None:
    """Raise unless the backbone's own classifier gives logits of the right shape."""
    with evaluating(classifier):
        logits = classifier(state)
    if not isinstance(logits, Tensor) or logits.shape != shape:
        found = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise NetworkError(
            f"the backbone must give logits of the shape [N, K], here {list(shape)}, got "
            f"{found}; set `num_classes` to the backbone's own, or return the logits alone, for "
            "example from a small module around it"
        )


def _check_fit(head: str, kind: HeadKind, features: Tensor) -> None:
    """Raise unless the head can read a state that is not flat."""
    shapes = {"maps": "feature maps [N, C, H, W]", "tokens": "tokens [N, T, C]"}
    dims = {"maps": 4, "tokens": 3}
    if kind.reads != "any" and features.ndim != dims[kind.reads]:
        raise NetworkError(
            f"the head `{head}` reads {shapes[kind.reads]}, and the state is "
            f"{list(features.shape)}; choose another head, such as `pooled-linear`"
        )
