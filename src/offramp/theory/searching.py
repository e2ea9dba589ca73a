"""The smallest world in which a claim fails, or in which there is an example of it."""

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from offramp.theory.claims import Claim
from offramp.theory.generate import Draw, Size, draw
from offramp.theory.sides import TOLERANCE

__all__ = ["MOST", "search", "shrink", "wanted"]

MOST = Size(3, 3, 3)  # where the search for small worlds ends
WHOLE = 12  # the largest weight that it draws
CLEAR = 1e-6  # a deviation that no rounding explains


def wanted(claim: Claim, free: Draw, breaking: bool) -> npt.NDArray[np.bool_]:
    """Which draws break the claim clearly, or (not `breaking`) which ones fulfil it: `[...]`.

    Infinite sides break nothing here: finite worlds say more.
    """
    _, sides, valid = claim.test(free)
    deviation = sides.deviation
    if not breaking:
        return valid & (deviation <= TOLERANCE)
    return valid & (deviation > CLEAR) & np.isfinite(sides.gap).all(-1)


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
        looked at.

    Example:
        >>> from offramp.theory.claims import CLAIMS
        >>> (claim,) = [c for c in CLAIMS if c.name == "anytime-pointwise"]
        >>> found, _ = search(claim)
        >>> found.size
        Size(points=3, classes=2, exits=2)
    """
    seen = 0
    for number, size in enumerate(_sizes(claim.least)):
        free = draw(np.random.default_rng([seed, number]), tries, size, WHOLE)
        _, _, valid = claim.test(free)
        seen += int(valid.sum())
        found = np.flatnonzero(wanted(claim, free, breaking))
        if len(found):
            simplest = found[np.argsort(free.total[found], kind="stable")[:5]]
            shrunk = [shrink(claim, free.take(index), breaking) for index in simplest]
            return min(shrunk, key=lambda each: float(each.total)), seen
    return None, seen


def shrink(claim: Claim, free: Draw, breaking: bool = True) -> Draw:
    """Lower the whole numbers of one draw, one at a time, as long as the claim stays broken.

    Args:
        claim: What it breaks.
        free: One draw of whole numbers.
        breaking: As in `search`.

    Returns:
        A draw of the same size in which no single number can be lowered further.
    """
    while True:
        steps = _steps(free)
        if steps is None:
            return free
        good = np.flatnonzero(wanted(claim, steps, breaking))
        if not len(good):
            return free
        free = steps.take(good[np.argmin(steps.total[good])])


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
