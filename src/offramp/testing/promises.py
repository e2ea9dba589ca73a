"""Promises with their checks, and the error that names those that are broken."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from offramp.errors import PromiseError

Check = Callable[[Any], None]


@dataclass(frozen=True)
class Promise:
    """Something that every answer, scorer or threshold method has to keep.

    Attributes:
        text: The promise, as it appears in the error message.
        check: Takes what is under test, and raises through `expect` if the promise is broken.
        basic: Whether the others are meaningless if this one is broken; it is checked before them.
    """

    text: str
    check: Check
    basic: bool


class Promises(list[Promise]):
    """Promises, to which decorated functions are added."""

    def add(self, text: str, *, basic: bool = False) -> Callable[[Check], Check]:
        """Add the decorated check."""

        def adding(check: Check) -> Check:
            self.append(Promise(text, check, basic))
            return check

        return adding


class _BrokenError(Exception):
    """A promise was broken; the text says what was expected and what happened."""


def expect(kept: bool, expected: str, happened: str) -> None:
    """Raise unless a promise is kept: what should have happened, and what did."""
    if not kept:
        raise _BrokenError(f"expected {expected}; {happened}")


def check_promises(name: str, promises: list[Promise], tested: object) -> None:
    """Raise `PromiseError` with a sentence per broken promise; a basic one ends the checks."""
    broken: dict[str, str] = {}
    first: Exception | None = None
    for promise in sorted(promises, key=lambda promise: not promise.basic):
        cause: Exception
        try:
            promise.check(tested)
            continue
        except _BrokenError as error:
            reason, cause = str(error), error
        # Someone else's code can raise anything; whatever it is breaks this promise.
        except Exception as error:
            reason, cause = f"expected no error; {type(error).__name__} was raised: {error}", error
        first = first or cause
        broken[promise.text] = f"{name} breaks the promise {promise.text!r}: {reason}"
        if promise.basic:
            break
    if broken:
        lines = list(broken.values())
        if len(lines) > 1:
            lines = [f"{name} breaks {len(lines)} promises:", *(f"- {line}" for line in lines)]
        raise PromiseError("\n".join(lines), tuple(broken)) from first
