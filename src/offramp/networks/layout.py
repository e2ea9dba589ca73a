"""How a backbone is laid out: the units that it runs in order, and where exits may go.

Every way into the library (an adapter for a family, a plain `nn.Sequential`, a traced module, a
list of stages) ends in a `Layout`. What follows, `attach`, knows nothing else about backbones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import nn

from offramp.errors import NetworkError
from offramp.hints import close_names
from offramp.networks.heads import HeadMaker, Pool
from offramp.networks.inputs import Inputs
from offramp.networks.state import Path


@dataclass(frozen=True)
class Channels:
    """What the last layer with weights says about the channels of its output.

    Args:
        count: How many there are.
        first: Whether they come right after the samples, as after a convolution; or last, as
            after a linear layer.
    """

    count: int
    first: bool

    @classmethod
    def of(cls, module: nn.Module) -> "Channels | None":
        """The channels of a layer's output; None if it does not say.

        Example:
            >>> Channels.of(nn.Conv2d(3, 8, 3))
            Channels(count=8, first=True)
        """
        for name, first in (("out_channels", True), ("num_features", True)):
            if hasattr(module, name):
                return cls(getattr(module, name), first)
        if hasattr(module, "out_features"):
            return cls(module.out_features, False)  # type: ignore[arg-type]
        if isinstance(module, nn.LayerNorm):
            return cls(module.normalized_shape[-1], False)
        return None


@dataclass(frozen=True)
class Unit:
    """A part of a backbone that takes a state and returns a state.

    Args:
        name: As in `backbone.named_modules()`.
        module: The part itself, or a thin wrapper that shares its parameters.
    """

    name: str
    module: nn.Module


@dataclass(frozen=True)
class Layout:
    """The units of a backbone and what else is needed to put exits between them.

    Args:
        units: In the order in which they run; the classifier is not among them.
        blocks: Names of the units after which `every-block` puts exits. The exit after the last
            one is the last exit, and units after it belong to the last stage.
        classifier: Takes the last state, returns the backbone's logits; None if it has none.
        num_classes: Of the classifier.
        inputs: What the backbone takes; None if only an example can tell.
        pool: How heads read the state; None to decide by its shape.
        norm: Whether heads before the last exit should normalise the features first.
        default_head: Makes the heads where the user names none; None to decide by the shape.
        leaves: Where in the state after a unit the features are, if there is no `pool`.
        channels: What is known of the channels after a unit, if there is no `pool`.
        at_end: Names of modules inside the last unit after which only the classifier runs.
        modules: Names of all modules of the backbone, to tell what a wrong name means.
    """

    units: Sequence[Unit]
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
    modules: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """The units' names, in order."""
        return [unit.name for unit in self.units]

    def has(self, name: str) -> bool:
        """Whether `name` is a unit, or a module that some units make up."""
        return any(unit == name or unit.startswith(f"{name}.") for unit in self.names)

    def exits_after(self, names: Sequence[str]) -> list[str]:
        """Check the exits that a user asked for, and find the units that they come after.

        Returns:
            Names of units, without the last exit.

        Raises:
            NetworkError: A name is unknown, lies inside a unit, is given twice, or comes before
                its predecessor.
        """
        positions = [self._position(name) for name in names]
        for before, after in zip(range(len(names) - 1), range(1, len(names)), strict=True):
            if positions[after] < positions[before]:
                raise NetworkError(
                    "exits must be named in the order in which the backbone runs them, but "
                    f"`{names[after]}` comes before `{names[before]}`; swap them"
                )
            if positions[after] == positions[before]:
                raise NetworkError(
                    f"`{names[before]}` and `{names[after]}` name the same exit; leave one out"
                )
        last = self.names.index(self.blocks[-1])
        return [self.names[position] for position in positions if position < last]

    def _position(self, name: str) -> int:
        known = self.names
        if name in known:
            return known.index(name)
        if name in self.at_end:
            return len(known) - 1
        inside = [index for index, unit in enumerate(known) if unit.startswith(f"{name}.")]
        if inside:
            return inside[-1]
        around = next((unit for unit in known if name.startswith(f"{unit}.")), None)
        if around and name in self.modules:
            raise NetworkError(
                f"`{name}` lies inside `{around}`, where other branches run beside it; put the "
                f"exit after `{around}`"
            )
        close = close_names(name, [*known, *self.modules], 3)
        hint = f"did you mean {' or '.join(close)}?" if close else "see `named_modules()`;"
        raise NetworkError(
            f"the backbone has no module `{name}` to put an exit after; {hint} blocks: "
            f"{', '.join(self.blocks)}"
        )


