"""The table: every claim on random worlds, and the smallest world where one fails."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from offramp.errors import ConfigError
from offramp.theory.claims import CLAIMS, STATEMENTS, Claim
from offramp.theory.exits import Exits
from offramp.theory.generate import Draw, Size, check_seed, draw
from offramp.theory.statements import TOLERANCE, Sides

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


LARGEST = Size(6, 5, 4)
BATCH = 500  # worlds of one size that are computed together
ATTEMPTS = 200  # batches without a single world that a claim is about
Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was found about a claim.

    Attributes:
        claim: What was asked.
        holds: In every world that was tried; for a claim that something exists, in at least one.
        worlds: How many random worlds were tried that the claim is about.
        small_worlds: How many worlds with small whole weights the search tried in addition.
        deviation: The largest one in a random world.
        example: The smallest world where it fails; of a claim that something exists and holds,
            the smallest world where it does. Rational.
        sides: Both sides there.
    """

    claim: Claim
    holds: bool
    worlds: int
    small_worlds: int
    deviation: float
    example: Exits | None
    sides: Sides | None


def check(claim: Claim, worlds: int = 1000, seed: int = 0, tries: int = 3000) -> Verdict:
    """Try a claim on random worlds, and look for the smallest one that breaks it.

    Args:
        claim: One of `CLAIMS`, or an own one.
        worlds: Random worlds, of up to 6 points, 5 classes and 4 exits.
        seed: The same seed gives the same worlds.
        tries: Small worlds of each size that the search for a counterexample looks at.

    Raises:
        ConfigError: A number or seed that is none, or no world was found that the claim is about.

    Example:
        >>> (claim,) = [c for c in CLAIMS if c.name == "floor"]
        >>> verdict = check(claim, worlds=200)
        >>> verdict.holds, verdict.worlds
        (True, 200)
    """
    check_seed(seed)
    for name, value in (("worlds", worlds), ("tries", tries)):
        if value < 1:
            raise ConfigError(f"`{name}` must be at least 1, got {value}")
    deviations = _deviations(claim, worlds, seed)
    fulfilled = deviations <= TOLERANCE
    if claim.exists:
        holds = bool(fulfilled.any())
        found, seen = search(claim, seed, tries, breaking=not holds)
    else:
        found, seen = search(claim, seed, tries)
        holds = bool(fulfilled.all()) and found is None
    example, sides = (None, None) if found is None else _exactly(claim, found)
    largest = float(deviations.max())
    return Verdict(claim, holds, len(deviations), seen, largest, example, sides)


def check_all(
    names: Sequence[str] = (),
    worlds: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Verdict]:
    """The whole table, or the rows of some statements.

    Args:
        names: Of statements; none means all of `STATEMENTS`.
        worlds: Random worlds per claim.
        seed: The same seed gives the same table.
        progress: Called with done, total and a text.

    Raises:
        ConfigError: There is no statement of that name.
    """
    for name in names:
        if name not in STATEMENTS:
            raise ConfigError(f"there is no statement {name!r}; there are {', '.join(STATEMENTS)}")
    chosen = [claim for claim in CLAIMS if not names or claim.name in names]
    verdicts = []
    for number, claim in enumerate(chosen):
        if progress is not None:
            progress(number, len(chosen), f"{claim.name}, {claim.setting.definition}")
        verdicts.append(check(claim, worlds, seed))
    return verdicts


def _deviations(claim: Claim, worlds: int, seed: int) -> Floats:
    """Of random worlds of many sizes that the claim is about, `[worlds]`."""
    rng = np.random.default_rng([seed, 1])
    found: list[Floats] = []
    missing, attempts = worlds, 0
    batch = max(min(BATCH, worlds // 10), 1)
    while missing > 0:
        size = Size(*rng.integers(claim.least, LARGEST, endpoint=True).tolist())
        _, sides, valid = claim.test(draw(rng, batch, size))
        found.append(sides.deviation[valid][:missing])
        missing -= len(found[-1])
        attempts += 1
        if attempts > ATTEMPTS and missing == worlds:
            raise ConfigError(f"no random world was found that {claim.name!r} is about")
    return np.concatenate(found)


def _exactly(claim: Claim, free: Draw) -> tuple[Exits, Sides]:
    """The found world in rational numbers."""
    exits, sides, valid = claim.test(free.rational())
    # The search works with floats; small whole weights leave it no room to be mistaken.
    assert valid
    return exits, sides
