"""Putting exits on a backbone: `attach`."""

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import Any

import torch
from torch import nn

from offramp.errors import NetworkError
from offramp.machine import device_of
from offramp.networks.backbones import (
    BackboneModules,
    find_layout,
    origin_of,
    pretrained_backbone,
)
from offramp.networks.choose_heads import choose_heads
from offramp.networks.heads import HeadMaker
from offramp.networks.inputs import Inputs, as_batch, inputs_like
from offramp.networks.layout import Layout
from offramp.networks.macs import stage_macs
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import State, evaluating, move_beside
from offramp.stopwatch import Stopwatch, Timed, take_turns

FEW = 4  # exits that `auto` places, the last one among them: each takes time, and gains less


def attach(
    backbone: BackboneModules | str,
    at: str | int | Sequence[str] = "every-block",
    num_classes: int | None = None,
    head: str | HeadMaker | None = None,
    example: Any = None,  # noqa: ANN401 - a batch as the backbone takes it
) -> EarlyExitNetwork:
    """Put exits on a backbone; its parameters are shared, not copied.

    Args:
        backbone: A model of `transformers` (ResNet, ViT, DeiT, ConvNeXt, Swin, EfficientNet,
            BERT and its relatives), an `nn.Sequential`, any module that `torch.fx` can trace, or
            a list of stages. Or a name: a folder or hub id of a `transformers` model,
            `timm/<model>`, `torchvision/<model>`.
        at: Where the exits go: `every-block`, names of modules as in
            `backbone.named_modules()`, or a number of exits, placed at equal shares of the cost
            as closely as the blocks allow. Or `auto`: four exits at equal shares of the seconds
            that the blocks take on this machine, since every exit takes time. The end
            of the backbone always is the last exit.
        num_classes: Classes of the heads; the backbone's own by default. If it is another
            number, the last exit gets a new head as well.
        head: `pooled-linear`, `pooled-mlp`, `two-conv`, `separable`, `mixed-pool`, `cls-token`,
            `mean-token`, `cascade` or `mixed-cascade`; by default what fits the state, see
            `offramp.networks.choose_heads`. Or a function of `(state, num_classes, exit_index)`
            that returns a module.
        example: A batch of at least one sample; needed where the backbone does not say what it
            takes.

    Returns:
        The network, in the backbone's mode. In eval mode its last exit gives exactly the
        backbone's own logits, unless new classes were asked for.

    Raises:
        NetworkError: A name that the backbone does not have, exits in the wrong order or inside
            a branch, a backbone that cannot be split, ...; the message says what to do.

    Example:
        >>> import torch
        >>> backbone = nn.Sequential(
        ...     nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
        ... )
        >>> network = attach(backbone, example=torch.rand(2, 4))
        >>> network.exit_names
        ('1', 'last')
        >>> x = torch.rand(5, 4)
        >>> bool((network(x)[:, -1] == backbone(x)).all())
        True
    """
    if isinstance(example, tuple | list) and len(example) > 1:
        raise NetworkError(
            f"`example` has {len(example)} inputs, and a network with exits takes one: a tensor, "
            "or a mapping of tensors by name; put a module around yours that takes such a mapping"
        )
    if isinstance(backbone, str):
        backbone, origin = pretrained_backbone(backbone)
    else:
        origin = origin_of(backbone)
    at = [at] if isinstance(at, str) and at not in ("every-block", "auto") else at
    example = as_batch(example)
    layout = find_layout(backbone, None if isinstance(at, str | int) else at, example)
    inputs = _inputs(layout, example)
    batch = inputs.begin(inputs.example(2) if example is None else example)
    state = move_beside(layout.units.values(), batch)
    exits = _exits(layout, at, state)
    if isinstance(at, int) or at == "auto":
        # Cut again, only where exits are: a saved network is cut the same way.
        layout = find_layout(backbone, exits, example)
    classes = num_classes or layout.num_classes
    if classes is None:
        raise NetworkError(
            "this backbone does not say how many classes it has: pass `num_classes=`"
        )
    if classes < 2:
        raise NetworkError(
            f"exits need two classes or more, and this backbone has {classes}: one logit z of a "
            "binary model becomes two by torch.cat([torch.zeros_like(z), z], dim=1), whose "
            "softmax is its sigmoid"
        )
    stages, names = layout.stages(exits), (*exits, "last")
    heads = choose_heads(layout, stages, names, state, classes, head)
    network = EarlyExitNetwork(stages, heads, classes, inputs, names)
    network.origin = origin
    _follow_mode(network, backbone)
    return network


def _follow_mode(network: EarlyExitNetwork, backbone: BackboneModules) -> None:
    """Put what was added to the backbone into its mode; its own modules stay as they are."""
    stages = [backbone] if isinstance(backbone, nn.Module) else backbone
    own = {module for stage in stages for module in stage.modules()}
    for module in network.modules():
        if module not in own:
            module.training = stages[0].training


def _inputs(layout: Layout, example: Any) -> Inputs:  # noqa: ANN401
    if layout.inputs is not None:
        return layout.inputs if example is None else layout.inputs.of_size(example)
    if example is None:
        raise NetworkError(
            "this backbone does not say what it takes: pass `example=`, a small batch such as "
            "torch.zeros(2, 3, 32, 32)"
        )
    return inputs_like(example)


def _exits(layout: Layout, at: str | int | Sequence[str], state: State) -> list[str]:
    """Names of the units after which the exits before the last one are."""
    blocks = list(layout.blocks)
    if at == "every-block":
        return blocks[:-1]
    if not isinstance(at, str | int):
        return layout.exits_after(at)
    count = at if isinstance(at, int) else min(FEW, len(blocks))
    if not 1 <= count <= len(blocks):
        raise NetworkError(
            f"`at` must lie in [1, {len(blocks)}], since the backbone has {len(blocks)} blocks, "
            f"got {at}"
        )
    stages = layout.stages(blocks[:-1])
    with evaluating(*stages):
        costs = stage_seconds(stages, state) if at == "auto" else stage_macs(stages, state)
    return [blocks[index] for index in evenly_in_cost(costs, count)[:-1]]


def stage_seconds(stages: Sequence[nn.Module], state: State, turns: int = 6) -> list[float]:
    """Seconds of modules that run one after the other from `state`, in their best turns."""
    watch = Stopwatch(device=device_of(nn.ModuleList(stages)))

    def run(state: State) -> None:
        for stage in stages:
            watch()
            state = stage(state)

    timed = Timed(run, [state], warm=0)
    with torch.inference_mode():
        take_turns([[timed]], watch, least=turns)
    seconds: list[float] = timed.best.tolist()
    return seconds


def evenly_in_cost(costs: Sequence[float], count: int) -> list[int]:
    """Choose `count` of the ends of consecutive blocks, the last one always among them.

    The cumulative costs at the chosen ends differ as little as possible, summed over the exits,
    from equal shares of the whole.

    Example:
        >>> evenly_in_cost([8, 1, 1, 1, 1, 4], 2)
        [0, 5]
    """
    ends = list(accumulate(costs))
    shares = [ends[-1] * (index + 1) / count for index in range(count)]
    # For each end: the best choice whose newest member it is, after how far it is from the shares.
    best = [(abs(end - shares[0]), [block]) for block, end in enumerate(ends)]
    for share in shares[1:]:
        so_far = [min(best[:block], default=(inf, [])) for block in range(len(ends))]
        best = [
            (distance + abs(ends[block] - share), [*chosen, block])
            for block, (distance, chosen) in enumerate(so_far)
        ]
    return best[-1][1]
