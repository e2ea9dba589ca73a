"""A promise with its check, and what is said when it is broken."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from offramp.errors import PromiseError

S = TypeVar("S")


@dataclass(frozen=True)
class Promise(Generic[S]):
    """Something that every class of a kind keeps.

    Args:
        text: The promise, as it stands in the error message.
        check: Takes the specimen; raises through `expect` where the promise is broken.
        basic: Whether those after it mean nothing where this one is broken.
    """

    text: str
    check: Callable[[S], None]
    basic: bool = False


class _BrokenError(Exception):
    """A promise was not kept; the text says what was expected and what happened."""


def expect(kept: bool, expected: str, happened: str) -> None:
    """Raise unless a promise is kept.

    Args:
        kept: Whether it is.
        expected: How it should be.
        happened: What was found instead.
    """
    if not kept:
        raise _BrokenError(f"expected {expected}; {happened}")


def broken_promises(
    name: str, promises: Sequence[Promise[S]], specimen: S
) -> list[tuple[str, str, Exception]]:
    """All promises that a specimen breaks: their text, what is to be said of it, and the cause.

    Args:
        name: Of the class, for messages.
        promises: In order; a broken basic one ends the examination.
        specimen: What the checks take.
    """
    broken: list[tuple[str, str, Exception]] = []
    for promise in promises:
        cause: Exception
        try:
            promise.check(specimen)
            continue
        except _BrokenError as found:
            said, cause = str(found), found
        # Someone else's code can raise anything, and whatever it is belongs to this promise.
        except Exception as error:
            said, cause = f"expected no error; {type(error).__name__} was raised: {error}", error
        broken.append((promise.text, f"{name} breaks the promise {promise.text!r}: {said}", cause))
        if promise.basic:
            break
    return broken


def hold(name: str, promises: Sequence[Promise[S]], specimen: S) -> None:
    """Raise unless a specimen keeps every promise.

    Raises:
        PromiseError: With a sentence for each broken one.
    """
    broken = broken_promises(name, promises, specimen)
    if not broken:
        return
    sentences = [sentence for _, sentence, _ in broken]
    text = sentences[0]
    if len(broken) > 1:
        lines = [f"{name} breaks {len(broken)} promises:", *(f"- {each}" for each in sentences)]
        text = "\n".join(lines)
    raise PromiseError(text, tuple(promise for promise, _, _ in broken)) from broken[0][2]
