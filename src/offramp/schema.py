"""What JSON files hold: values of annotated types, written plainly and checked when read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np
import torch
from torch import Tensor

from offramp.errors import FileFormatError, OfframpError

_LARGEST = 2**63  # of whole numbers: nothing here counts further
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


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


def restore(kind: Any, value: Any, where: str = "") -> Any:  # noqa: ANN401 - JSON is recursive
    """Make a value of the annotated type `kind` from what `plain` made of it.

    Args:
        kind: A dataclass, a `TypedDict`, a container, an array, a number, a text, `Literal`, any
            of these or None. Fields of dataclasses with a default may be missing, and those that
            nobody asks for are ignored: they are of another version.
        value: As read from JSON.
        where: Name of the file, for messages.

    Raises:
        FileFormatError: Something is missing, or is not what its type says; with its place.

    Example:
        >>> restore(dict[str, list[float]], {"a": [1.0, None, "inf"]})
        {'a': [1.0, nan, inf]}
        >>> restore(dict[str, list[int]], {"a": [1, "two"]}, "x.json")
        Traceback (most recent call last):
        offramp.errors.FileFormatError: x.json: `a[1]` must be a whole number, got 'two'
    """
    return _restore(kind, value, _Place(where))


class _Place:
    """Where in a file a value stands."""

    def __init__(self, file: str, path: str = "") -> None:
        self.file, self.path = file, path

    def field(self, name: object) -> "_Place":
        return _Place(self.file, f"{self.path}.{name}" if self.path else str(name))

    def item(self, index: int) -> "_Place":
        return _Place(self.file, f"{self.path}[{index}]")

    def wrong(self, expected: str, found: object) -> FileFormatError:
        shown = repr(found)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        name = f"`{self.path}`" if self.path else "the content"
        return self.error(f"{name} must be {expected}, got {shown}")

    def error(self, text: str) -> FileFormatError:
        return FileFormatError(f"{self.file}: {text}" if self.file else text)


def _restore(kind: Any, value: Any, place: _Place) -> Any:  # noqa: ANN401, C901 - one case per kind
    inner = get_args(kind)
    outer = get_origin(kind) or kind
    if outer is Any:
        return value
    if outer in (Union, UnionType):
        (known,) = (part for part in inner if part is not NoneType)
        return None if value is None else _restore(known, value, place)
    if outer is Literal:
        if not isinstance(value, str | int) or value not in inner:
            raise place.wrong(f"one of {', '.join(map(str, inner))}", value)
        return value
    if outer in (dict, Mapping):
        found = _of(dict, value, place)
        return {key: _restore(inner[1], item, place.field(key)) for key, item in found.items()}
    if outer in (list, Sequence):
        found = _of(list, value, place)
        return [_restore(inner[0], each, place.item(i)) for i, each in enumerate(found)]
    if outer is tuple:
        return _tuple(inner, _of(list, value, place), place)
    if is_typeddict(kind):
        return _typed_dict(kind, _of(dict, value, place), place)
    if is_dataclass(kind):
        return _dataclass(kind, _of(dict, value, place), place)
    if isinstance(kind, type) and hasattr(kind, "_fields"):  # a NamedTuple
        numbers = _of(list, value, place)
        if len(numbers) != len(kind._fields):
            raise place.wrong(f"{len(kind._fields)} numbers", value)
        return kind(*(_restore(float, each, place.item(i)) for i, each in enumerate(numbers)))
    if outer is np.ndarray and inner:  # npt.NDArray[...] states the type of its numbers
        return _array(outer, value, place).astype(*get_args(inner[1]))
    return _leaf(outer, value, place)


def _of(kind: type, value: Any, place: _Place) -> Any:  # noqa: ANN401
    if not isinstance(value, kind):
        raise place.wrong("an object" if kind is dict else "a list", value)
    return value


def _tuple(inner: tuple[Any, ...], value: list[Any], place: _Place) -> tuple[Any, ...]:
    kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
    if len(kinds) != len(value):
        raise place.wrong(f"a list of {len(kinds)}", value)
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(_restore(kind, each, place.item(i)) for i, (kind, each) in pairs)


def _typed_dict(kind: Any, value: dict[str, Any], place: _Place) -> dict[str, Any]:  # noqa: ANN401
    hints = get_type_hints(kind)
    missing = [name for name in sorted(kind.__required_keys__) if name not in value]
    if missing:
        raise place.error(f"`{place.field(missing[0]).path}` is missing")
    checked = {
        name: _restore(hint, value[name], place.field(name))
        for name, hint in hints.items()
        if name in value
    }
    return {**value, **checked}


def _dataclass(kind: Any, value: dict[str, Any], place: _Place) -> Any:  # noqa: ANN401
    hints = get_type_hints(kind)
    made = {}
    for item in fields(kind):
        if item.name in value:
            made[item.name] = _restore(hints[item.name], value[item.name], place.field(item.name))
        elif item.default is MISSING and item.default_factory is MISSING:
            raise place.error(f"`{place.field(item.name).path}` is missing")
    try:
        return kind(**made)
    except OfframpError as error:
        raise place.error(str(error)) from None


def _leaf(kind: Any, value: Any, place: _Place) -> Any:  # noqa: ANN401
    if kind in (np.ndarray, Tensor):
        return _array(kind, value, place)
    if kind is float:
        value = _number(value)
    right = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    if not right or (kind is int and abs(value) >= _LARGEST):
        raise place.wrong(_NAMES.get(kind, f"a {kind.__name__}"), value)
    return value


def _number(value: Any) -> Any:  # noqa: ANN401
    """A float, where that is what `plain` made it from."""
    if value is None:
        return math.nan
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return float(value)
    return value


def _array(kind: Any, value: Any, place: _Place) -> Any:  # noqa: ANN401
    try:
        array = np.asarray(_numbers(value))
    except (ValueError, OverflowError, TypeError):
        raise place.wrong("rows of numbers, all of one length", value) from None
    if array.dtype.kind not in "biuf":
        raise place.wrong("numbers", value)
    return array if kind is np.ndarray else torch.from_numpy(array)


def _numbers(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return value if isinstance(value, int) else _number(value)


def check_tensors(
    tensors: Mapping[str, Tensor],
    wanted: Mapping[str, tuple[torch.dtype, Sequence[int | None]]],
    where: str,
) -> None:
    """Raise `FileFormatError` unless tensors have these types and shapes; None is any size.

    Example:
        >>> check_tensors({"a": torch.ones(3)}, {"a": (torch.float64, (3,))}, "policy")
        Traceback (most recent call last):
        offramp.errors.FileFormatError: policy: the tensor `a` must be float64 of ...
    """
    for name, (dtype, shape) in wanted.items():
        found = tensors.get(name)
        fits = (
            found is not None
            and found.dtype == dtype
            and found.ndim == len(shape)
            and all(w in (None, size) for w, size in zip(shape, found.shape, strict=True))
        )
        if not fits:
            sizes = ", ".join("any" if each is None else str(each) for each in shape)
            got = "none" if found is None else f"{found.dtype} {list(found.shape)}"
            raise FileFormatError(
                f"{where}: the tensor `{name}` must be {str(dtype).removeprefix('torch.')} of "
                f"the shape [{sizes}], got {got.removeprefix('torch.')}"
            )
