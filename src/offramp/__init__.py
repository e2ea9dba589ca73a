"""Early-exit neural networks: decide when to stop, for a compute budget."""

__version__ = "0.1.0.dev0"
