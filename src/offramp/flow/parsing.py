"""From a TOML table to a frozen dataclass: every mistake is named with its place."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from offramp.errors import ConfigError

__all__ = ["did_you_mean", "filled", "nearest", "reject_unknown"]

T = TypeVar("T")
NOTHING = "none"  # TOML has no null
_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a table",
    tuple: "a list",
}


def filled(cls: type[T], table: object, place: str) -> T:
    """Make a dataclass from a table, checking keys and types.

    Args:
        cls: A dataclass; its fields are the keys, and what has no default must be there.
        table: What the TOML file holds.
        place: For messages, such as `[train]`.

    Raises:
        ConfigError: An unknown or missing key, a wrong type, or an impossible value.

    Example:
        >>> from offramp.training import TrainConfig
        >>> filled(TrainConfig, {"epochs": 3, "patience": "none"}, "[train]").patience
        >>> filled(TrainConfig, {"epoch": 3}, "[train]")
        Traceback (most recent call last):
        offramp.errors.ConfigError: [train] has no key `epoch`; did you mean `epochs`?
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place} must be a table, got {table!r}")
    known: dict[str, Field[Any]] = {each.name: each for each in fields(cls)}  # type: ignore[arg-type]
    reject_unknown(table, known, place)
    for name, each in known.items():
        if name not in table and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{place} needs the key `{name}`")
    hints = get_type_hints(cls)
    values = {key: _checked(hints[key], value, f"{place} `{key}`") for key, value in table.items()}
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{place} {error}") from None


def reject_unknown(table: Mapping[str, Any], known: Sequence[str] | Any, place: str) -> None:  # noqa: ANN401
    """Raise for the first key that is not known, with the nearest one that is."""
    for key in table:
        if key not in known:
            raise ConfigError(f"{place} has no key `{key}`{did_you_mean(key, list(known))}")


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about a name that is not known.

    Example:
        >>> did_you_mean("epoch", ["epochs", "seed"]), did_you_mean("x", ["epochs", "seed"])
        ('; did you mean `epochs`?', '; known are epochs, seed')
    """
    return nearest(name, known) or f"; known are {', '.join(sorted(known))}"


def nearest(name: object, known: Sequence[str]) -> str:
    """The end of a sentence that names the nearest known name, or nothing."""
    begun = [each for each in known if name and each.startswith(str(name))]
    near = get_close_matches(str(name), known, n=1) or begun
    return f"; did you mean `{near[0]}`?" if near else ""


def _checked(hint: Any, value: Any, place: str) -> Any:  # noqa: ANN401
    """The value as the type that a field wants."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _checked_union(inner, value, place)
    if origin is Literal:
        if value not in inner:
            allowed = [str(each) for each in inner]
            raise ConfigError(
                f"{place} must be one of {', '.join(allowed)}, got {value!r}"
                f"{nearest(value, allowed)}"
            )
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{place} must be a list, got {value!r}")
        return tuple(_checked(inner[0], each, f"{place}[{i}]") for i, each in enumerate(value))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{place} must be a table, got {value!r}")
        return dict(value)
    return _checked_plain(hint, value, place)


def _checked_union(inner: tuple[Any, ...], value: Any, place: str) -> Any:  # noqa: ANN401
    if types.NoneType in inner and (value is None or value == NOTHING):
        return None
    choices = [each for each in inner if each is not types.NoneType]
    if len(choices) == 1:
        return _checked(choices[0], value, place)
    for each in choices:
        try:
            return _checked(each, value, place)
        except ConfigError:
            continue
    words = " or ".join(_WORDS.get(get_origin(each) or each, str(each)) for each in choices)
    raise ConfigError(f"{place} must be {words}, got {value!r}")


def _checked_plain(hint: Any, value: Any, place: str) -> Any:  # noqa: ANN401
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # True is an int to Python, and never what someone means by a number.
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{place} must be {_WORDS[hint]}, got {value!r}")
    return value
