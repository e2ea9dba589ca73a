"""Putting exits on a backbone: `attach`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor, nn

from offramp.errors import NetworkError
from offramp.networks.heads import HeadMaker
from offramp.networks.inputs import AnyInput, Inputs, TensorInput
from offramp.networks.layout import (
    LaidOut,
    Layout,
    is_plain_sequential,
    lay_out_sequential,
    lay_out_stages,
)
from offramp.networks.macs import evaluating, stage_macs
from offramp.networks.make_heads import heads_for
from offramp.networks.network import EarlyExitNetwork, Origin
from offramp.networks.state import State, beside


@dataclass(frozen=True)
class Source:
    """A backbone, and how a file can say where it came from.

    Args:
        backbone: A module or a list of stages.
        builder: Name of a registered builder that makes such a backbone; None if there is none.
        settings: The builder's arguments, JSON values.
    """

    backbone: nn.Module | Sequence[nn.Module]
    builder: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def is_from(module: object, library: str) -> bool:
    """Whether a class of this library is among the parents of an object's class."""
    return any(parent.__module__.split(".")[0] == library for parent in type(module).__mro__)


def describe(backbone: nn.Module | Sequence[nn.Module]) -> Source:
    """Say how a backbone can be built again, if a registered builder can do it."""
    if is_from(backbone, "transformers"):
        from offramp.networks.transformers import describe_model

        settings = describe_model(backbone)
        return Source(backbone, "transformers", settings) if settings else Source(backbone)
    return Source(backbone)


def named_backbone(name: str) -> Source:
    """Load a backbone by name: `timm/...`, `torchvision/...`, or a folder or hub id."""
    from offramp.networks import pretrained

    library, _, model = name.partition("/")
    if library == "timm":
        return Source(pretrained.timm_model(model, pretrained=True), "timm", {"model": model})
    if library == "torchvision":
        backbone = pretrained.torchvision_model(model, pretrained=True)
        return Source(backbone, "torchvision", {"model": model})
    return describe(pretrained.transformers_model(name))


def lay_out(
    backbone: nn.Module | Sequence[nn.Module],
    names: Sequence[str] | None,
    example: Any = None,  # noqa: ANN401
) -> Layout:
    """Find the units of a backbone, by the first way that fits.

    Args:
        backbone: A module, or a list of stages.
        names: The exits that are wanted, if the user named them: a traced module is cut there.
        example: A batch; tracing needs it.

    Raises:
        NetworkError: There is no way into this backbone; the message says what would help.
    """
    if isinstance(backbone, nn.ModuleList | list | tuple):
        return lay_out_stages(list(backbone))
    if not isinstance(backbone, nn.Module):
        raise NetworkError(
            "`backbone` must be an nn.Module, a list of them, or a name, got "
            f"{type(backbone).__name__}"
        )
    if isinstance(backbone, LaidOut):
        return backbone.layout()
    if is_from(backbone, "transformers"):
        from offramp.networks.transformers import lay_out_model

        return lay_out_model(backbone)
    if is_plain_sequential(backbone):
        layout = lay_out_sequential(backbone)  # type: ignore[arg-type]
        if not names or not _cut_inside(layout, names):
            return layout
    from offramp.networks.fx_trace import lay_out_traced

    return lay_out_traced(backbone, names, example)


def _cut_inside(layout: Layout, names: Sequence[str]) -> bool:
    """Whether an exit is wanted inside a unit, which only tracing can open."""
    return any(name in layout.modules and not layout.has(name) for name in names)


def spread_evenly(costs: Sequence[float], count: int) -> list[int]:
    """Choose `count` of the ends of consecutive blocks, the last one always among them.

    The cumulative costs at the chosen ends differ as little as possible, summed over the exits,
    from equal shares of the whole.

    Args:
        costs: Of each block.
        count: How many ends to choose, at most as many as there are blocks.

    Returns:
        Positions of blocks, increasing.

    Example:
        >>> spread_evenly([8, 1, 1, 1, 1, 4], 2)
        [0, 5]
    """
    ends = list(accumulate(costs))
    shares = [ends[-1] * (index + 1) / count for index in range(count)]
    # best[b] is the least distance, and the choice that has it, when the newest exit is at b.
    best: list[tuple[float, list[int]]] = [
        (abs(end - shares[0]), [b]) for b, end in enumerate(ends)
    ]
    for share in shares[1:]:
        best = [
            min(
                ((distance + abs(end - share), [*chosen, b]) for distance, chosen in best[:b]),
                default=(float("inf"), []),
            )
            for b, end in enumerate(ends)
        ]
    return best[-1][1]


