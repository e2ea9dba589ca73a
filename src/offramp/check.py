"""One validator per kind of mistake, so that the same mistake gets the same sentence everywhere.

Each raises `ConfigError`, or the given `error`, where a value is not what it must be, and returns
nothing. `name` is the argument's name, without backticks.
"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from numbers import Integral, Real
from typing import Any

from offramp.errors import ConfigError, FileFormatError, NotFittedError, OfframpError
from offramp.registry import did_you_mean


def one_of(
    name: str, value: object, known: Iterable[object], error: type[OfframpError] = ConfigError
) -> None:
    """Check a choice from a list; a misspelled one gets a suggestion.

    Example:
        >>> one_of("unit", "macs", ["macs", "seconds"])
        >>> one_of("unit", "second", ["macs", "seconds"])
        Traceback (most recent call last):
        offramp.errors.ConfigError: `unit` must be one of macs, seconds, got 'second'; did you
        mean `seconds`?
    """
    choices = list(known)
    # An array compares entry by entry, and a list cannot be a choice.
    if not isinstance(value, str | int | float | None) or value not in choices:
        names = [each for each in choices if isinstance(each, str)]
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise error(f"`{name}` must be one of {', '.join(map(str, choices))}, got {value!r}{hint}")


def whole(
    name: str, value: object, least: int = 0, error: type[OfframpError] = ConfigError
) -> None:
    """Check a count: a whole number of at least `least`.

    Example:
        >>> whole("epochs", 1.5, least=1)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `epochs` must be a whole number of at least 1, got 1.5
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise error(f"`{name}` must be a whole number of at least {least}, got {value!r}")


def at_least(
    name: str, value: object, least: float, error: type[OfframpError] = ConfigError
) -> None:
    """Check a finite number that may not be below `least`.

    Example:
        >>> at_least("backoff", -1, 0)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `backoff` must be at least 0, got -1
    """
    if not least <= _number(value) < float("inf"):
        raise error(f"`{name}` must be at least {least:g}, got {_shown(value)}")


def positive(name: str, value: object, error: type[OfframpError] = ConfigError) -> None:
    """Check a finite number that must be above zero.

    Example:
        >>> positive("temperature", 0.0)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `temperature` must be above 0, got 0.0
    """
    if not 0 < _number(value) < float("inf"):
        raise error(f"`{name}` must be above 0, got {_shown(value)}")


def within(
    name: str,
    value: object,
    low: float,
    high: float,
    *,
    ends: str = "[]",
    error: type[OfframpError] = ConfigError,
) -> None:
    """Check a number in an interval; `ends` are its brackets, a round one leaves the end out.

    Example:
        >>> within("budget", 0.5, 0.12, 1)
        >>> within("budget", 0.05, 0.12, 1)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `budget` must lie in [0.12, 1], got 0.05
        >>> within("delta", 0, 0, 1, ends="()")
        Traceback (most recent call last):
        offramp.errors.ConfigError: `delta` must lie in (0, 1), got 0
    """
    number = _number(value)
    above = number >= low if ends[0] == "[" else number > low
    below = number <= high if ends[1] == "]" else number < high
    if not (above and below):
        raise error(
            f"`{name}` must lie in {ends[0]}{low:g}, {high:g}{ends[1]}, got {_shown(value)}"
        )


def instance(
    name: str,
    value: object,
    kind: type | tuple[type, ...],
    expected: str = "",
    error: type[OfframpError] = ConfigError,
) -> None:
    """Check a type; `expected` names it in the user's words, or says how to make one.

    Example:
        >>> instance("ledger", [1, 2], dict, "a Ledger, for instance Ledger.load(path)")
        Traceback (most recent call last):
        offramp.errors.ConfigError: `ledger` must be a Ledger, for instance Ledger.load(path), got
        a list
        >>> instance("scorer", dict, dict)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `scorer` must be a dict, got the class itself: call
        it, dict(...)
    """
    if isinstance(value, kind):
        return
    kinds = kind if isinstance(kind, tuple) else (kind,)
    wanted = expected or "a " + " or a ".join(each.__name__ for each in kinds)
    if isinstance(value, type) and issubclass(value, kind):
        got = f"the class itself: call it, {value.__name__}(...)"
    elif isinstance(value, str | int | float | type | None):
        got = repr(value)
    else:
        got = f"a {type(value).__name__}"
    raise error(f"`{name}` must be {wanted}, got {got}")


