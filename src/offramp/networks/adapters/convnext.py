"""ConvNeXt of `transformers`: an exit after every layer."""

from typing import Any

from torch import Tensor, nn

from offramp.networks.adapters.parts import image_input, module_names, own_classes, trunk_of
from offramp.networks.heads import Pool
from offramp.networks.layout import Layout, Unit

__all__ = ["lay_out"]


class PooledNorm(nn.Module):
    """The mean over all positions, then the model's last norm."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, features: Tensor) -> Tensor:
        """Features `[N, C]` from a feature map `[N, C, H, W]`."""
        pooled: Tensor = self.norm(features.mean([-2, -1]))
        return pooled


def lay_out(model: Any) -> Layout:  # noqa: ANN401 - ConvNextModel, with or without classifier
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
        units=[*units, Unit(f"{prefix}layernorm", PooledNorm(trunk.layernorm))],
        blocks=blocks,
        classifier=nn.Sequential(model.classifier) if classes else None,
        num_classes=classes,
        inputs=image_input(model.config, fixed=False),
        pool=Pool("map"),
        norm=True,
        modules=module_names(model),
    )
