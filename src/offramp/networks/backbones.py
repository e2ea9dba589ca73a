"""Backbones: where they come from, how files name them, and how they are cut into units."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import nn

from offramp.errors import FileFormatError, NetworkError
from offramp.imports import require
from offramp.networks.fx.stages import traced_layout
from offramp.networks.layout import (
    Layout,
    is_plain_sequential,
    sequential_layout,
    stages_layout,
)
from offramp.networks.transformers.models import (
    model_settings,
    pretrained_model,
    transformers_layout,
)
from offramp.registry import BUILDERS

BackboneModules: TypeAlias = nn.Module | Sequence[nn.Module]
Builder: TypeAlias = Callable[..., nn.Module]


@dataclass(frozen=True)
class Origin:
    """What a file says about the backbone of a network."""

    class_name: str = "module"  # for messages
    builder: str | None = None  # registered name of what makes it; None for a user's own
    settings: dict[str, Any] = field(default_factory=dict)  # of the builder, JSON values


def origin_of(backbone: BackboneModules) -> Origin:
    """What a file can say about a user's backbone; it can describe a model of `transformers`."""
    settings = model_settings(backbone) if _is_transformers_model(backbone) else None
    builder = None if settings is None else "transformers"
    return Origin(type(backbone).__name__, builder, settings or {})


def pretrained_backbone(name: str) -> tuple[nn.Module, Origin]:
    """A pretrained one: `timm/<model>`, `torchvision/<model>`, or a folder or hub id."""
    library, _, model = name.partition("/")
    if library not in ("timm", "torchvision"):
        backbone = pretrained_model(name)
        return backbone, origin_of(backbone)
    backbone = BUILDERS[library](model, pretrained=True)
    return backbone, Origin(type(backbone).__name__, library, {"model": model})


def timm_model(model: str, pretrained: bool = False) -> nn.Module:
    """Make one of `timm.list_models()`, which may be named with a tag of its weights."""
    timm = require("timm", extra="timm")
    # a name may also point to the hub and bring a configuration along; only timm's own are made.
    if model.split(".")[0] not in timm.list_models():
        raise NetworkError(f"timm has no model `{model}`; see timm.list_models()")
    result: nn.Module = timm.create_model(model, pretrained=pretrained)
    return result


def torchvision_model(model: str, pretrained: bool = False) -> nn.Module:
    """Make one of `torchvision.models.list_models()`, with its default weights if pretrained."""
    models = require("torchvision", extra="torchvision").models
    if model not in models.list_models():
        raise NetworkError(
            f"torchvision has no model `{model}`; see torchvision.models.list_models()"
        )
    result: nn.Module = models.get_model(model)
    if pretrained:
        weights = models.get_model_weights(model).DEFAULT
        # torchvision has no safetensors; `weights_only` refuses pickled code.
        result.load_state_dict(weights.get_state_dict(check_hash=True, weights_only=True))
    return result


def register_builder(name: str, builder: Builder) -> None:
    """Make a backbone of your own known by name to `build` and to files.

    Args:
        name: A new name.
        builder: A function of `num_classes`, `image_size` and settings that are JSON values,
            which returns a backbone that `attach` can take. It need not take the first two.
            Images of other than three channels need a setting `channels`.

    Raises:
        NetworkError: The name is taken.

    Example:
        >>> from offramp.networks import build
        >>> def small(num_classes, width=4):
        ...     return nn.Sequential(
        ...         nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(),
        ...         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes),
        ...     )
        >>> register_builder("small", small)
        >>> build("small", num_classes=3, image_size=16, width=8).exit_names
        ('1', 'last')
    """
    BUILDERS.add(name, builder, NetworkError)


def rebuild_backbone(origin: Origin) -> nn.Module:
    """Build what a file describes, without weights: a file must not start a download."""
    if origin.builder is None:
        raise FileFormatError(
            f"this network was attached to a backbone of your own, a {origin.class_name}: pass "
            f"one as load(folder, backbone={origin.class_name}(...)). Commands cannot make it: "
            "export such a network from Python (offramp.export), and `offramp serve` takes the "
            "export"
        )
    if origin.builder not in BUILDERS:
        raise FileFormatError(
            f"the file names an unknown builder {origin.builder!r}; if it is your own, call "
            "register_builder before loading"
        )
    make: Builder = BUILDERS[origin.builder]
    settings = origin.settings
    if "pretrained" in inspect.signature(make).parameters:
        settings = {**settings, "pretrained": False}
    return make(**settings)


def _is_transformers_model(module: object) -> bool:
    return any(
        parent.__module__.split(".")[0] == "transformers" for parent in type(module).__mro__
    )


def find_layout(
    backbone: BackboneModules,
    names: Sequence[str] | None,
    example: Any = None,  # noqa: ANN401
) -> Layout:
    """Find the units of a backbone, in the first way that fits.

    A traced module is cut at `names`, the exits that the user named, and tracing needs an example
    batch. If the backbone cannot be cut, the message of the `NetworkError` says what would help.
    """
    if isinstance(backbone, nn.ModuleList | list | tuple):
        return stages_layout(list(backbone))
    if not isinstance(backbone, nn.Module):
        raise NetworkError(
            "`backbone` must be an nn.Module, a list of them, or a name, got "
            f"{type(backbone).__name__}"
        )
    own_layout = getattr(backbone, "layout", None)
    if callable(own_layout):
        layout: Layout = own_layout()
        return layout
    if _is_transformers_model(backbone):
        return transformers_layout(backbone)
    if is_plain_sequential(backbone):
        layout = sequential_layout(backbone)
        # Only tracing can put an exit inside a unit.
        if not any(name.startswith(f"{unit}.") for name in names or () for unit in layout.units):
            return layout
    return traced_layout(backbone, names, example)