def shape(
    name: str,
    value: Any,  # noqa: ANN401 - an array or a tensor
    *sizes: int | str,
    error: type[OfframpError] = ConfigError,
) -> None:
    """Check an array's shape; a size that is a letter may be any.

    Example:
        >>> import numpy as np
        >>> shape("scores", np.zeros((2, 3)), "N", 3)
        >>> shape("scores", np.zeros(2), "N", 3)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `scores` must have the shape [N, 3], got [2]
    """
    found = list(value.shape)
    fits = len(found) == len(sizes) and all(
        isinstance(wanted, str) or wanted == size
        for wanted, size in zip(sizes, found, strict=True)
    )
    if not fits:
        raise error(f"`{name}` must have the shape [{', '.join(map(str, sizes))}], got {found}")


def arrays(
    found: Mapping[str, Any],
    wanted: Mapping[str, tuple[Any, Sequence[int | None]]],
    where: str,
) -> None:
    """Check the types and shapes of what a file holds; None is any size.

    Raises:
        FileFormatError: An array is missing, or is another one.

    Example:
        >>> import numpy as np
        >>> arrays({"a": np.ones(3)}, {"a": (np.dtype("int64"), (3,))}, "policy")
        Traceback (most recent call last):
        offramp.errors.FileFormatError: policy: the tensor `a` must be int64 of the shape [3],
        got float64 [3]
    """
    for name, (dtype, sizes) in wanted.items():
        array = found.get(name)
        fits = (
            array is not None
            and array.dtype == dtype
            and array.ndim == len(sizes)
            and all(size in (None, own) for size, own in zip(sizes, array.shape, strict=True))
        )
        if not fits:
            shown = ", ".join("any" if size is None else str(size) for size in sizes)
            got = "none" if array is None else f"{array.dtype} {list(array.shape)}"
            raise FileFormatError(
                f"{where}: the tensor `{name}` must be {dtype} of the shape [{shown}], got {got}"
            )


def same_length(
    name: str,
    values: Sized,
    others: Sized | int,
    per: str = "sample",
    error: type[OfframpError] = ConfigError,
) -> None:
    """Check that there is one value per sample, exit, or whatever `others` are.

    Example:
        >>> same_length("labels", [0, 1], [0.5, 0.1, 0.4])
        Traceback (most recent call last):
        offramp.errors.ConfigError: `labels` must have 3 entries, one per sample, got 2
    """
    count = others if isinstance(others, int) else len(others)
    if len(values) != count:
        raise error(f"`{name}` must have {count} entries, one per {per}, got {len(values)}")


def fitted(what: object, is_fitted: bool, first: str) -> None:
    """Check the order of calls; `first` is what has to be called before.

    `what` is an object or a noun.

    Raises:
        NotFittedError: It is not fitted.

    Example:
        >>> fitted("policy", False, "fit(held_out)")
        Traceback (most recent call last):
        offramp.errors.NotFittedError: this policy is not fitted; call fit(held_out) first
    """
    if not is_fitted:
        noun = what if isinstance(what, str) else type(what).__name__
        raise NotFittedError(f"this {noun} is not fitted; call {first} first")


def _number(value: object) -> float:
    """The value as a number, or NaN, which is in no interval."""
    return (
        float(value) if isinstance(value, Real) and not isinstance(value, bool) else float("nan")
    )


def _shown(value: object) -> str:
    # NumPy's own numbers would show as np.float64(0.5).
    return str(value) if isinstance(value, Real) else repr(value)
