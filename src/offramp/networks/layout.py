"""The layout of a backbone: the units that it runs in order, and where exits may go.

Every kind of backbone (a family with an adapter, a plain `nn.Sequential`, a traced module, a list
of stages) is described by a `Layout`, and `attach` knows nothing else about backbones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeGuard

from torch import Tensor, nn

from offramp.errors import NetworkError
from offramp.networks.heads import HeadMaker, Pool
from offramp.networks.inputs import Inputs
from offramp.networks.state import Path
from offramp.registry import close_names


@dataclass(frozen=True)
class Channels:
    """What the last layer with weights says about the channels of its output."""

    count: int  # how many there are
    # whether they come right after the samples, as after a convolution; or last, as after a linear
    # layer
    first: bool

    @classmethod
    def of(cls, module: nn.Module) -> "Channels | None":
        """The channels of a layer's output; None if it does not say."""
        names = {"out_channels": True, "num_features": True, "out_features": False}
        for name, first in names.items():
            if hasattr(module, name):
                return cls(getattr(module, name), first)
        if isinstance(module, nn.LayerNorm):
            return cls(module.normalized_shape[-1], False)
        return None


@dataclass(frozen=True)
class Layout:
    """The units of a backbone and what else is needed to put exits between them.

    A unit takes a state and returns a state: it is a module of the backbone, or a thin wrapper
    that shares its parameters. A backbone may have a method `layout()` that returns its own.

    Args:
        units: By name, as in `backbone.named_modules()`, and in the order in which they run; the
            classifier is not among them.
        blocks: Names of the units after which `every-block` puts exits. The exit after the last
            one is the last exit, and units after it belong to the last stage.
        classifier: Takes the last state, returns the backbone's logits; None if it has none.
        num_classes: Of the classifier.
        inputs: What the backbone takes; None if only an example can tell.
        pool: How heads read the state; None to decide by its shape.
        norm: Whether heads before the last exit begin with a layer norm.
        default_head: Makes the heads where the user names none; None to decide by the shape.
        leaves: Where in the state after a unit the features are, if there is no `pool`.
        channels: What is known of the channels after a unit, if there is no `pool`.
        at_end: Names of modules inside the last unit after which only the classifier runs.

    Example:
        >>> units = {"stem": nn.Linear(4, 8), "one": nn.Linear(8, 8), "two": nn.Linear(8, 8)}
        >>> layout = Layout(units, blocks=["one", "two"])
        >>> [len(stage) for stage in layout.stages(["one"])]
        [2, 1]
    """

    units: Mapping[str, nn.Module]
    blocks: Sequence[str]
    classifier: nn.Module | None = None
    num_classes: int | None = None
    inputs: Inputs | None = None
    pool: Pool | None = None
    norm: bool = False
    default_head: HeadMaker | None = None
    leaves: dict[str, Path] = field(default_factory=dict)
    channels: dict[str, Channels] = field(default_factory=dict)
    at_end: Sequence[str] = ()

    def exits_after(self, names: Sequence[str]) -> list[str]:
        """Check the exits that a user asked for, and find the units that they come after.

        Returns:
            Names of units, without the last exit.

        Raises:
            NetworkError: A name is unknown, lies inside a unit, is given twice, or comes before
                its predecessor.
        """
        positions = [(self._position(name), name) for name in names]
        for (position, name), (next_position, next_name) in pairwise(positions):
            if next_position < position:
                raise NetworkError(
                    "exits must be named in the order in which the backbone runs them, but "
                    f"`{next_name}` comes before `{name}`; swap them"
                )
            if next_position == position:
                raise NetworkError(f"`{name}` and `{next_name}` name the same exit; leave one out")
        units = list(self.units)
        last = units.index(self.blocks[-1])
        return [units[position] for position, _ in positions if position < last]

    def stages(self, exits: Sequence[str]) -> list[nn.Module]:
        """The units, joined to one module for each stage: one ends at each exit, and at the end.

        Args:
            exits: Names of units, without the last exit.
        """
        names, modules = list(self.units), list(self.units.values())
        bounds = [0, *(names.index(name) + 1 for name in exits), len(names)]
        return [nn.Sequential(*modules[start:end]) for start, end in pairwise(bounds)]

    def _position(self, name: str) -> int:
        """The index of the unit called `name`, or of the last one inside of that module."""
        units = list(self.units)
        if name in self.at_end:
            return len(units) - 1
        inside = [index for index, unit in enumerate(units) if f"{unit}.".startswith(f"{name}.")]
        if inside:
            return inside[-1]
        around = next((unit for unit in units if name.startswith(f"{unit}.")), None)
        if around:
            raise NetworkError(
                f"`{name}` lies inside `{around}`, where other branches run beside it; put the "
                f"exit after `{around}`"
            )
        message = no_such_module(name, units)
        raise NetworkError(f"{message} Its blocks are {', '.join(self.blocks)}")


