"""A policy behind HTTP, as an ASGI application, and on a Ray cluster."""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

if TYPE_CHECKING:
    from offramp.serving.application import app
    from offramp.serving.columns import PolicyPredictor
    from offramp.serving.config import AppConfig, ServeConfig
    from offramp.serving.gateway import gateway
    from offramp.serving.gateway_config import GatewayConfig
    from offramp.serving.images import ImageReader, Reading
    from offramp.serving.model import Model
    from offramp.serving.ray import predict_dataset
    from offramp.serving.server import serve, serve_gateway

__all__ = [
    "AppConfig",
    "GatewayConfig",
    "ImageReader",
    "Model",
    "PolicyPredictor",
    "Reading",
    "ServeConfig",
    "app",
    "gateway",
    "predict_dataset",
    "serve",
    "serve_gateway",
]

import_when_asked(__name__)
