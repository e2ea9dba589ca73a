"""Out of memory, said so that it helps."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from offramp.errors import MemoryLimitError

__all__ = ["suggesting_batch_size"]

# What torch on the CPU, and ONNX Runtime, say in errors of no class of their own.
PHRASES = (
    "DefaultCPUAllocator: can't allocate memory",
    "Failed to allocate memory for requested buffer",
)


@contextmanager
def suggesting_batch_size(samples: int) -> Iterator[None]:
    """Turn a failed allocation inside into an error that suggests a batch size.

    Args:
        samples: Of the batch that is run.

    Raises:
        MemoryLimitError: There was not enough memory.
    """
    try:
        yield
    except Exception as error:  # ONNX Runtime's errors have no other class in common
        if not _is_out_of_memory(error):
            raise
        raise MemoryLimitError(_advice(samples)) from error


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(phrase in str(error) for phrase in PHRASES)


def _advice(samples: int) -> str:
    if samples <= 1:
        return "out of memory with a single sample: use smaller inputs, or a larger machine"
    # A power of two, half of the batch at most: what nearly fits is slow and fails again.
    fewer = 1 << ((samples // 2).bit_length() - 1)
    return (
        f"out of memory with a batch of {samples} samples: pass at most {fewer} at a time, for "
        f"instance runner.stream(inputs.split({fewer}))"
    )
