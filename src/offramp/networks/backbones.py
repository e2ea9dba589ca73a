"""Backbones: where they come from, how files name them, and how they are cut into units."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import nn

from offramp.errors import FileFormatError, NetworkError
from offramp.extras import require
from offramp.networks.fx import traced_layout
from offramp.networks.inputs import Inputs
from offramp.networks.layout import (
    HasLayout,
    Layout,
    is_plain_sequential,
    sequential_layout,
    stages_layout,
)
from offramp.networks.transformers import (
    model_settings,
    pretrained_model,
    transformers_layout,
)
from offramp.registry import BUILDERS

BackboneModules: TypeAlias = nn.Module | Sequence[nn.Module]
Builder: TypeAlias = Callable[..., nn.Module]


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


# Builders have no argument for weights: a file must not be able to start a download.


def untrained_timm_model(model: str) -> nn.Module:
    """A model of timm, for a file to name."""
    return timm_model(model)


def untrained_torchvision_model(model: str) -> nn.Module:
    """A model of torchvision, for a file to name."""
    return torchvision_model(model)


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


@dataclass(frozen=True)
class Backbone:
    """A backbone, and how a file can name it."""

    modules: BackboneModules  # a module or a list of stages
    # name of a registered builder that makes such a backbone; None if there is none
    builder: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # the builder's arguments, JSON values
    inputs: Inputs | None = None  # what it takes, if it does not say so itself

    @classmethod
    def of(cls, modules: BackboneModules) -> "Backbone":
        """A user's backbone; models of `transformers` can be built again from a file."""
        settings = model_settings(modules) if _is_transformers_model(modules) else None
        return cls(modules) if settings is None else cls(modules, "transformers", settings)

    @classmethod
    def named(cls, name: str) -> "Backbone":
        """A pretrained one: `timm/<model>`, `torchvision/<model>`, or a folder or hub id."""
        library, _, model = name.partition("/")
        if library == "timm":
            return cls(timm_model(model, pretrained=True), "timm", {"model": model})
        if library == "torchvision":
            return cls(torchvision_model(model, pretrained=True), "torchvision", {"model": model})
        return cls.of(pretrained_model(name))


def rebuild_backbone(builder: str | None, settings: dict[str, Any], class_name: str) -> nn.Module:
    """Build what a file describes, without weights; `class_name` is for messages."""
    if builder is None:
        raise FileFormatError(
            f"this network was attached to a backbone of your own, a {class_name}: pass one as "
            f"load(folder, backbone={class_name}(...)). Commands cannot make it: export such a "
            "network from Python (offramp.export), and `offramp serve` takes the export"
        )
    if builder not in BUILDERS:
        raise FileFormatError(
            f"the file names an unknown builder {builder!r}; if it is your own, call "
            "register_builder before loading"
        )
    make: Builder = BUILDERS[builder]
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
    if isinstance(backbone, HasLayout):
        return backbone.layout()
    if _is_transformers_model(backbone):
        return transformers_layout(backbone)
    if is_plain_sequential(backbone):
        layout = sequential_layout(backbone)  # type: ignore[arg-type]
        # Only tracing can put an exit inside a unit.
        if not any(name in layout.modules and not layout.has(name) for name in names or ()):
            return layout
    return traced_layout(backbone, names, example)
