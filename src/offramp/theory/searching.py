"""The smallest world in which a claim fails, or in which there is an example of it."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from offramp.theory.claims import Claim
from offramp.theory.generate import Draw, Size, draw
from offramp.theory.sides import TOLERANCE

__all__ = ["MOST", "Found", "look", "search", "shrink"]

MOST = Size(3, 3, 3)  # where the search for small worlds ends
WHOLE = 12  # the largest weight that it draws
CLEAR = 1e-6  # a deviation that no rounding explains


class Found(NamedTuple):
    """What was found in draws side by side, bool `[...]` each.

    Attributes:
        valid: The claim is about this draw.
        wanted: It breaks the claim clearly, or (not `breaking`) fulfils it.
        finite: And both sides are finite, which says more.
    """

    valid: npt.NDArray[np.bool_]
    wanted: npt.NDArray[np.bool_]
    finite: npt.NDArray[np.bool_]


def look(claim: Claim, free: Draw, breaking: bool) -> Found:
    """Which draws break the claim, or fulfil it."""
    _, sides, valid = claim.test(free)
    deviation = sides.deviation
    # Not "above": an undefined side (infinite minus infinite) is as broken.
    wanted = valid & (~(deviation <= CLEAR) if breaking else deviation <= TOLERANCE)
    return Found(valid, wanted, wanted & np.isfinite(sides.gap).all(-1))


def search(
    claim: Claim, seed: int = 0, tries: int = 3000, breaking: bool = True
) -> tuple[Draw | None, int]:
    """Go through worlds with small whole weights, the smallest sizes first.

    Args:
        claim: What to break.
        seed: Of the draws.
        tries: Draws per size.
        breaking: Whether to look for a world that breaks the claim, or for one that fulfils it.

    Returns:
        The simplest draw of the smallest size that was found, or None; and how many worlds were
        looked at. One with infinite sides is returned only if there is no other.

    Example:
        >>> from offramp.theory.claims import CLAIMS
        >>> (claim,) = [c for c in CLAIMS if c.name == "anytime-pointwise"]
        >>> found, _ = search(claim)
        >>> found.size
        Size(points=3, classes=2, exits=2)
    """
    seen, infinite = 0, None
    for number, size in enumerate(_sizes(claim.least)):
        free = draw(np.random.default_rng([seed, number]), tries, size, WHOLE)
        found = look(claim, free, breaking)
        seen += int(found.valid.sum())
        if found.finite.any():
            return _simplest(claim, free, found.finite, breaking), seen
        if infinite is None and found.wanted.any():
            infinite = _simplest(claim, free, found.wanted, breaking)
    return infinite, seen


def shrink(claim: Claim, free: Draw, breaking: bool = True) -> Draw:
    """Lower the whole numbers of one draw, one at a time, as long as the claim stays broken.

    Args:
        claim: What it breaks.
        free: One draw of whole numbers.
        breaking: As in `search`.

    Returns:
        A draw of the same size in which no single number can be lowered further. Finite sides
        stay finite.
    """
    finite = bool(look(claim, free, breaking).finite)
    while True:
        steps = _steps(free)
        if steps is None:
            return free
        found = look(claim, steps, breaking)
        good = np.flatnonzero(found.finite if finite else found.wanted)
        if not len(good):
            return free
        free = steps.take(good[np.argmin(steps.total[good])])


def _simplest(claim: Claim, free: Draw, good: npt.NDArray[np.bool_], breaking: bool) -> Draw:
    """The simplest of a few good draws, once they are shrunk."""
    found = np.flatnonzero(good)
    first = found[np.argsort(free.total[found], kind="stable")[:5]]
    shrunk = [shrink(claim, free.take(index), breaking) for index in first]
    return min(shrunk, key=lambda each: float(each.total))


def _sizes(least: Size) -> Iterator[Size]:
    ranges = (range(low, max(low, high) + 1) for low, high in zip(least, MOST, strict=True))
    return (Size(*size) for size in itertools.product(*ranges))


def _steps(free: Draw) -> Draw | None:
    """All draws with one number set to zero, halved or made one less; None if all are zero."""
    changes = [
        (name, place, lower)
        for name, array in vars(free).items()
        for place, value in np.ndenumerate(array)
        for lower in sorted({0, int(value) // 2, int(value) - 1})
        if 0 <= lower < value
    ]
    if not changes:
        return None
    copies = {
        name: np.repeat(array[None], len(changes), axis=0) for name, array in vars(free).items()
    }
    for row, (name, place, lower) in enumerate(changes):
        copies[name][(row, *place)] = lower
    return Draw(**copies)
