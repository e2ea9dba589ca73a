"""A policy behind HTTP on one machine, and on a Ray cluster."""

from offramp.serving.columns import Columns
from offramp.serving.ray import PolicyPredictor, predict_dataset
from offramp.serving.server import ServeConfig, serve

__all__ = ["Columns", "PolicyPredictor", "ServeConfig", "predict_dataset", "serve"]