@runtime_checkable
class LaidOut(Protocol):
    """A backbone that knows its own layout; any module may have this method."""

    def layout(self) -> Layout:
        """The units of this backbone."""
        ...


def lay_out_stages(stages: Sequence[nn.Module]) -> Layout:
    """Stages given by hand: every one ends in an exit, and there is no classifier.

    Raises:
        NetworkError: The list is empty or holds something else than modules.
    """
    wrong = [type(stage).__name__ for stage in stages if not isinstance(stage, nn.Module)]
    if not stages or wrong:
        raise NetworkError(
            "a list of stages must hold at least one nn.Module and nothing else, got "
            f"{wrong or 'an empty list'}"
        )
    units = [Unit(str(index), stage) for index, stage in enumerate(stages)]
    return Layout(units, [unit.name for unit in units])


def lay_out_sequential(backbone: nn.Sequential) -> Layout:
    """The layers of an `nn.Sequential`, nested ones opened; the last linear layer classifies.

    A block is a child that has children of its own; if there are fewer than two of them, a block
    is a layer with weights and what follows it up to the next one.
    """
    units = _flatten(backbone, "")
    weighted = [index for index, unit in enumerate(units) if _has_weights(unit.module)]
    if not weighted:
        raise NetworkError("the backbone has no layer with weights to put an exit after")
    head = weighted[-1] if isinstance(units[weighted[-1]].module, nn.Linear) else len(units)
    trunk, rest = units[:head], units[head:]
    if not any(_has_weights(unit.module) for unit in trunk):
        raise NetworkError(
            "the backbone has no layer with weights before its last linear layer, so there is "
            "nothing to leave early"
        )
    return Layout(
        units=trunk,
        blocks=_composite_blocks(backbone, trunk) or _layer_blocks(trunk),
        classifier=nn.Sequential(*(unit.module for unit in rest)) if rest else nn.Identity(),
        num_classes=rest[0].module.out_features if rest else None,  # type: ignore[arg-type]
        modules=[name for name, _ in backbone.named_modules() if name],
    )


def is_plain_sequential(module: nn.Module) -> bool:
    """Whether calling the module is calling its children in order."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _flatten(module: nn.Module, prefix: str) -> list[Unit]:
    units: list[Unit] = []
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if is_plain_sequential(child):
            units += _flatten(child, f"{path}.")
        else:
            units.append(Unit(path, child))
    return units


def _has_weights(module: nn.Module) -> bool:
    # A norm has weights as well, but nothing that is worth an exit of its own.
    if any(True for _ in module.children()):
        return any(True for _ in module.parameters())
    weight = getattr(module, "weight", None)
    return weight is not None and weight.ndim > 1


def _composite_blocks(backbone: nn.Module, trunk: list[Unit]) -> list[str]:
    names = [unit.name for unit in trunk]
    blocks = []
    for name, child in backbone.named_children():
        mine = [unit for unit in names if unit == name or unit.startswith(f"{name}.")]
        if mine and any(True for _ in child.children()) and _has_weights(child):
            blocks.append(mine[-1])
    return blocks if len(blocks) > 1 else []


def _layer_blocks(trunk: list[Unit]) -> list[str]:
    weighted = [index for index, unit in enumerate(trunk) if _has_weights(unit.module)]
    return [trunk[index - 1].name for index in weighted[1:]] + [trunk[-1].name]
