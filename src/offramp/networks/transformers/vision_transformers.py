"""ViT, DeiT and Swin of `transformers`: an exit after every layer.

Heads read the first token of ViT and DeiT, and the mean token of Swin. Swin's state also holds the
height and width of its map of tokens, which are the same for all samples.
"""

from typing import Any

from torch import Tensor, nn

from offramp.networks.heads import Pool
from offramp.networks.layout import Layout, Unit, module_names
from offramp.networks.state import Shared
from offramp.networks.transformers.common import Read, image_input, own_classes, trunk_of


class ClassAndDistillationToken(nn.Module):
    """The mean of two classifiers, on the first and on the second token (DeiT)."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[N, K]` from tokens `[N, T, C]`."""
        logits: Tensor = (self.first(tokens[:, 0, :]) + self.second(tokens[:, 1, :])) / 2
        return logits


def vit_layout(model: Any) -> Layout:  # noqa: ANN401 - ViT or DeiT, with or without classifier
    """The embeddings, one unit per block, and the last norm."""
    trunk, prefix = trunk_of(model, "deit" if hasattr(model, "deit") else "vit")
    # The blocks moved from `encoder.layer` to `layers` in the course of transformers 5.
    where = "layers" if hasattr(trunk, "layers") else "encoder.layer"
    units = [
        Unit(f"{prefix}{where}.{index}", block)
        for index, block in enumerate(trunk.get_submodule(where))
    ]
    classes = own_classes(model, trunk)
    return Layout(
        units=[
            Unit(f"{prefix}embeddings", trunk.embeddings),
            *units,
            Unit(f"{prefix}layernorm", trunk.layernorm),
        ],
        blocks=[unit.name for unit in units],
        classifier=_classifier(model) if classes else None,
        num_classes=classes,
        inputs=image_input(model.config, fixed=True),
        pool=Pool("first"),
        norm=True,
        modules=module_names(model),
    )


def _classifier(model: Any) -> nn.Module:  # noqa: ANN401
    if hasattr(model, "distillation_classifier"):
        return ClassAndDistillationToken(model.cls_classifier, model.distillation_classifier)
    return nn.Sequential(Read(Pool("first")), model.classifier)


class ImageEmbedding(nn.Module):
    """Images to tokens and the size of their map."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, images: Tensor) -> dict[str, Any]:
        """Images `[N, C, H, W]` to `hidden` `[N, T, C]` and `size`."""
        hidden, size = self.embeddings(images)
        return {"hidden": hidden, "size": Shared(tuple(size))}


class WindowLayer(nn.Module):
    """One layer of attention within windows."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, state: dict[str, Any]) -> dict[str, Any]:
        """`hidden` `[N, T, C]` and `size` to the same."""
        hidden = self.layer(state["hidden"], state["size"].value)[0]
        return {"hidden": hidden, "size": state["size"]}


class TokenMerging(nn.Module):
    """Four tokens to one of twice the width."""

    def __init__(self, downsample: nn.Module) -> None:
        super().__init__()
        self.downsample = downsample

    def forward(self, state: dict[str, Any]) -> dict[str, Any]:
        """`hidden` `[N, T, C]` and `size` to `[N, T / 4, 2 C]` and half the size."""
        height, width = state["size"].value
        hidden = self.downsample(state["hidden"], (height, width))
        return {"hidden": hidden, "size": Shared(((height + 1) // 2, (width + 1) // 2))}


class MeanOfNormedTokens(nn.Module):
    """The model's last norm and the mean token."""

    def __init__(self, norm: nn.Module, pooler: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.pooler = pooler

    def forward(self, state: dict[str, Any]) -> dict[str, Any]:
        """`hidden` `[N, T, C]` to `[N, C]`."""
        tokens = self.norm(state["hidden"]).transpose(1, 2)
        return {"hidden": self.pooler(tokens).flatten(1), "size": state["size"]}


def swin_layout(model: Any) -> Layout:  # noqa: ANN401 - SwinModel, with or without classifier
    """The embeddings, each stage's layers and merging, and the last norm."""
    trunk, prefix = trunk_of(model, "swin")
    units = [Unit(f"{prefix}embeddings", ImageEmbedding(trunk.embeddings))]
    blocks = []
    for index, stage in enumerate(trunk.encoder.layers):
        path = f"{prefix}encoder.layers.{index}"
        layers = [Unit(f"{path}.blocks.{j}", WindowLayer(b)) for j, b in enumerate(stage.blocks)]
        units += layers
        blocks += [unit.name for unit in layers]
        if stage.downsample is not None:
            units.append(Unit(f"{path}.downsample", TokenMerging(stage.downsample)))
    pooler = trunk.pooler if trunk.pooler is not None else nn.AdaptiveAvgPool1d(1)
    pooled = Pool("whole", leaf=("hidden",))
    classes = own_classes(model, trunk)
    return Layout(
        units=[*units, Unit(f"{prefix}layernorm", MeanOfNormedTokens(trunk.layernorm, pooler))],
        blocks=blocks,
        classifier=nn.Sequential(Read(pooled), model.classifier) if classes else None,
        num_classes=classes,
        inputs=image_input(model.config, fixed=True),
        pool=Pool("mean", leaf=("hidden",)),
        norm=True,
        modules=module_names(model),
    )
