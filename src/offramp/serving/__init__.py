"""A policy behind HTTP on one machine, and on a Ray cluster."""

from typing import TYPE_CHECKING

from offramp.lazy import import_when_asked

if TYPE_CHECKING:
    from offramp.serving.answers import Model
    from offramp.serving.columns import Columns, PolicyPredictor
    from offramp.serving.images import ImageReader
    from offramp.serving.ray import predict_dataset
    from offramp.serving.server import ServeConfig, serve

__all__ = [
    "Columns",
    "ImageReader",
    "Model",
    "PolicyPredictor",
    "ServeConfig",
    "predict_dataset",
    "serve",
]

import_when_asked(
    __name__,
    {
        "Columns": "columns",
        "ImageReader": "images",
        "Model": "answers",
        "PolicyPredictor": "columns",
        "ServeConfig": "server",
        "predict_dataset": "ray",
        "serve": "server",
    },
)
