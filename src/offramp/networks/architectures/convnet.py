"""A small convolutional network for demos and tests: seconds on a CPU."""

from itertools import pairwise

from torch import nn

from offramp.errors import NetworkError
from offramp.networks.architectures.blocks import BlockNetwork, PooledClassifier, convolution
from offramp.networks.inputs import ImageInput


class ConvNet(BlockNetwork):
    """Blocks of a 3x3 convolution, batch norm and ReLU; each but the first halves the image.

    The first block has `width` channels; they double with every block, up to eight times.
    """

    def __init__(
        self, num_classes: int, image_size: int, channels: int = 3, width: int = 16, depth: int = 4
    ) -> None:
        super().__init__()
        if depth < 1 or image_size < 2 ** (depth - 1):
            raise NetworkError(
                f"a convnet of {depth} blocks halves the image {depth - 1} times: `image_size` "
                f"must be at least {2 ** max(depth - 1, 0)} and `depth` at least 1, got "
                f"{image_size} and {depth}"
            )
        widths = [channels, *(width * min(2**index, 8) for index in range(depth))]
        self.blocks = nn.ModuleList(
            nn.Sequential(*convolution(*pair, kernel=3, stride=2 if index else 1))
            for index, pair in enumerate(pairwise(widths))
        )
        self.classifier = PooledClassifier(widths[-1], num_classes)
        self.inputs = ImageInput(image_size, image_size, channels)
