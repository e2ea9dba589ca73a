"""Batches of NumPy arrays as tensors, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from offramp.arrays import Array, is_floating
from offramp.errors import NetworkError

if TYPE_CHECKING:
    from torch import Tensor


def as_batch(x: Any) -> Any:  # noqa: ANN401
    """Numpy arrays as tensors, also inside of a mapping; images of a mapping as they are.

    Example:
        >>> as_batch({"pixel_values": np.zeros((2, 3), dtype=np.float32), "labels": [0, 1]}).shape
        torch.Size([2, 3])
    """
    x = unwrapped(x)
    if isinstance(x, np.ndarray):
        return _from_numpy(x)
    if not isinstance(x, Mapping):
        return x
    arrays = {k: _from_numpy(v) for k, v in x.items() if isinstance(v, np.ndarray)}
    return {**x, **arrays} if arrays else x


def unwrapped(x: Any) -> Any:  # noqa: ANN401
    """The images in a mapping with `pixel_values`; anything else as it is."""
    return x["pixel_values"] if isinstance(x, Mapping) and "pixel_values" in x else x


def to_numpy(leaf: Array) -> np.ndarray[Any, Any]:
    """A leaf of a state as an array, in the memory that it has; half precision as float32.

    Example:
        >>> import torch
        >>> to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype
        dtype('float32')
    """
    if not isinstance(leaf, np.ndarray):
        narrow = is_floating(leaf) and leaf.itemsize < 4
        leaf = (leaf.float() if narrow else leaf).numpy(force=True)
    array: np.ndarray[Any, Any] = leaf
    if array.dtype.kind not in "biuf":
        raise _no_numbers(array)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def padded(texts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Texts of arrays `[length]` as one batch of arrays `[n, longest]`; padding is masked out.

    Example:
        >>> short, long = ({"input_ids": np.arange(size)} for size in (1, 3))
        >>> padded([short, long])["input_ids"].tolist()
        [[0, 0, 0], [0, 1, 2]]
    """
    length = max(len(text["input_ids"]) for text in texts)
    # Texts without segments lie entirely in the first one.
    names = {name for text in texts for name in text}

    def widened(text: Mapping[str, Array], name: str) -> Array:
        array = text.get(name, np.zeros(len(text["input_ids"]), dtype=np.int64))
        return np.pad(array, (0, length - len(array)))

    return {name: np.stack([widened(text, name) for text in texts]) for name in names}


def _from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    import torch  # who asks for tensors has it

    try:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except TypeError:
        raise _no_numbers(array) from None


def _no_numbers(array: np.ndarray[Any, Any]) -> NetworkError:
    return NetworkError(
        f"a batch must be numbers, got an array of {array.dtype}: stack the samples to one array "
        "of float32"
    )