def no_such_module(name: str, known: Iterable[str]) -> str:
    """A message about a module that a backbone does not have."""
    close = close_names(name, known, 3)
    hint = f"did you mean {' or '.join(close)}?" if close else "see `named_modules()`."
    return f"the backbone has no module `{name}` to put an exit after; {hint}"


def stages_layout(stages: Sequence[nn.Module]) -> Layout:
    """The layout of a list of stages: each ends in an exit, and there is no classifier."""
    wrong = [type(stage).__name__ for stage in stages if not isinstance(stage, nn.Module)]
    if not stages or wrong:
        raise NetworkError(
            "a list of stages must hold at least one nn.Module and nothing else, got "
            f"{wrong or 'an empty list'}"
        )
    units = {str(index): stage for index, stage in enumerate(stages)}
    return Layout(units, list(units))


def sequential_layout(backbone: nn.Sequential) -> Layout:
    """The layout of an `nn.Sequential`, nested ones opened; the last linear layer classifies.

    A block is a child that has children of its own; if there are fewer than two of them, a block
    is a layer with weights and what follows it up to the next one.
    """
    units = _flatten(backbone, "")
    names = list(units)
    # A norm has weights as well, but is not worth an exit of its own.
    weighted = [
        index
        for index, module in enumerate(units.values())
        if is_composite(module) or has_weight_matrix(module)
    ]
    if not weighted:
        raise NetworkError("the backbone has no layer with weights to put an exit after")
    last = units[names[weighted[-1]]]
    end = weighted.pop() if isinstance(last, nn.Linear) else len(names)
    if not weighted:
        raise NetworkError(
            "the backbone has no layer with weights before its last linear layer, so no exit "
            "can save anything"
        )
    trunk = names[:end]
    layers = [names[index - 1] for index in weighted[1:]] + trunk[-1:]
    return Layout(
        units={name: units[name] for name in trunk},
        blocks=_composite_children(backbone, trunk) or layers,
        classifier=nn.Sequential(*(units[name] for name in names[end:])) or nn.Identity(),
        num_classes=last.out_features if isinstance(last, nn.Linear) else None,
    )


def is_plain_sequential(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether calling the module is calling its children in order."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _flatten(module: nn.Sequential, prefix: str) -> dict[str, nn.Module]:
    units: dict[str, nn.Module] = {}
    # `named_children` leaves out a child that is used a second time, such as a shared ReLU.
    for name, child in zip(module._modules, module, strict=True):
        path = f"{prefix}{name}"
        units |= _flatten(child, f"{path}.") if is_plain_sequential(child) else {path: child}
    return units


def has_weight_matrix(module: nn.Module) -> bool:
    """Whether it is a layer with a matrix of weights; a norm only has vectors."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim > 1


def is_composite(module: nn.Module) -> bool:
    """Whether it has parameters, and submodules that may hold them."""
    has_children = any(True for _ in module.children())
    return has_children and any(True for _ in module.parameters())


def _composite_children(backbone: nn.Module, trunk: list[str]) -> list[str]:
    """The last unit of every child that has children; none if that is only one child."""
    blocks = []
    for name, child in backbone.named_children():
        inside = [unit for unit in trunk if f"{unit}.".startswith(f"{name}.")]
        if inside and is_composite(child):
            blocks.append(inside[-1])
    return blocks if len(blocks) > 1 else []
