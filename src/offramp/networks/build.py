"""The paper's networks by name, and the registry of builders that files may name."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import nn

from offramp.errors import NetworkError
from offramp.hints import or_known
from offramp.networks import pretrained
from offramp.networks.architectures.convnet import ConvNet
from offramp.networks.architectures.efficientnet import efficientnet_b0, efficientnet_b2
from offramp.networks.architectures.lite0 import efficientnet_lite0
from offramp.networks.architectures.msdnet import msdnet
from offramp.networks.architectures.resnet import resnet18, resnet34, thin_resnet
from offramp.networks.architectures.vit import VisionTransformer, vit_small, vit_tiny
from offramp.networks.attach import Source, attach_source
from offramp.networks.heads import HeadMaker
from offramp.networks.network import EarlyExitNetwork

Builder: TypeAlias = Callable[..., nn.Module]

ARCHITECTURES: tuple[str, ...] = (
    "resnet34",
    "resnet18",
    "vit-tiny",
    "vit-small",
    "efficientnet-b0",
    "efficientnet-b2",
    "msdnet",
    "thin-resnet",
    "convnet",
)

# A file names its backbone's builder by a key of this table, and nothing else can be run.
BUILDERS: dict[str, Builder] = {
    "resnet34": resnet34,
    "resnet18": resnet18,
    "vit-tiny": vit_tiny,
    "vit-small": vit_small,
    "efficientnet-b0": efficientnet_b0,
    "efficientnet-b2": efficientnet_b2,
    "msdnet": msdnet,
    "thin-resnet": thin_resnet,
    "convnet": ConvNet,
    "vit": VisionTransformer,  # of any width, depth and number of heads
    "efficientnet-lite0": efficientnet_lite0,  # pretrained, from the extra `lite0`
    "transformers": pretrained.model_from_config,
    # Without an argument for weights: a file must not be able to start a download.
    "timm": lambda model: pretrained.timm_model(model),
    "torchvision": lambda model: pretrained.torchvision_model(model),
}


def register_builder(name: str, builder: Builder) -> None:
    """Make a backbone of your own known, so that `build` and files can name it.

    Args:
        name: A new name.
        builder: A function of `num_classes`, `image_size` and settings that are JSON values,
            which returns a backbone that `attach` can take.

    Raises:
        NetworkError: The name is taken.

    Example:
        >>> from offramp.networks.architectures.convnet import ConvNet
        >>> def narrow(num_classes, image_size):
        ...     return ConvNet(num_classes, image_size, width=4)
        >>> register_builder("narrow-convnet", narrow)
        >>> build("narrow-convnet", num_classes=3, image_size=16).num_exits
        4
    """
    if BUILDERS.get(name, builder) is not builder:
        raise NetworkError(f"there is a builder `{name}` already; choose another name")
    BUILDERS[name] = builder


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
        name: `resnet34`, `resnet18`, `vit-tiny`, `vit-small`, `efficientnet-b0`,
            `efficientnet-b2`, `msdnet`, `thin-resnet` or `convnet`.
        num_classes: K.
        image_size: Height and width of the images in pixels.
        at: Where the exits go, see `attach`.
        head: The heads before the last exit, see `attach`.
        **settings: Of the architecture, such as `channels`, `depth`, or MSDNet's `blocks`,
            `step_mode`, `step` and `base`.

    Raises:
        NetworkError: An unknown name or setting, or an image size that does not fit.

    Example:
        >>> network = build("thin-resnet", num_classes=10, image_size=32, at=3, depth=8)
        >>> network.exit_names
        ('blocks.0', 'blocks.1', 'last')
    """
    builder = BUILDERS.get(name)
    if builder is None:
        raise NetworkError(f"there is no network `{name}`{or_known(name, ARCHITECTURES)}")
    settings = {"num_classes": num_classes, "image_size": image_size, **settings}
    try:
        inspect.signature(builder).bind(**settings)
        backbone = builder(**settings)
    except TypeError as error:
        raise NetworkError(f"`{name}` does not take these settings: {error}") from None
    return attach_source(Source(backbone, name, settings), at, num_classes, head)
