"""A network and its policy in ONNX Runtime: export, and a runner with the same decisions."""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

if TYPE_CHECKING:
    from offramp.onnx.export import export
    from offramp.onnx.runner import OnnxRunner

__all__ = ["OnnxRunner", "export"]

import_when_asked(__name__)
