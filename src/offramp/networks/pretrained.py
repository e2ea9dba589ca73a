"""Backbones of other libraries: pretrained ones by name, and empty ones for a file's weights.

Nothing here runs code from a file or from the hub: weights are safetensors, remote code is
refused, and only classes that have an adapter are made.
"""

from typing import Any

from torch import nn

from offramp.errors import FileFormatError, NetworkError
from offramp.extras import require

# What a configuration may say that makes transformers fetch or run code of someone else.
_REFUSED = ("auto_map", "custom_pipelines", "quantization_config")
_ATTENTION = ("eager", "sdpa")


def transformers_model(name: str) -> nn.Module:
    """Load a pretrained model of a family that has an adapter.

    Args:
        name: A local folder, or `owner/name` on the hub.

    Raises:
        NetworkError: It cannot be read, has no safetensors, or is of a family without adapter.
    """
    from offramp.networks.transformers import FAMILIES

    transformers = require("transformers", extra="train")
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        architecture = (config.architectures or [""])[0]
        found = _model_class(architecture) or _base_class(config)
        if found is None:
            raise NetworkError(
                f"`{name}` is a {architecture or config.model_type}, and there are adapters for "
                f"{', '.join(sorted(FAMILIES))}; load it yourself and give its stages as a list"
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


def _model_class(name: str) -> Any:  # noqa: ANN401 - transformers has no types to name here
    from offramp.networks.transformers import FAMILIES

    return getattr(require("transformers", extra="train"), name) if name in FAMILIES else None


def _base_class(config: Any) -> Any:  # noqa: ANN401
    """The family's model without a classifier, for weights that were trained for another task."""
    return _model_class(type(config).__name__.removesuffix("Config") + "Model")


def model_from_config(model: str, config: dict[str, Any], attention: str = "sdpa") -> nn.Module:
    """Make an untrained model of `transformers` from what a file says about it.

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


def timm_model(model: str, pretrained: bool = False) -> nn.Module:
    """Make a model of timm.

    Args:
        model: One of `timm.list_models()`, with or without a tag of its weights.
        pretrained: Whether to load its weights, from timm's cache or the hub.

    Raises:
        MissingExtraError: timm is not installed.
        NetworkError: There is no such model.
    """
    timm = require("timm", extra="timm")
    # A name may also point to the hub and bring a configuration along; only timm's own are made.
    if model.split(".")[0] not in timm.list_models():
        raise NetworkError(f"timm has no model `{model}`; see timm.list_models()")
    result: nn.Module = timm.create_model(model, pretrained=pretrained)
    return result


def torchvision_model(model: str, pretrained: bool = False) -> nn.Module:
    """Make a model of torchvision.

    Args:
        model: One of `torchvision.models.list_models()`.
        pretrained: Whether to load its default weights, which torchvision checks by hash.

    Raises:
        MissingExtraError: torchvision is not installed.
        NetworkError: There is no such model.
    """
    models = require("torchvision", extra="torchvision").models
    if model not in models.list_models():
        raise NetworkError(
            f"torchvision has no model `{model}`; see torchvision.models.list_models()"
        )
    result: nn.Module = models.get_model(model)
    if pretrained:
        weights = models.get_model_weights(model).DEFAULT
        # torchvision has no safetensors; `weights_only` makes its files tensors and no code.
        result.load_state_dict(weights.get_state_dict(check_hash=True, weights_only=True))
    return result
