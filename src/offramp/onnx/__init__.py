"""A network and its policy in ONNX Runtime: export, and a runner with the same decisions."""

from offramp.onnx.export import export
from offramp.onnx.runner import OnnxRunner

__all__ = ["OnnxRunner", "export"]
