"""What the networks built here share: blocks one after the other, and a classifier at the end."""

from typing import ClassVar

from torch import Tensor, nn

from offramp.networks.heads import HeadMaker, Pool
from offramp.networks.inputs import ImageInput
from offramp.networks.layout import Layout

SMALL_IMAGE = 64  # px; up to this size, the stem for large images would leave too little


def convolution(before: int, after: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """A convolution, batch norm and ReLU."""
    return [
        nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    ]


def first_layers(channels: int, width: int, image_size: int) -> list[nn.Module]:
    """A 3x3 convolution; for large images a 7x7 one of stride 2, and a max-pool."""
    if image_size <= SMALL_IMAGE:
        return convolution(channels, width, 3)
    return [*convolution(channels, width, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1)]


def initialize_convolutions(network: nn.Module) -> None:
    """Draw the weights of all convolutions as He et al. (2015) do."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class PooledClassifier(nn.Module):
    """Mean over all positions, then a linear layer: how most image networks end."""

    def __init__(self, width: int, num_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Logits `[N, K]` from a feature map `[N, C, H, W]`."""
        logits: Tensor = self.linear(self.dropout(features.mean((2, 3))))
        return logits


class BlockNetwork(nn.Module):
    """Parent of the networks built here; a subclass sets the attributes."""

    blocks: nn.ModuleList  # run in order; an exit can come after each
    classifier: nn.Module  # from the last state to logits; has a layer `linear`
    inputs: ImageInput  # the images that the network is for
    before: ClassVar[tuple[str, ...]] = ()  # names of modules that run before the blocks
    # names of modules that run between the blocks and the classifier
    after: ClassVar[tuple[str, ...]] = ()
    pool: ClassVar[Pool] = Pool("map")  # how heads read the state
    # whether heads before the last exit begin with a layer norm
    norm: ClassVar[bool] = False
    default_head: HeadMaker | None = None  # makes heads that are special to the network

    def units(self) -> dict[str, nn.Module]:
        """Everything but the classifier, in the order in which it runs."""
        names = (*self.before, *self._block_names(), *self.after)
        return {name: self.get_submodule(name) for name in names}

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[N, K]` from images."""
        for unit in self.units().values():
            x = unit(x)
        logits: Tensor = self.classifier(x)
        return logits

    def layout(self) -> Layout:
        """One unit per block, and those before and after."""
        linear = self.classifier.get_submodule("linear")
        return Layout(
            units=self.units(),
            blocks=self._block_names(),
            classifier=self.classifier,
            num_classes=linear.out_features,  # type: ignore[arg-type]
            inputs=self.inputs,
            pool=self.pool,
            norm=self.norm,
            default_head=self.default_head,
        )

    def _block_names(self) -> list[str]:
        return [f"blocks.{index}" for index in range(len(self.blocks))]
