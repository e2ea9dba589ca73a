"""Cutting any module that `torch.fx` can trace into stages."""
