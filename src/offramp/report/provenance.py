"""What was run, flattened for reading: nested values become rows with dotted names."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["Group", "described", "groups_of"]

Group = tuple[str, list[tuple[str, str]]]
"""A heading, which may be empty, and rows of a name and a text."""


def groups_of(values: Mapping[str, Any]) -> list[Group]:
    """Single values first, then one group per nested mapping.

    Example:
        >>> groups_of({"seed": 0, "data": {"name": "digits", "size": {"train": 10}}})
        [('', [('seed', '0')]), ('data', [('name', 'digits'), ('size.train', '10')])]
    """
    nested = {key: value for key, value in values.items() if isinstance(value, Mapping) and value}
    single = [(str(k), text_of(v)) for k, v in values.items() if k not in nested and v is not None]
    groups: list[Group] = [("", single)] if single else []
    return groups + [(str(key), list(_rows(value))) for key, value in nested.items()]


def _rows(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _rows(value, f"{prefix}{key}.")
        elif value is not None:  # what was not set says nothing about what was run
            yield f"{prefix}{key}", text_of(value)


def text_of(value: Any) -> str:  # noqa: ANN401 - any plain value
    """One value as text; lists in one line, lists of mappings with a line each.

    Example:
        >>> print(text_of([{"step": "fit", "seconds": 1.5}, {"step": "tune", "seconds": 2}]))
        step fit · seconds 1.5
        step tune · seconds 2
    """
    if isinstance(value, Mapping):
        return " · ".join(f"{key} {text_of(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        is_nested = any(isinstance(inner, Mapping) for inner in value)
        return ("\n" if is_nested else ", ").join(map(text_of, value)) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)


def described(settings: Mapping[str, Any], seconds: float) -> str:
    """A method's settings as one line.

    Example:
        >>> part = {"name": "Corrector", "settings": {"k": 5}}
        >>> described({"scorer": part, "thresholds": "geometric"}, 2.0)
        'scorer Corrector(k=5) · thresholds geometric · 2.0 s'
    """

    def show(value: Any) -> str:  # noqa: ANN401
        if isinstance(value, Mapping) and "name" in value:
            inner = ", ".join(f"{key}={text_of(v)}" for key, v in value["settings"].items())
            return f"{value['name']}({inner})"
        return text_of(value)

    parts = [f"{key} {show(value)}" for key, value in settings.items()]
    return " · ".join([*parts, f"{seconds:.1f} s"])
