"""The layouts of models of `transformers`, family by family: an exit after every block.

The library has no fx support any more, so each family's units are written by hand. They call the
model's own submodules in its own order; nothing is copied.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn

from offramp.errors import NetworkError
from offramp.imports import require
from offramp.networks.heads import Pool
from offramp.networks.inputs import ImageInput, Inputs, TextInput
from offramp.networks.layout import Layout
from offramp.networks.state import Shared, State

Units = dict[str, nn.Module]


def _trunk_of(model: Any, name: str) -> tuple[Any, str]:  # noqa: ANN401 - a PreTrainedModel
    """The model without its classifier, and what its modules' names begin with."""
    trunk = getattr(model, name, None)
    return (model, "") if trunk is None else (trunk, f"{name}.")


def _numbered(path: str, modules: Iterable[nn.Module]) -> Units:
    """The children of the module at a path, by name."""
    return {f"{path}.{index}": module for index, module in enumerate(modules)}


def _layout(
    model: Any,  # noqa: ANN401
    trunk: Any,  # noqa: ANN401
    units: Units,
    blocks: Units,
    inputs: Inputs,
    pool: Pool,
    classifier: Callable[[], nn.Module],
    norm: bool = False,
) -> Layout:
    """A layout; `classifier` gathers the layers after the trunk, if the model has any."""
    has_classes = model is not trunk and model.config.num_labels > 0
    return Layout(
        units=units,
        blocks=list(blocks),
        classifier=classifier() if has_classes else None,
        num_classes=int(model.config.num_labels) if has_classes else None,
        inputs=inputs,
        pool=pool,
        norm=norm,
    )


def _images(config: Any, fixed: bool) -> ImageInput:  # noqa: ANN401
    """What an image model takes; `fixed` if it takes no other size.

    Otherwise the size is a guess: configurations name none, or one that their model was never
    trained with.
    """
    size = getattr(config, "image_size", None) or 224
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return ImageInput(height, width, config.num_channels, fixed, assumed=not fixed)


class Apply(nn.Module):
    """A function of the state, and of modules of the model, as a unit."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)

    def forward(self, state: State) -> Any:  # noqa: ANN401 - the next state, or logits
        """What the function returns."""
        return self.function(state, *self.parts)


# Convolutional networks: the state is a feature map.


def resnet_layout(model: Any) -> Layout:  # noqa: ANN401 - ResNetModel, with or without classifier
    """The stem, then one unit per residual layer."""
    trunk, prefix = _trunk_of(model, "resnet")
    layers: Units = {}
    for index, stage in enumerate(trunk.encoder.stages):
        layers |= _numbered(f"{prefix}encoder.stages.{index}.layers", stage.layers)
    return _layout(
        model,
        trunk,
        units={f"{prefix}embedder": trunk.embedder, **layers},
        blocks=layers,
        inputs=_images(model.config, fixed=False),
        pool=Pool("map"),
        classifier=lambda: nn.Sequential(trunk.pooler, model.classifier),
    )


def _norm_of_mean(features: Tensor, norm: nn.Module) -> Tensor:
    """The model's last norm of the mean `[N, C]` over all positions of `[N, C, H, W]`."""
    pooled: Tensor = norm(features.mean([-2, -1]))
    return pooled


def convnext_layout(model: Any) -> Layout:  # noqa: ANN401 - ConvNextModel, with or without classifier
    """The embeddings, each stage's downsampling and layers, and the last norm."""
    trunk, prefix = _trunk_of(model, "convnext")
    units: Units = {f"{prefix}embeddings": trunk.embeddings}
    blocks: Units = {}
    for index, stage in enumerate(trunk.encoder.stages):
        path = f"{prefix}encoder.stages.{index}"
        if len(stage.downsampling_layer):
            units[f"{path}.downsampling_layer"] = nn.Sequential(*stage.downsampling_layer)
        layers = _numbered(f"{path}.layers", stage.layers)
        units |= layers
        blocks |= layers
    return _layout(
        model,
        trunk,
        units={**units, f"{prefix}layernorm": Apply(_norm_of_mean, trunk.layernorm)},
        blocks=blocks,
        inputs=_images(model.config, fixed=False),
        pool=Pool("map"),
        classifier=lambda: nn.Sequential(model.classifier),
        norm=True,
    )


