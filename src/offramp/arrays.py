"""Arrays of either kind, numpy's or torch's, without importing torch for numpy's.

A runner computes on tensors, and ONNX Runtime on arrays. The two libraries give the functions that
decisions need the same names, so one loop serves both.
"""

import math
import sys
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # an array of numpy or a tensor of torch
SMALL = 8192  # values: numpy's BLAS uses further threads for more, which then spin


def namespace(array: Array) -> Any:  # noqa: ANN401 - a module
    """The library of an array: its `concatenate`, `where`, `full_like`, ... take it.

    Example:
        >>> namespace(np.zeros(2)).__name__
        'numpy'
    """
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]


def is_array(value: object) -> bool:
    """Whether this is an array of numpy or a tensor of torch.

    Example:
        >>> is_array(np.zeros(2)), is_array([0.0, 0.0])
        (True, False)
    """
    if isinstance(value, np.ndarray):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_floating(array: Array) -> bool:
    """Whether an array holds floating-point numbers, of any precision.

    Example:
        >>> is_floating(np.zeros(2)), is_floating(np.arange(2))
        (True, False)
    """
    if isinstance(array, np.ndarray):
        return bool(array.dtype.kind == "f")
    return bool(array.is_floating_point())


def positions(mask: Array) -> Array:
    """Where a mask `[n]` is true, int64.

    Example:
        >>> positions(np.array([False, True, True]))
        array([1, 2])
    """
    return namespace(mask).argwhere(mask)[:, 0]


def all_finite(array: Array) -> bool:
    """Whether no value is NaN or infinite; may be False where only a sum of them is infinite.

    A single sum takes far less time than a look at every value.

    Example:
        >>> all_finite(np.array([1.0, 2.0])), all_finite(np.array([np.inf, -np.inf]))
        (True, False)
    """
    if not isinstance(array, np.ndarray):
        return math.isfinite(array.sum().item())
    if array.size < SMALL:  # the sum of squares: a third of the time, and no warning
        return math.isfinite(np.vdot(array, array))
    with np.errstate(all="ignore"):
        return math.isfinite(np.add.reduce(array, axis=None))