def attach(
    backbone: nn.Module | Sequence[nn.Module] | str,
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
            `backbone.named_modules()`, or a number of exits that are spread evenly in cost. The
            end of the backbone always is the last exit.
        num_classes: Classes of the heads; the backbone's own by default. If it is another
            number, the last exit gets a new head as well.
        head: `pooled-linear`, `pooled-mlp`, `two-conv`, `cls-token`, `mean-token` or `cascade`;
            by default what fits the state. Or a function of `(state, num_classes, exit_index)`
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
    source = named_backbone(backbone) if isinstance(backbone, str) else describe(backbone)
    return attach_source(source, at, num_classes, head, example)


def attach_source(
    source: Source,
    at: str | int | Sequence[str],
    num_classes: int | None,
    head: str | HeadMaker | None,
    example: Any = None,  # noqa: ANN401
) -> EarlyExitNetwork:
    """Put exits on a backbone of which it is known how it was built; see `attach`."""
    at = [at] if isinstance(at, str) and at != "every-block" else at
    layout = lay_out(source.backbone, None if isinstance(at, str | int) else at, example)
    inputs = _inputs(layout, example)
    batch = inputs.begin(inputs.example(2) if example is None else example)
    state = beside((unit.module for unit in layout.units), batch)
    exits = _exits(layout, at, state)
    if isinstance(at, int):
        # Cut again, only where exits are, so that a saved network is cut the same way.
        layout = lay_out(source.backbone, exits, example)
    stages = joined_stages(layout, exits)
    names = (*exits, "last")
    classes = _classes(layout, num_classes)
    heads = heads_for(layout, stages, names, state, classes, head)
    network = EarlyExitNetwork(stages, heads, classes, inputs, names)
    backbone = type(source.backbone).__name__
    network.origin = Origin(tuple(exits), source.builder, source.settings, backbone)
    _follow_mode(network, source.backbone)
    return network


def _follow_mode(network: EarlyExitNetwork, backbone: nn.Module | Sequence[nn.Module]) -> None:
    """Put what was added to the backbone into its mode; its own modules stay as they are."""
    parts = [backbone] if isinstance(backbone, nn.Module) else backbone
    own = {module for part in parts for module in part.modules()}
    for module in network.modules():
        if module not in own:
            module.training = parts[0].training


def _inputs(layout: Layout, example: Any) -> Inputs:  # noqa: ANN401
    if layout.inputs is not None:
        return layout.inputs
    if example is None:
        raise NetworkError(
            "this backbone does not say what it takes: pass `example=`, a small batch such as "
            "torch.zeros(2, 3, 32, 32)"
        )
    return TensorInput.like(example) if isinstance(example, Tensor) else AnyInput()


def _classes(layout: Layout, num_classes: int | None) -> int:
    classes = num_classes or layout.num_classes
    if classes is None:
        raise NetworkError(
            "this backbone does not say how many classes it has: pass `num_classes=`"
        )
    return classes


def _exits(layout: Layout, at: str | int | Sequence[str], state: State) -> list[str]:
    """Names of the units after which the exits before the last one are."""
    blocks = list(layout.blocks)
    if isinstance(at, str):
        return blocks[:-1]
    if not isinstance(at, int):
        return layout.exits_after(at)
    if not 1 <= at <= len(blocks):
        raise NetworkError(
            f"`at` must lie in [1, {len(blocks)}], since the backbone has {len(blocks)} blocks, "
            f"got {at}"
        )
    stages = joined_stages(layout, blocks[:-1])
    with evaluating(*stages):
        chosen = spread_evenly(stage_macs(stages, state), at)
    return [blocks[index] for index in chosen[:-1]]


def joined_stages(layout: Layout, exits: Sequence[str]) -> list[nn.Module]:
    """The layout's units, joined to one module for each stage that ends in an exit."""
    names = layout.names
    bounds = [0, *(names.index(name) + 1 for name in exits), len(names)]
    return [
        nn.Sequential(*(unit.module for unit in layout.units[start:end]))
        for start, end in pairwise(bounds)
    ]
