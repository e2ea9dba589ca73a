"""Promises: methods of what is under test, and the error that names those that are broken."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offramp.arrays import Array
from offramp.errors import PromiseError

Outputs = dict[str, Array]
"""What is under test makes of its inputs, by their description."""


@dataclass(frozen=True)
class Promise:
    """Something that every answer, scorer or threshold method has to keep.

    It decorates a method that checks it: a generator of what happened, where it is broken. The
    first of that is reported. Sub-classes inherit promises as they inherit methods.

    Attributes:
        text: The promise, as it appears in the error message.
        hint: What to do if it is broken.
        basic: Whether the others are meaningless if it is broken; it is checked before them.
    """

    text: str
    hint: str = ""
    basic: bool = False
    check: Callable[[Any], Iterator[str]] = lambda _: iter(())

    def __call__(self, check: Callable[[Any], Iterator[str]]) -> "Promise":
        """Decorate the method that checks it."""
        return replace(self, check=check)

    def broken_by(self, tested: "UnderTest") -> tuple[str, Exception | None] | None:
        """How it is broken, with the error that was raised, if any; None if it is kept."""
        try:
            happened = next(self.check(tested), None)
        # Someone else's code can raise anything; whatever it is breaks this promise.
        except Exception as error:
            return f"{type(error).__name__} was raised: {error}", error
        if happened is None:
            return None
        return happened + f"; {self.hint}" * bool(self.hint), None


class UnderTest:
    """Something under test; its promises are its attributes and those of its parents.

    Attributes:
        name: For messages.
        changed: Names of the inputs and the settings that a fit or a call has changed.
    """

    name: str
    changed: list[str]

    def outputs(self) -> Outputs:
        """What it makes of its inputs, anew with every call."""
        raise NotImplementedError

    @classmethod
    def promises(cls) -> list[Promise]:
        """All that are checked, basic ones first."""
        parts = (part for kind in reversed(cls.__mro__) for part in vars(kind).values())
        found = [part for part in parts if isinstance(part, Promise)]
        return sorted(found, key=lambda promise: not promise.basic)

    def check(self) -> None:
        """Raise `PromiseError` with a sentence per broken promise; a basic one ends the checks."""
        broken: dict[str, str] = {}
        cause: Exception | None = None
        for promise in self.promises():
            found = promise.broken_by(self)
            if found is None:
                continue
            broken[promise.text] = f"{self.name} breaks the promise {promise.text!r}: {found[0]}"
            cause = cause or found[1]
            if promise.basic:
                break
        if broken:
            lines = list(broken.values())
            if len(lines) > 1:
                lines = [f"{self.name} breaks {len(lines)} promises:", *(f"- {x}" for x in lines)]
            raise PromiseError("\n".join(lines), tuple(broken)) from cause


@Promise("the same samples give the same result", basic=True)
def gives_the_same_again(tested: UnderTest) -> Iterator[str]:
    """Bitwise, in any kind of use."""
    yield from differences(tested.outputs(), tested.outputs())


@Promise("nothing that is given changes")
def changes_nothing(tested: UnderTest) -> Iterator[str]:
    """Neither settings nor data."""
    if tested.changed:
        yield f"`{', '.join(tested.changed)}` changed"


def differences(found: Outputs, wanted: Outputs, tolerance: float = 0.0) -> Iterator[str]:
    """Where two sets of outputs differ, and by how much.

    Example:
        >>> list(differences({"at exit 0": np.ones(2)}, {"at exit 0": np.zeros(2)}))
        ['there is a change of up to 1 at exit 0']
    """
    for where, value in wanted.items():
        other = found[where]
        if value.shape != other.shape:
            yield f"there are shapes {list(other.shape)} and {list(value.shape)} {where}"
        elif not np.allclose(other, value, rtol=tolerance, atol=tolerance):
            with np.errstate(invalid="ignore"):  # infinite thresholds
                largest = np.abs(np.subtract(other, value, dtype=np.float64)).max()
            yield f"there is a change of up to {largest:.4g} {where}"


@contextmanager
def random_numbers(seed: int | None = None) -> Iterator[None]:
    """Other global random numbers, of NumPy and of a torch that is loaded; then as before."""
    torch = sys.modules.get("torch")
    before = np.random.get_state(), torch and torch.get_rng_state()
    np.random.seed(seed)
    if torch:
        torch.manual_seed(np.random.randint(2**31))
    try:
        yield
    finally:
        np.random.set_state(before[0])
        if torch:
            torch.set_rng_state(before[1])
