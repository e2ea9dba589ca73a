"""Vision transformers with a class token: ViT-Mini, ViT-Tiny and ViT-Small."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

from offramp.errors import NetworkError
from offramp.networks.architectures.blocks import BlockNetwork
from offramp.networks.heads import Pool
from offramp.networks.inputs import ImageInput


class PatchEmbedding(nn.Module):
    """Patches, a class token before them, and learned positions."""

    def __init__(
        self, image_size: int, patch_size: int, channels: int, width: int, conv_stem: bool
    ) -> None:
        super().__init__()
        self.projection = (
            _conv_stem(patch_size, channels, width)
            if conv_stem
            else nn.Conv2d(channels, width, patch_size, stride=patch_size)
        )
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        tokens = (image_size // patch_size) ** 2 + 1
        self.positions = nn.Parameter(torch.randn(1, tokens, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Images `[N, C, H, W]` to tokens `[N, T, width]`."""
        patches = self.projection(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(x.shape[0], -1, -1), patches], dim=1)
        return tokens + self.positions


def _conv_stem(patch_size: int, channels: int, width: int) -> nn.Module:
    """Convolutions that halve the image until a token is a patch (Xiao et al. 2021)."""
    halvings = patch_size.bit_length() - 1
    if patch_size != 2**halvings or width % 2 ** max(halvings - 1, 0):
        raise NetworkError(
            f"a convolutional stem halves the image and doubles the channels: the patch size must "
            f"be 1, 2, 4, ... and fit into the width, got {patch_size} and {width}"
        )
    layers: list[nn.Module] = []
    for left in reversed(range(halvings)):
        after = width >> left
        layers += [
            nn.Conv2d(channels, after, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
        channels = after
    return nn.Sequential(*layers, nn.Conv2d(channels, width, 1))


class TransformerBlock(nn.Module):
    """Attention and a two-layer network, each behind a layer norm and around a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens `[N, T, C]` to tokens `[N, T, C]`."""
        x = x + self.dropout(self._attend(self.norm1(x)))
        result: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return result

    def _attend(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        split = self.qkv(x).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # [N, heads, T, C / heads] each
        mixed = F.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.projection(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return result


class TokenClassifier(nn.Module):
    """A linear layer on the class token."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[N, K]` from tokens `[N, T, C]`."""
        logits: Tensor = self.linear(tokens[:, 0])
        return logits


class VisionTransformer(BlockNetwork):
    """A pre-norm vision transformer (Dosovitskiy et al. 2021) whose patches fit the image."""

    before = ("embedding",)
    after = ("last_norm",)
    pool = Pool("first")
    norm = True

    def __init__(  # noqa: PLR0913 - settings of a file, by name
        self,
        num_classes: int,
        image_size: int,
        width: int,
        heads: int,
        depth: int = 12,
        patch_size: int | None = None,
        channels: int = 3,
        dropout: float = 0.0,
        conv_stem: bool = False,
    ) -> None:
        super().__init__()
        patch = fitting_patch(image_size) if patch_size is None else patch_size
        if image_size % patch:
            raise NetworkError(
                f"`image_size` must be a multiple of the patch size {patch}, got {image_size}; "
                "resize the images or pass another `patch_size`"
            )
        self.embedding = PatchEmbedding(image_size, patch, channels, width, conv_stem)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, dropout) for _ in range(depth))
        self.last_norm = nn.LayerNorm(width, eps=1e-6)
        self.classifier = TokenClassifier(width, num_classes)
        self.inputs = ImageInput(image_size, image_size, channels)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)


def fitting_patch(image_size: int, least: int = 8) -> int:
    """The largest patch of 16, 8, 4, 2 or 1 px of which at least `least` whole ones fit a side."""
    for patch in (16, 8, 4, 2, 1):
        if image_size % patch == 0 and image_size // patch >= least:
            return patch
    raise NetworkError(
        f"a vision transformer needs at least {least}x{least} patches, and `image_size` is "
        f"{image_size}; take larger images or pass `patch_size`"
    )


def vit_mini(num_classes: int, image_size: int, **settings: Any) -> VisionTransformer:  # noqa: ANN401
    """A vision transformer that a CPU can train: few tokens, and convolutions before them.

    Without the convolutions, it would need far more images or epochs.
    """
    small = {"width": 192, "heads": 3, "depth": 6, "conv_stem": True}
    small["patch_size"] = fitting_patch(image_size, least=4)
    return VisionTransformer(num_classes, image_size, **{**small, **settings})


vit_tiny = partial(VisionTransformer, width=192, heads=3)
vit_small = partial(VisionTransformer, width=384, heads=6)
