"""BERT, RoBERTa, ELECTRA and DistilBERT of `transformers`: an exit after every layer.

The state holds the tokens and the mask of the padding. The mask shrinks with them, and columns
that are padding for all remaining samples can be cut.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from offramp.errors import NetworkError
from offramp.extras import require
from offramp.networks.heads import Pool
from offramp.networks.inputs import TextInput
from offramp.networks.layout import Layout, Unit, module_names
from offramp.networks.transformers.common import Read, own_classes, trunk_of

_FAMILIES = ("bert", "roberta", "electra", "distilbert")


class TextEmbedding(nn.Module):
    """Token ids to embedded tokens; ELECTRA projects them to the layers' width."""

    def __init__(self, embeddings: nn.Module, project: nn.Module | None) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.project = nn.Identity() if project is None else project

    def forward(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """`input_ids` and `mask`, `[N, T]` each, to `hidden` `[N, T, C]` and `mask`."""
        segments = {key: state[key] for key in ("token_type_ids",) if key in state}
        hidden = self.embeddings(input_ids=state["input_ids"], **segments)
        return {"hidden": self.project(hidden), "mask": state["mask"]}


class MaskedLayer(nn.Module):
    """One transformer layer that does not attend to padding."""

    def __init__(self, layer: nn.Module, config: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.layer = layer
        self.config = config
        masks = require("transformers.masking_utils", extra="train")
        self.full_mask: Callable[..., Tensor | None] = masks.create_bidirectional_mask

    def forward(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """`hidden` `[N, T, C]` and `mask` `[N, T]` to the same."""
        hidden, mask = state["hidden"], state["mask"]
        full = self.full_mask(config=self.config, inputs_embeds=hidden, attention_mask=mask)
        return {"hidden": self.layer(hidden, full), "mask": mask}


def bert_layout(model: Any) -> Layout:  # noqa: ANN401 - an encoder, with or without classifier
    """The embeddings, then one unit per layer."""
    config = model.config
    if getattr(config, "is_decoder", False):
        raise NetworkError("decoders are not supported: set config.is_decoder to False")
    family = next((name for name in _FAMILIES if hasattr(model, name)), "")
    trunk, prefix = trunk_of(model, family) if family else (model, "")
    where = "transformer.layer" if hasattr(trunk, "transformer") else "encoder.layer"
    layers = [
        Unit(f"{prefix}{where}.{index}", MaskedLayer(layer, config))
        for index, layer in enumerate(trunk.get_submodule(where))
    ]
    embed = TextEmbedding(trunk.embeddings, getattr(trunk, "embeddings_project", None))
    classes = own_classes(model, trunk)
    return Layout(
        units=[Unit(f"{prefix}embeddings", embed), *layers],
        blocks=[unit.name for unit in layers],
        classifier=_classifier(model, trunk) if classes else None,
        num_classes=classes,
        inputs=_text_input(config),
        pool=Pool("first", leaf=("hidden",), mask=("mask",)),
        modules=module_names(model),
    )


def _text_input(config: Any) -> TextInput:  # noqa: ANN401
    positions = config.max_position_embeddings
    if config.model_type == "roberta":
        # RoBERTa counts positions from the padding's id plus one.
        positions -= config.pad_token_id + 1
    return TextInput(positions, config.vocab_size, segments=hasattr(config, "type_vocab_size"))


def _classifier(model: Any, trunk: Any) -> nn.Module:  # noqa: ANN401
    """The model's own layers, from the last tokens or the first of them, to logits."""
    first, every = (Read(Pool(kind, leaf=("hidden",))) for kind in ("first", "whole"))
    if hasattr(model, "pre_classifier"):
        layers = (model.pre_classifier, nn.ReLU(), model.dropout, model.classifier)
        return nn.Sequential(first, *layers)
    pooler = getattr(trunk, "pooler", None)
    if pooler is None:
        return nn.Sequential(every, model.classifier)
    return nn.Sequential(every, pooler, model.dropout, model.classifier)