def efficientnet_layout(model: Any) -> Layout:  # noqa: ANN401 - EfficientNetModel, with or without classifier
    """The stem, one unit per block, and the wide convolution on top.

    The momentum of its batch norms is put right, in the model itself.
    """
    trunk, prefix = _trunk_of(model, "efficientnet")
    encoder = trunk.encoder
    _correct_momentum(trunk, model.config.batch_norm_momentum)
    blocks = _numbered(f"{prefix}encoder.blocks", encoder.blocks)
    top = nn.Sequential(encoder.top_conv, encoder.top_bn, encoder.top_activation)
    return _layout(
        model,
        trunk,
        units={
            f"{prefix}embeddings": trunk.embeddings,
            **blocks,
            f"{prefix}encoder.top_conv": top,
        },
        blocks=blocks,
        inputs=_images(model.config, fixed=False),
        pool=Pool("map"),
        classifier=lambda: nn.Sequential(
            trunk.pooler, nn.Flatten(), model.dropout, model.classifier
        ),
    )


def _correct_momentum(trunk: nn.Module, stated: float) -> None:
    """Let batch norms keep most of their running statistics, not forget them.

    The configurations state TensorFlow's momentum, 0.99: how much of the old statistics is kept.
    `transformers` hands it to PyTorch, where it is how much of the new batch is taken.
    """
    for module in trunk.modules():
        if isinstance(module, nn.BatchNorm2d) and stated > 0.5:
            module.momentum = 1 - stated


# Vision transformers: heads read the first token of ViT and DeiT, and the mean token of Swin.


def _mean_of_classifiers(tokens: Tensor, first: nn.Module, second: nn.Module) -> Tensor:
    """Logits `[N, K]`: the mean of classifiers on the first two tokens of `[N, T, C]` (DeiT)."""
    logits: Tensor = (first(tokens[:, 0, :]) + second(tokens[:, 1, :])) / 2
    return logits


def vit_layout(model: Any) -> Layout:  # noqa: ANN401 - ViT or DeiT, with or without classifier
    """The embeddings, one unit per block, and the last norm."""
    trunk, prefix = _trunk_of(model, "deit" if hasattr(model, "deit") else "vit")
    # The blocks moved from `encoder.layer` to `layers` in the course of transformers 5.
    where = "layers" if hasattr(trunk, "layers") else "encoder.layer"
    blocks = _numbered(f"{prefix}{where}", trunk.get_submodule(where))

    def classifier() -> nn.Module:
        if hasattr(model, "distillation_classifier"):
            both = model.cls_classifier, model.distillation_classifier
            return Apply(_mean_of_classifiers, *both)
        return nn.Sequential(Apply(Pool("first")), model.classifier)

    return _layout(
        model,
        trunk,
        units={
            f"{prefix}embeddings": trunk.embeddings,
            **blocks,
            f"{prefix}layernorm": trunk.layernorm,
        },
        blocks=blocks,
        inputs=_images(model.config, fixed=True),
        pool=Pool("first"),
        classifier=classifier,
        norm=True,
    )


def _embedded_images(images: Tensor, embeddings: nn.Module) -> dict[str, Any]:
    """Images to `hidden` `[N, T, C]` and the `size` of its map, which all samples share (Swin)."""
    hidden, size = embeddings(images)
    return {"hidden": hidden, "size": Shared(tuple(size))}


def _windows_attended(state: dict[str, Any], layer: nn.Module) -> dict[str, Any]:
    """`hidden` after one layer of attention within windows."""
    return {"hidden": layer(state["hidden"], state["size"].value)[0], "size": state["size"]}


