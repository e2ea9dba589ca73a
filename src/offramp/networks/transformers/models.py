"""Models of `transformers`: how they are made, loaded and described in files.

Nothing here runs code from a file or from the hub: weights are safetensors, remote code is
refused, and only classes with a layout are made.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from offramp.data.reading import why_unreachable
from offramp.errors import FileFormatError, NetworkError
from offramp.imports import require
from offramp.networks.layout import Layout
from offramp.networks.transformers.layouts import (
    bert_layout,
    convnext_layout,
    efficientnet_layout,
    resnet_layout,
    swin_layout,
    vit_layout,
)
from offramp.registry import ARCHITECTURES, or_known

# Settings of a configuration that make transformers fetch or run code of someone else.
_REFUSED = ("auto_map", "custom_pipelines", "quantization_config")
_ATTENTION = ("eager", "sdpa")

# What is not needed to make an untrained model again.
_DROPPED = ("transformers_version", "architectures", "dtype", "torch_dtype", "auto_map")

# Class of the model -> the function that finds its layout.
ADAPTERS: dict[str, Callable[[Any], Layout]] = {
    "ResNetForImageClassification": resnet_layout,
    "ResNetModel": resnet_layout,
    "ViTForImageClassification": vit_layout,
    "ViTModel": vit_layout,
    "DeiTForImageClassification": vit_layout,
    "DeiTForImageClassificationWithTeacher": vit_layout,
    "DeiTModel": vit_layout,
    "ConvNextForImageClassification": convnext_layout,
    "ConvNextModel": convnext_layout,
    "SwinForImageClassification": swin_layout,
    "SwinModel": swin_layout,
    "EfficientNetForImageClassification": efficientnet_layout,
    "EfficientNetModel": efficientnet_layout,
    "BertForSequenceClassification": bert_layout,
    "BertModel": bert_layout,
    "RobertaForSequenceClassification": bert_layout,
    "RobertaModel": bert_layout,
    "ElectraForSequenceClassification": bert_layout,
    "ElectraModel": bert_layout,
    "DistilBertForSequenceClassification": bert_layout,
    "DistilBertModel": bert_layout,
}


def transformers_layout(model: nn.Module) -> Layout:
    """Find the units of a model.

    Raises:
        NetworkError: There is no adapter for its family.
    """
    for parent in type(model).__mro__:
        if parent.__name__ in ADAPTERS:
            return ADAPTERS[parent.__name__](model)
    raise NetworkError(
        f"there is no adapter for {type(model).__name__}; there are for "
        f"{', '.join(sorted(ADAPTERS))}. Give the model as a list of stages, or give it a "
        "method layout() that returns an offramp.networks.Layout"
    )


def model_settings(model: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a PreTrainedModel
    """Arguments of `model_from_config` that make such a model again, or None for a user's own."""
    name = type(model).__name__
    if name not in ADAPTERS or not type(model).__module__.startswith("transformers."):
        return None
    config = model.config.to_diff_dict()
    kept = {k: v for k, v in config.items() if k not in _DROPPED and not k.startswith("_")}
    return {"model": name, "config": kept, "attention": model.config._attn_implementation}


def model_from_config(model: str, config: dict[str, Any], attention: str = "sdpa") -> nn.Module:
    """Make an untrained model from its description in a file.

    Args:
        model: Name of a class that has an adapter.
        config: Its configuration, JSON values.
        attention: `eager` or `sdpa`; other names would be looked up on the hub.

    Raises:
        FileFormatError: An unknown class, or a configuration that asks for foreign code.
    """
    found = _model_class(model)
    if found is None:
        raise FileFormatError(f"the file names an unknown transformers model {model!r}")
    refused = [key for key in config if key in _REFUSED or key.startswith("_")]
    if refused or attention not in _ATTENTION:
        raise FileFormatError(
            f"the file's configuration asks for foreign code ({refused or attention}), which is "
            "never run"
        )
    settings = found.config_class.from_dict({**config, "attn_implementation": attention})
    result: nn.Module = found(settings)
    return result


def pretrained_model(name: str) -> nn.Module:
    """Load a pretrained model of a family that has an adapter.

    Args:
        name: A local folder, or `owner/name` on the hub.

    Raises:
        NetworkError: It cannot be read, has no safetensors, or is of a family without adapter.
    """
    transformers = require("transformers", extra="train")
    _check_reachable(name, transformers)
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        architecture = (config.architectures or [""])[0]
        # Weights that were trained for another task go into the model without a classifier.
        base = type(config).__name__.removesuffix("Config") + "Model"
        found = _model_class(architecture) or _model_class(base)
        if found is None:
            raise NetworkError(
                f"`{name}` is a {architecture or config.model_type}, and there are adapters for "
                f"{', '.join(sorted(ADAPTERS))}; load it yourself and give its stages as a list"
            )
        model: nn.Module = found.from_pretrained(name, use_safetensors=True)
    except (OSError, ValueError) as error:
        if isinstance(error, NetworkError):
            raise
        raise NetworkError(
            f"cannot load `{name}` with transformers: {error} (it must be a folder or a hub id "
            "with a config.json and safetensors; pickled weights and remote code are refused)"
        ) from error
    return model


def _check_reachable(name: str, transformers: ModuleType) -> None:
    """Refuse at once what is neither here nor can be had: the hub's library retries for long."""
    if Path(name).exists():
        return
    try:
        transformers.AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        problem = why_unreachable()
        if problem is not None:
            raise NetworkError(
                f"there is no network `{name}` here, no folder of that name and nothing in the "
                f"hub's cache, and {problem}{or_known(name, ARCHITECTURES)}"
            ) from None


def _model_class(name: str) -> Any:  # noqa: ANN401 - transformers has no types to name here
    return getattr(require("transformers", extra="train"), name) if name in ADAPTERS else None
