"""Networks by name: `build`, and `build_for_data` to fit a data set."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from offramp.data.splits import Data
from offramp.errors import ConfigError, NetworkError
from offramp.networks.attach import attach
from offramp.networks.backbones import Builder, Origin, find_layout
from offramp.networks.heads import HeadMaker
from offramp.networks.inputs import ImageInput
from offramp.networks.network import EarlyExitNetwork
from offramp.registry import ARCHITECTURES, BUILDERS, or_known


def build(
    name: str,
    num_classes: int,
    image_size: int,
    at: str | int | Sequence[str] = "every-block",
    head: str | HeadMaker | None = None,
    **settings: Any,  # noqa: ANN401 - the builder's own
) -> EarlyExitNetwork:
    """Build one of the paper's networks with exits, untrained.

    Args:
        name: `resnet34`, `resnet18`, `vit-mini`, `vit-tiny`, `vit-small`, `efficientnet-b0`,
            `efficientnet-b2`, `msdnet`, `thin-resnet` or `convnet`; or one that
            `register_builder` made known.
        num_classes: K.
        image_size: Height and width of the images in pixels.
        at: Where the exits go, see `attach`.
        head: The heads before the last exit, see `attach`; by default `pooled-linear` or, of
            MSDNet, its own.
        **settings: Of the architecture, such as `channels`, `depth`, or MSDNet's `blocks`,
            `step_mode`, `step` and `base`.

    Raises:
        NetworkError: An unknown name or setting, or an image size that does not fit.

    Example:
        >>> network = build("thin-resnet", num_classes=10, image_size=32, at=3, depth=8)
        >>> network.exit_names
        ('blocks.0', 'blocks.1', 'last')
    """
    builder: Builder | None = BUILDERS.get(name)
    if builder is None:
        raise NetworkError(f"there is no network `{name}`{or_known(name, ARCHITECTURES)}")
    channels = settings.get("channels", 3)
    settings = {**_taken(builder, num_classes=num_classes, image_size=image_size), **settings}
    try:
        backbone = builder(**settings)
    except TypeError as error:
        raise NetworkError(f"`{name}` does not take these settings: {error}") from None
    inputs = getattr(backbone, "inputs", None)  # one of the user's own need not say
    if not isinstance(inputs, ImageInput):
        inputs = ImageInput(image_size, image_size, channels)
    if head is None and name in ARCHITECTURES and find_layout(backbone, None).default_head is None:
        head = "pooled-linear"  # as in the paper: such a network is trained with its exits
    network = attach(backbone, at, num_classes, head, inputs.example(2))
    network.inputs = inputs
    network.origin = Origin(type(backbone).__name__, name, settings)
    network.is_new = name in ARCHITECTURES
    return network


def _taken(builder: Builder, **settings: Any) -> dict[str, Any]:  # noqa: ANN401
    """The settings that a builder takes; one of the user's own may need none."""
    known = inspect.signature(builder).parameters
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return settings
    return {name: value for name, value in settings.items() if name in known}


def build_for_data(
    name: str,
    data: Data,
    seed: int = 0,
    at: str | int | Sequence[str] = "every-block",
    head: str | HeadMaker | None = None,
    **settings: Any,  # noqa: ANN401 - the builder's own
) -> EarlyExitNetwork:
    """Build a network for a data set, or attach exits to a pretrained model.

    Args:
        name: A name that `build` knows, or a pretrained model as `attach` takes it.
        data: A split: its first sample gives the size of the images, and it knows the classes.
        seed: Seeds torch: an interrupted run begins with the same weights again.
        at: Where the exits go, see `attach`.
        head: The heads before the last exit, see `attach`.
        **settings: Of the architecture, see `build`.

    Raises:
        ConfigError: `build` would have to make a network for something other than square images.
        NetworkError: As `build` and `attach` raise it.

    Example:
        >>> from offramp.data import cluttered_digits
        >>> splits = cluttered_digits(sizes={"train": 8, "held_out": 8, "val": 8, "test": 8})
        >>> build_for_data("convnet", splits.train).num_classes
        10
    """
    torch.manual_seed(seed)
    inputs, _ = data[0]
    if name not in BUILDERS:
        network = attach(name, at, data.num_classes, head)
        network.settle(default_collate([inputs]))
        return network
    if not isinstance(inputs, Tensor) or inputs.ndim != 3 or inputs.shape[1] != inputs.shape[2]:
        raise ConfigError(
            f"`{name}` takes square images, and these data are not: load images with an "
            "`image_size`, or name a pretrained model that takes these data"
        )
    channels = inputs.shape[0]
    settings = settings if channels == 3 else {"channels": channels, **settings}
    return build(name, data.num_classes, inputs.shape[1], at, head, **settings)
