"""Adapters for models of `transformers`, one file per family.

The library has no fx support any more, so each family's stages are written by hand. They call
the model's own submodules in its own order; nothing is copied.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from offramp.errors import NetworkError
from offramp.networks.layout import Layout

__all__ = ["FAMILIES", "describe_model", "lay_out_model"]

# Family -> the module here that knows it. Imported only when it is needed.
_MODULES = {
    "resnet": "convolutional",
    "convnext": "convolutional",
    "efficientnet": "convolutional",
    "vit": "vision_transformers",
    "swin": "vision_transformers",
    "bert": "text",
}

# Class of the model -> its family.
FAMILIES: dict[str, str] = {
    "ResNetForImageClassification": "resnet",
    "ResNetModel": "resnet",
    "ViTForImageClassification": "vit",
    "ViTModel": "vit",
    "DeiTForImageClassification": "vit",
    "DeiTForImageClassificationWithTeacher": "vit",
    "DeiTModel": "vit",
    "ConvNextForImageClassification": "convnext",
    "ConvNextModel": "convnext",
    "SwinForImageClassification": "swin",
    "SwinModel": "swin",
    "EfficientNetForImageClassification": "efficientnet",
    "EfficientNetModel": "efficientnet",
    "BertForSequenceClassification": "bert",
    "BertModel": "bert",
    "RobertaForSequenceClassification": "bert",
    "RobertaModel": "bert",
    "ElectraForSequenceClassification": "bert",
    "ElectraModel": "bert",
    "DistilBertForSequenceClassification": "bert",
    "DistilBertModel": "bert",
}


def lay_out_model(model: nn.Module) -> Layout:
    """Find the units of a model of `transformers`.

    Raises:
        NetworkError: There is no adapter for its family.
    """
    family = next(
        (FAMILIES[c.__name__] for c in type(model).__mro__ if c.__name__ in FAMILIES), None
    )
    if family is None:
        raise NetworkError(
            f"there is no adapter for {type(model).__name__}; there are for "
            f"{', '.join(sorted(FAMILIES))}. Give the model as a list of stages, or give it a "
            "method layout() that returns an offramp.networks.Layout"
        )
    lay_out: Callable[[Any], Layout] = import_module(f"{__name__}.{_MODULES[family]}").__dict__[
        f"lay_out_{family}"
    ]
    return lay_out(model)


def describe_model(model: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a PreTrainedModel
    """Arguments of `model_from_config` that make such a model again, or None for a user's own."""
    name = type(model).__name__
    if name not in FAMILIES or not type(model).__module__.startswith("transformers."):
        return None
    config = model.config.to_diff_dict()
    dropped = ("transformers_version", "architectures", "dtype", "torch_dtype", "auto_map")
    kept = {k: v for k, v in config.items() if k not in dropped and not k.startswith("_")}
    return {"model": name, "config": kept, "attention": model.config._attn_implementation}
