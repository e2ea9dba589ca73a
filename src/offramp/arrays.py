"""What decisions need of arrays. They are NumPy's, and the same functions serve for tensors.

Ledgers, fits, thresholds and figures are arrays of NumPy. What runs in flight (answers, scorers
and the decision) takes tensors, too, so that on a GPU nothing has to leave the device: `namespace`
gives the functions of the array API standard for either kind. torch is never imported here.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
AnyArray: TypeAlias = Any  # an array of NumPy or a tensor of torch
SMALL = 8192  # values: numpy's BLAS uses further threads for more, which then spin


@contextmanager
def one_thread() -> Iterator[None]:
    """Let NumPy multiply on one thread for a while, for fits, whose matrices are small.

    Threads that wait for each other spin: on busy cores, two take ten times as long as one.

    Example:
        >>> with one_thread():
        ...     product = np.ones((2, 2)) @ np.ones((2, 2))
    """
    with _libraries("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas"):
        yield


@lru_cache
def _libraries(with_scipy: bool) -> Any:  # noqa: ANN401 - SciPy has a library of its own
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def namespace(array: AnyArray) -> Any:  # noqa: ANN401 - a module
    """The functions of the array API standard for an array: NumPy's own, or torch's.

    `array_api_compat.array_namespace` does the same and takes 8 microseconds.

    Example:
        >>> namespace(np.zeros(2)).__name__
        'numpy'
    """
    if isinstance(array, (np.ndarray, np.generic)):
        return np
    import array_api_compat.torch  # only where there are tensors

    return array_api_compat.torch


def as_numpy(value: Any, dtype: DTypeLike | None = None) -> Array:  # noqa: ANN401 - also lists
    """An array of NumPy, in the memory that an array or a tensor of the CPU has where it can be.

    NumPy has no bfloat16, which becomes float32.

    Example:
        >>> as_numpy([1, 2])
        array([1, 2])
    """
    if is_tensor(value):
        value = value.detach()
        narrow = str(value.dtype) == "torch.bfloat16"
        value = (value.float() if narrow else value).numpy(force=True)
    return np.asarray(value, dtype)


def as_tensor(array: Array) -> AnyArray:
    """An array of NumPy as a tensor in the same memory."""
    import torch  # who asks for tensors has it

    return torch.from_numpy(array if array.flags.writeable else array.copy())


def is_tensor(value: object) -> bool:
    """Whether this is a tensor of torch."""
    # Another thread may be importing torch: then there is a module, and no tensor yet.
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_module(model: object) -> bool:
    """Whether this is a module of torch; whoever has one has imported torch."""
    torch = sys.modules.get("torch")
    module = getattr(getattr(torch, "nn", None), "Module", None)
    return module is not None and isinstance(model, module)


def is_array(value: object) -> bool:
    """Whether this is an array of NumPy or a tensor of torch.

    Example:
        >>> is_array(np.zeros(2)), is_array([0.0, 0.0])
        (True, False)
    """
    return isinstance(value, np.ndarray) or is_tensor(value)


def as_lists(value: Any) -> Any:  # noqa: ANN401
    """An array, a tensor, or a number of NumPy's, as JSON has it; `TypeError` for all else.

    Example:
        >>> as_lists(np.arange(2))
        [0, 1]
    """
    if is_array(value) or isinstance(value, np.generic):
        return as_numpy(value).tolist()
    raise TypeError


def is_floating(array: AnyArray) -> bool:
    """Whether an array holds floating-point numbers, of any precision.

    Example:
        >>> is_floating(np.zeros(2)), is_floating(np.arange(2))
        (True, False)
    """
    if isinstance(array, np.ndarray):
        return bool(array.dtype.kind == "f")
    return bool(array.is_floating_point())


def float32(array: AnyArray) -> AnyArray:
    """The same in float32; itself where it is.

    Example:
        >>> float32(np.zeros(1, np.float16)).dtype
        dtype('float32')
    """
    if isinstance(array, (np.ndarray, np.generic)):
        return array if array.dtype == np.float32 else array.astype(np.float32)
    return array.float()


def float64(array: AnyArray) -> AnyArray:
    """The same in float64; itself where it is.

    Example:
        >>> float64(np.zeros(1, np.float32)).dtype
        dtype('float64')
    """
    if isinstance(array, (np.ndarray, np.generic)):
        return array if array.dtype == np.float64 else array.astype(np.float64)
    return array.double()


def positions(mask: AnyArray) -> AnyArray:
    """Where a mask `[n]` is true, int64.

    Example:
        >>> positions(np.array([False, True, True]))
        array([1, 2])
    """
    return namespace(mask).nonzero(mask)[0]


def all_finite(array: AnyArray) -> bool:
    """Whether no value is NaN or infinite; may be False where only a sum of them is infinite.

    A single sum takes far less time than a look at every value.

    Example:
        >>> all_finite(np.array([1.0, 2.0])), all_finite(np.array([np.inf, -np.inf]))
        (True, False)
    """
    if not isinstance(array, np.ndarray):
        return math.isfinite(array.sum().item())
    if array.size <= 4 * SMALL and array.flags.c_contiguous:
        # Sums of squares: a third of the time, and no warning, as `dot` gives where one is huge.
        flat = array.reshape(-1)
        for start in range(0, array.size, SMALL):
            part = flat[start : start + SMALL]
            if not math.isfinite(np.vdot(part, part)):
                return False
        return True
    with np.errstate(all="ignore"):
        return math.isfinite(np.add.reduce(array, axis=None))


def largest(values: AnyArray) -> AnyArray:
    """The largest value of the last axis, which is kept with length one.

    Example:
        >>> largest(np.array([[1.0, 3.0, 2.0]]))
        array([[3.]])
    """
    if isinstance(values, np.ndarray):  # which takes two thirds of the time of `max`
        return np.maximum.reduce(values, axis=-1, keepdims=True)
    return values.amax(dim=-1, keepdim=True)


def summed(values: AnyArray, axis: int = -1, keepdims: bool = False) -> AnyArray:
    """The sum over an axis.

    Example:
        >>> summed(np.array([[1.0, 3.0, 2.0]]))
        array([6.])
    """
    if isinstance(values, np.ndarray):  # which takes two thirds of the time of `sum`
        found: Array = np.add.reduce(values, axis=axis, keepdims=keepdims)  # type: ignore[call-overload]
        return found
    return values.sum(dim=axis, keepdim=keepdims)


def clipped(values: AnyArray, low: AnyArray, high: AnyArray) -> AnyArray:
    """The values, cut to limits, in a third of the time of `np.clip`.

    Example:
        >>> clipped(np.array([-2.0, 0.5, 2.0]), 0.0, 1.0)
        array([0. , 0.5, 1. ])
    """
    if isinstance(values, np.ndarray):
        return np.minimum(np.maximum(values, low), high)
    return values.clamp(low, high)


def log_softmax(values: AnyArray) -> AnyArray:
    """Logarithms of the softmax over the last axis, in the type of the values.

    Example:
        >>> log_softmax(np.array([0.0, 0.0]))
        array([-0.69314718, -0.69314718])
    """
    if isinstance(values, np.ndarray) and values.ndim == 2 and len(values) == 1:
        row = values[0]  # a single sample: half of the time, to the last bit
        apart = row - row[row.argmax()]
        apart -= np.log(np.add.reduce(np.exp(apart)))
        return apart[None]
    xp, apart = namespace(values), values - largest(values)
    return apart - xp.log(summed(xp.exp(apart), keepdims=True))


def softmax(values: AnyArray) -> AnyArray:
    """The softmax over the last axis, in the type of the values.

    Example:
        >>> softmax(np.array([0.0, 0.0]))
        array([0.5, 0.5])
    """
    weights = namespace(values).exp(values - largest(values))
    return weights / summed(weights, keepdims=True)


def sigmoid(values: AnyArray) -> AnyArray:
    """`1 / (1 + exp(-x))`, exact on both sides of zero.

    Example:
        >>> sigmoid(np.array([-1000.0, 0.0, 1000.0]))
        array([0. , 0.5, 1. ])
    """
    xp = namespace(values)
    small = xp.exp(-xp.abs(values))
    return xp.where(values >= 0, 1.0, small) / (1 + small)


def softplus(values: AnyArray) -> AnyArray:
    """`log(1 + exp(x))` without overflow: the loss of a log-odds `-x` of what happened.

    Example:
        >>> softplus(np.array([-1000.0, 0.0, 100.0])).round(3)
        array([  0.   ,   0.693, 100.   ])
    """
    xp = namespace(values)
    return xp.log1p(xp.exp(-xp.abs(values))) + xp.maximum(values, xp.zeros_like(values))


def top_indices(values: AnyArray, k: int) -> AnyArray:
    """Places of the k largest values of the last axis, largest first; of equal ones, the first.

    Example:
        >>> top_indices(np.array([1.0, 3.0, 2.0, 3.0]), 3)
        array([1, 3, 2])
    """
    xp = namespace(values)
    if xp is np and 4 * k < values.shape[-1]:  # sorting a thousand classes for five takes long
        few = np.sort(np.argpartition(-values, k - 1, axis=-1)[..., :k], axis=-1)
        order = np.argsort(-np.take_along_axis(values, few, -1), axis=-1, stable=True)
        return np.take_along_axis(few, order, -1)
    return xp.argsort(-values, axis=-1, stable=True)[..., :k]


def logsumexp(values: AnyArray) -> AnyArray:
    """Logarithm of the summed exponentials over the last axis, in the type of the values.

    Example:
        >>> logsumexp(np.array([0.0, -np.inf])), logsumexp(np.array([-np.inf, -np.inf]))
        (np.float64(0.0), np.float64(-inf))
    """
    xp, top = namespace(values), largest(values)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    with np.errstate(divide="ignore"):
        return xp.log(xp.exp(values - top).sum(axis=-1)) + top[..., 0]


def values_at(values: AnyArray, index: AnyArray) -> AnyArray:
    """The values `[n, K]` at places `[n, j]`: `take_along_axis` in a fraction of its time.

    Example:
        >>> values_at(np.array([[1.0, 2.0, 3.0]]), np.array([[2, 0]]))
        array([[3., 1.]])
    """
    if not isinstance(values, np.ndarray):
        return values.gather(1, index)
    if len(values) == 1:
        return values[:, index[0]]
    return values[np.arange(len(values))[:, None], index]
