"""A policy at work: samples that really leave a batch when they have their answer."""

from offramp.runtime.columns import Columns
from offramp.runtime.exporting import export
from offramp.runtime.onnx_runner import OnnxRunner
from offramp.runtime.output import RunOutput
from offramp.runtime.plan import Plan, judge, near_threshold
from offramp.runtime.ray_data import PolicyPredictor, predict_dataset
from offramp.runtime.runner import Runner
from offramp.runtime.speed import Speed, measure_speed
from offramp.runtime.stats import RunStats

__all__ = [
    "Columns",
    "OnnxRunner",
    "Plan",
    "PolicyPredictor",
    "RunOutput",
    "RunStats",
    "Runner",
    "Speed",
    "export",
    "judge",
    "measure_speed",
    "near_threshold",
    "predict_dataset",
]
