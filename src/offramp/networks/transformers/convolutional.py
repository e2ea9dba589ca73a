"""ResNet, ConvNeXt and EfficientNet of `transformers`: an exit after every block."""

from typing import Any

from torch import Tensor, nn

from offramp.networks.heads import Pool
from offramp.networks.layout import Layout, Unit, module_names
from offramp.networks.transformers.common import image_input, own_classes, trunk_of


def resnet_layout(model: Any) -> Layout:  # noqa: ANN401 - ResNetModel, with or without classifier
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


class NormOfMean(nn.Module):
    """The mean over all positions, then the model's last norm."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, features: Tensor) -> Tensor:
        """Features `[N, C]` from a feature map `[N, C, H, W]`."""
        pooled: Tensor = self.norm(features.mean([-2, -1]))
        return pooled


def convnext_layout(model: Any) -> Layout:  # noqa: ANN401 - ConvNextModel, with or without classifier
    """The embeddings, each stage's downsampling and layers, and the last norm."""
    trunk, prefix = trunk_of(model, "convnext")
    units = [Unit(f"{prefix}embeddings", trunk.embeddings)]
    blocks = []
    for index, stage in enumerate(trunk.encoder.stages):
        path = f"{prefix}encoder.stages.{index}"
        if len(stage.downsampling_layer):
            down = nn.Sequential(*stage.downsampling_layer)
            units.append(Unit(f"{path}.downsampling_layer", down))
        layers = [Unit(f"{path}.layers.{j}", layer) for j, layer in enumerate(stage.layers)]
        units += layers
        blocks += [unit.name for unit in layers]
    classes = own_classes(model, trunk)
    return Layout(
        units=[*units, Unit(f"{prefix}layernorm", NormOfMean(trunk.layernorm))],
        blocks=blocks,
        classifier=nn.Sequential(model.classifier) if classes else None,
        num_classes=classes,
        inputs=image_input(model.config, fixed=False),
        pool=Pool("map"),
        norm=True,
        modules=module_names(model),
    )


def _correct_momentum(trunk: nn.Module, stated: float) -> None:
    """Let batch norms keep most of their running statistics, not forget them.

    The configurations state TensorFlow's momentum, 0.99: how much of the old statistics is kept.
    `transformers` hands it to PyTorch, where it is how much of the new batch is taken.
    """
    for module in trunk.modules():
        if isinstance(module, nn.BatchNorm2d) and stated > 0.5:
            module.momentum = 1 - stated


def efficientnet_layout(model: Any) -> Layout:  # noqa: ANN401 - EfficientNetModel, with or without classifier
    """The stem, one unit per block, and the wide convolution on top.

    The momentum of its batch norms is put right, in the model itself.
    """
    trunk, prefix = trunk_of(model, "efficientnet")
    encoder = trunk.encoder
    _correct_momentum(trunk, model.config.batch_norm_momentum)
    blocks = [
        Unit(f"{prefix}encoder.blocks.{index}", block)
        for index, block in enumerate(encoder.blocks)
    ]
    top = nn.Sequential(encoder.top_conv, encoder.top_bn, encoder.top_activation)
    classes = own_classes(model, trunk)
    classifier = None
    if classes:
        parts = (trunk.pooler, nn.Flatten(), model.dropout, model.classifier)
        classifier = nn.Sequential(*parts)
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
