"""What JSON files hold: values of annotated types, written plainly and checked when read."""

import math
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON is recursive
    """Turn arrays and tensors into lists, NaN into None and infinities into text, for JSON.

    Example:
        >>> plain({"a": torch.tensor([1.0, float("nan"), float("inf")])})
        {'a': [1.0, None, 'inf']}
    """
    if isinstance(value, Tensor | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def restore(kind: Any, value: Any) -> Any:  # noqa: ANN401 - JSON is recursive
    """Make a value of the annotated type `kind` from what `plain` made of it.

    Dataclasses, containers of them, arrays and numbers; a missing field is a `KeyError`, something
    else than the type says a `TypeError`.

    Example:
        >>> restore(dict[str, list[float]], {"a": [1.0, None, "inf"]})
        {'a': [1.0, nan, inf]}
    """
    inner = get_args(kind)
    outer = get_origin(kind) or kind
    if outer in (Union, UnionType):
        (known,) = (part for part in inner if part is not NoneType)
        return None if value is None else restore(known, value)
    if outer is dict:
        return {key: restore(inner[1], item) for key, item in value.items()}
    if outer in (list, tuple):
        return outer(restore(inner[0], item) for item in value)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        names = [item.name for item in fields(kind)]
        return outer(**{name: restore(hints[name], value[name]) for name in names})
    return _leaf(outer, value)


def _leaf(kind: Any, value: Any) -> Any:  # noqa: ANN401
    if kind is np.ndarray:
        return np.asarray(_numbers(value))
    if kind is Tensor:
        return torch.from_numpy(np.asarray(_numbers(value)))
    if isinstance(kind, type) and hasattr(kind, "_fields"):  # a NamedTuple
        return kind(*_numbers(value))
    return _numbers(value) if kind is float else value


def _numbers(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if value is None:
        return math.nan
    return float(value) if isinstance(value, str) else value