def _tokens_merged(state: dict[str, Any], downsample: nn.Module) -> dict[str, Any]:
    """`hidden` `[N, T, C]` to `[N, T / 4, 2 C]`, four tokens to one, and half the size."""
    height, width = state["size"].value
    hidden = downsample(state["hidden"], (height, width))
    return {"hidden": hidden, "size": Shared(((height + 1) // 2, (width + 1) // 2))}


def _mean_of_normed(state: dict[str, Any], norm: nn.Module, pooler: nn.Module) -> dict[str, Any]:
    """`hidden` `[N, T, C]` to `[N, C]`: the model's last norm, and the mean token."""
    tokens = norm(state["hidden"]).transpose(1, 2)
    return {"hidden": pooler(tokens).flatten(1), "size": state["size"]}


def swin_layout(model: Any) -> Layout:  # noqa: ANN401 - SwinModel, with or without classifier
    """The embeddings, each stage's layers and merging, and the last norm."""
    trunk, prefix = _trunk_of(model, "swin")
    units: Units = {f"{prefix}embeddings": Apply(_embedded_images, trunk.embeddings)}
    blocks: Units = {}
    for index, stage in enumerate(trunk.encoder.layers):
        path = f"{prefix}encoder.layers.{index}"
        layers = _numbered(f"{path}.blocks", (Apply(_windows_attended, b) for b in stage.blocks))
        units |= layers
        blocks |= layers
        if stage.downsample is not None:
            units[f"{path}.downsample"] = Apply(_tokens_merged, stage.downsample)
    pooler = trunk.pooler if trunk.pooler is not None else nn.AdaptiveAvgPool1d(1)
    pooled = Apply(Pool("whole", leaf=("hidden",)))
    mean = Apply(_mean_of_normed, trunk.layernorm, pooler)
    return _layout(
        model,
        trunk,
        units={**units, f"{prefix}layernorm": mean},
        blocks=blocks,
        inputs=_images(model.config, fixed=True),
        pool=Pool("mean", leaf=("hidden",)),
        classifier=lambda: nn.Sequential(pooled, model.classifier),
        norm=True,
    )


# Text encoders: the state holds the tokens and the mask of the padding. The mask shrinks with the
# tokens, and columns that are padding for all remaining samples can be cut.

_TEXT_FAMILIES = ("bert", "roberta", "electra", "distilbert")


def _embedded_text(
    state: dict[str, Tensor], embeddings: nn.Module, *project: nn.Module
) -> dict[str, Tensor]:
    """`input_ids` and `mask` `[N, T]` to `hidden` `[N, T, C]`; ELECTRA projects to that width."""
    segments = {key: state[key] for key in ("token_type_ids",) if key in state}
    hidden = embeddings(input_ids=state["input_ids"], **segments)
    for each in project:
        hidden = each(hidden)
    return {"hidden": hidden, "mask": state["mask"]}


def _words_attended(
    state: dict[str, Tensor], layer: nn.Module, full_mask: Callable[..., Tensor | None]
) -> dict[str, Tensor]:
    """`hidden` after one layer that does not attend to padding."""
    hidden, mask = state["hidden"], state["mask"]
    full = full_mask(inputs_embeds=hidden, attention_mask=mask)
    return {"hidden": layer(hidden, full), "mask": mask}


def bert_layout(model: Any) -> Layout:  # noqa: ANN401 - an encoder, with or without classifier
    """The embeddings, then one unit per layer."""
    config = model.config
    if getattr(config, "is_decoder", False):
        raise NetworkError("decoders are not supported: set config.is_decoder to False")
    family = next((name for name in _TEXT_FAMILIES if hasattr(model, name)), "")
    trunk, prefix = _trunk_of(model, family) if family else (model, "")
    where = "transformer.layer" if hasattr(trunk, "transformer") else "encoder.layer"
    masks = require("transformers.masking_utils", extra="train")
    full_mask = partial(masks.create_bidirectional_mask, config=config)
    attend = partial(_words_attended, full_mask=full_mask)
    masked = (Apply(attend, layer) for layer in trunk.get_submodule(where))
    layers = _numbered(f"{prefix}{where}", masked)
    projects = hasattr(trunk, "embeddings_project")
    embedding = (trunk.embeddings, trunk.embeddings_project) if projects else (trunk.embeddings,)
    return _layout(
        model,
        trunk,
        units={f"{prefix}embeddings": Apply(_embedded_text, *embedding), **layers},
        blocks=layers,
        inputs=_texts(config),
        pool=Pool("mean", leaf=("hidden",), mask=("mask",)),
        classifier=lambda: _text_classifier(model, trunk),
    )


def _texts(config: Any) -> TextInput:  # noqa: ANN401
    positions = config.max_position_embeddings
    if config.model_type == "roberta":
        # RoBERTa counts positions from the padding's id plus one.
        positions -= config.pad_token_id + 1
    return TextInput(positions, config.vocab_size, segments=hasattr(config, "type_vocab_size"))


def _text_classifier(model: Any, trunk: Any) -> nn.Module:  # noqa: ANN401
    """The model's own layers, from the last tokens or the first of them, to logits."""
    first, every = (Apply(Pool(kind, leaf=("hidden",))) for kind in ("first", "whole"))
    if hasattr(model, "pre_classifier"):
        layers = (model.pre_classifier, nn.ReLU(), model.dropout, model.classifier)
        return nn.Sequential(first, *layers)
    pooler = getattr(trunk, "pooler", None)
    if pooler is None:
        return nn.Sequential(every, model.classifier)
    return nn.Sequential(every, pooler, model.dropout, model.classifier)
