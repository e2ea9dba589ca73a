"""ViT and DeiT of `transformers`: an exit after every block, read from the class token."""

from typing import Any

from torch import Tensor, nn

from offramp.networks.adapters.parts import image_input, module_names, own_classes, trunk_of
from offramp.networks.heads import Pool
from offramp.networks.layout import Layout, Unit

__all__ = ["lay_out"]


class ClassToken(nn.Module):
    """A classifier on the first token."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `[N, K]` from tokens `[N, T, C]`."""
        logits: Tensor = self.classifier(tokens[:, 0, :])
        return logits


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


def lay_out(model: Any) -> Layout:  # noqa: ANN401 - ViT or DeiT, with or without classifier
    """The embeddings, one unit per block, and the last norm."""
    trunk, prefix = trunk_of(model, "deit" if hasattr(model, "deit") else "vit")
    # The blocks moved from `encoder.layer` to `layers` in the course of transformers 5.
    where, blocks = ("layers", trunk.layers) if hasattr(trunk, "layers") else _older(trunk)
    units = [Unit(f"{prefix}{where}.{index}", block) for index, block in enumerate(blocks)]
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


def _older(trunk: Any) -> tuple[str, Any]:  # noqa: ANN401
    return "encoder.layer", trunk.encoder.layer


def _classifier(model: Any) -> nn.Module:  # noqa: ANN401
    if hasattr(model, "distillation_classifier"):
        return ClassAndDistillationToken(model.cls_classifier, model.distillation_classifier)
    return ClassToken(model.classifier)
