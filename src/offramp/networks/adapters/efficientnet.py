"""EfficientNet of `transformers`: an exit after every block."""

from typing import Any

from torch import Tensor, nn

from offramp.networks.adapters.parts import image_input, module_names, own_classes, trunk_of
from offramp.networks.heads import Pool
from offramp.networks.layout import Layout, Unit

__all__ = ["lay_out"]


class PooledDropout(nn.Module):
    """The model's own pooling, dropout and classifier."""

    def __init__(self, pooler: nn.Module, dropout: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.pooler = pooler
        self.dropout = dropout
        self.classifier = classifier

    def forward(self, features: Tensor) -> Tensor:
        """Logits `[N, K]` from a feature map `[N, C, H, W]`."""
        pooled = self.pooler(features)
        logits: Tensor = self.classifier(self.dropout(pooled.reshape(pooled.shape[:2])))
        return logits


def lay_out(model: Any) -> Layout:  # noqa: ANN401 - EfficientNetModel, with or without classifier
    """The stem, one unit per block, and the wide convolution on top."""
    trunk, prefix = trunk_of(model, "efficientnet")
    encoder = trunk.encoder
    blocks = [
        Unit(f"{prefix}encoder.blocks.{index}", block)
        for index, block in enumerate(encoder.blocks)
    ]
    top = nn.Sequential(encoder.top_conv, encoder.top_bn, encoder.top_activation)
    classes = own_classes(model, trunk)
    classifier = PooledDropout(trunk.pooler, model.dropout, model.classifier) if classes else None
    return Layout(
        units=[
            Unit(f"{prefix}embeddings", trunk.embeddings),
            *blocks,
            Unit(f"{prefix}encoder.top_conv", top),
        ],
        blocks=[unit.name for unit in blocks],
        classifier=classifier,
        num_classes=classes,
        inputs=image_input(model.config, fixed=False),
        pool=Pool("map"),
        modules=module_names(model),
    )
