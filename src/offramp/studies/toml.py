"""From a TOML table to a frozen dataclass; mistakes are reported all at once."""

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from offramp.errors import ConfigError
from offramp.registry import did_you_mean, or_known

T = TypeVar("T")
NOTHING = "none"  # TOML has no null
_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    dict: "a table",
    tuple: "a list",
}


class Mistakes:
    """Collects mistakes, to report all of them at once."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Collect the mistakes that the block raises, and continue after it."""
        try:
            yield
        except _SeveralMistakesError as error:
            self.texts += error.texts
        except ConfigError as error:
            self.texts.append(str(error))

    def check(self, place: str) -> None:
        """Raise if there were any; `place` is where they are, for a message that lists several."""
        texts = list(dict.fromkeys(self.texts))
        if len(texts) == 1:
            raise ConfigError(texts[0])
        if texts:
            raise _SeveralMistakesError(place, texts)


class _SeveralMistakesError(ConfigError):
    def __init__(self, place: str, texts: list[str]) -> None:
        lines = [f"{place} has {len(texts)} mistakes:", *(f"- {text}" for text in texts)]
        super().__init__("\n".join(lines))
        self.texts = texts


def filled(cls: type[T], table: object, place: str) -> T:
    """Make a dataclass from a TOML table, checking keys and types; `place` is for messages."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place} must be a table, got {table!r}")
    known: dict[str, Field[Any]] = {each.name: each for each in fields(cls)}  # type: ignore[arg-type]
    needed = [
        name
        for name, each in known.items()
        if each.default is MISSING and each.default_factory is MISSING
    ]
    mistakes = Mistakes()
    with mistakes.noted():
        reject_unknown(table, known, place)
    mistakes.texts += [f"{place} needs the key `{name}`" for name in needed if name not in table]
    hints, values = get_type_hints(cls), {}
    for key in (name for name in table if name in known):
        with mistakes.noted():
            values[key] = _checked(hints[key], table[key], f"{place} `{key}`")
    if all(name in values for name in needed):
        mistakes.texts += [f"{place} {text}" for text in _impossible(cls, values, needed)]
    mistakes.check(place)
    return cls(**values)


def _impossible(cls: type, values: Mapping[str, Any], needed: Sequence[str]) -> list[str]:
    """Every complaint of a dataclass about its values.

    A dataclass complains about one thing at a time. The key to blame is one that the complaint
    names and without which it vanishes; leaving that key out shows the next complaint.
    """
    left, found, gone = dict(values), list[str](), list[str]()
    while (text := _complaint(cls, left)) is not None and not _names(text, gone):
        found.append(text)
        named = [key for key in _names(text, left) if key not in needed]
        without = {key: {k: v for k, v in left.items() if k != key} for key in named}
        blamed = next((k for k, rest in without.items() if _complaint(cls, rest) != text), None)
        if blamed is None:
            break
        left = without[blamed]
        gone.append(blamed)  # any further complaint about it is only that it is missing
    return found


def _names(text: str, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if f"`{key}`" in text]


def _complaint(cls: type, values: Mapping[str, Any]) -> str | None:
    try:
        cls(**values)
    except ConfigError as error:
        return str(error)
    return None


def reject_unknown(table: Mapping[str, Any], known: Sequence[str] | Any, place: str) -> None:  # noqa: ANN401
    """Raise if there are unknown keys; the message names the nearest known ones."""
    mistakes, unknown = Mistakes(), [key for key in table if key not in known]
    mistakes.texts = [f"{place} has no key `{k}`{or_known(k, known)}" for k in unknown]
    mistakes.check(place)


def _checked(hint: Any, value: Any, place: str) -> Any:  # noqa: ANN401
    """The value, converted to the type of a field."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _checked_union(inner, value, place)
    if origin is Literal:
        if value not in inner:
            allowed = [str(each) for each in inner]
            raise ConfigError(
                f"{place} must be one of {', '.join(allowed)}, got {value!r}"
                f"{did_you_mean(value, allowed)}"
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
    words = " or ".join(_TYPE_NAMES.get(get_origin(each) or each, str(each)) for each in choices)
    raise ConfigError(f"{place} must be {words}, got {value!r}")


def _checked_plain(hint: Any, value: Any, place: str) -> Any:  # noqa: ANN401
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # To Python, True is an int; nobody means it as a number.
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{place} must be {_TYPE_NAMES[hint]}, got {value!r}")
    return value
