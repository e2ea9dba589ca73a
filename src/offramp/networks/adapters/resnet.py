"""ResNet of `transformers`: an exit after every residual layer."""

from typing import Any

from torch import nn

from offramp.networks.adapters.parts import image_input, module_names, own_classes, trunk_of
from offramp.networks.heads import Pool
from offramp.networks.layout import Layout, Unit

__all__ = ["lay_out"]


def lay_out(model: Any) -> Layout:  # noqa: ANN401 - ResNetModel, with or without classifier
    """The stem, then one unit per residual layer."""
    trunk, prefix = trunk_of(model, "resnet")
    layers = [
        Unit(f"{prefix}encoder.stages.{i}.layers.{j}", layer)
        for i, stage in enumerate(trunk.encoder.stages)
        for j, layer in enumerate(stage.layers)
    ]
    classes = own_classes(model, trunk)
    return Layout(
        units=[Unit(f"{prefix}embedder", trunk.embedder), *layers],
        blocks=[unit.name for unit in layers],
        classifier=nn.Sequential(trunk.pooler, model.classifier) if classes else None,
        num_classes=classes,
        inputs=image_input(model.config, fixed=False),
        pool=Pool("map"),
        modules=module_names(model),
    )
