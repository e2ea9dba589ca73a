"""Cutting any module that `torch.fx` can trace into stages."""

from offramp.networks.fx.stages import traced_layout

__all__ = ["traced_layout"]
