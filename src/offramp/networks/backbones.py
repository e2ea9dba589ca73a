"""From whatever the user has (a module, a list, a name) to a layout."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from offramp.errors import NetworkError
from offramp.networks.layout import (
    LaidOut,
    Layout,
    is_plain_sequential,
    lay_out_sequential,
    lay_out_stages,
)

__all__ = ["Source", "describe", "is_from", "lay_out", "named_backbone"]


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
        from offramp.networks.adapters import describe_model

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
        from offramp.networks.adapters import lay_out_model

        return lay_out_model(backbone)
    if is_plain_sequential(backbone):
        layout = lay_out_sequential(backbone)  # type: ignore[arg-type]
        if not names or not _cut_inside(layout, names):
            return layout
    from offramp.networks.tracing import lay_out_traced

    return lay_out_traced(backbone, names, example)


def _cut_inside(layout: Layout, names: Sequence[str]) -> bool:
    """Whether an exit is wanted inside a unit, which only tracing can open."""
    return any(name in layout.modules and not layout.has(name) for name in names)
