"""Models of `transformers`: their layouts by family, and how they are made."""

from offramp.networks.transformers.models import (
    model_from_config,
    model_settings,
    pretrained_model,
    transformers_layout,
)

__all__ = [
    "model_from_config",
    "model_settings",
    "pretrained_model",
    "transformers_layout",
]
