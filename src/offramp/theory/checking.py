"""The table: every claim on random worlds, and the smallest world where one fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offramp.errors import ConfigError
from offramp.theory.claims import CLAIMS, STATEMENTS, Claim
from offramp.theory.exits import Exits
from offramp.theory.generate import Draw, Size, draw
from offramp.theory.searching import search
from offramp.theory.sides import TOLERANCE, Sides

__all__ = ["Verdict", "check", "check_all"]

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
        ConfigError: `worlds` is not positive, or no world was found that the claim is about.

    Example:
        >>> (claim,) = [c for c in CLAIMS if c.name == "floor"]
        >>> verdict = check(claim, worlds=200)
        >>> verdict.holds, verdict.worlds
        (True, 200)
    """
    if worlds < 1:
        raise ConfigError(f"`worlds` must be at least 1, got {worlds}")
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
