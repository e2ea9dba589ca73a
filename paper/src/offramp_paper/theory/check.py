"""Check claims: on random worlds, and by a search for the smallest world where one fails."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from offramp.errors import ConfigError
from offramp.progress import Progress, showing
from offramp.report import Cell, ResultTable
from offramp_paper.theory.calibration import Exits
from offramp_paper.theory.claims import CLAIMS, STATEMENTS, Claim
from offramp_paper.theory.generate import Draw, Size, check_seed
from offramp_paper.theory.statements import TOLERANCE, Bools, Floats, Relation

LARGEST_SEARCHED = Size(3, 3, 3)  # where the search for small worlds ends
LARGEST_WEIGHT = 12  # of the search
CLEAR = 1e-6  # a deviation that rounding cannot explain
LARGEST_RANDOM = Size(6, 5, 4)
BATCH = 500  # worlds of one size that are computed together
ATTEMPTS = 200  # batches without a single world that a claim is about


@dataclass(frozen=True, eq=False)
class ClaimResult:
    """What was found about a claim; as text, its smallest example.

    Attributes:
        claim: What was checked.
        holds: In every world tried; for a claim that something exists, in at least one.
        worlds: How many random worlds were tried that the claim is about.
        small_worlds: How many worlds with small integer weights the search tried in addition.
        deviation: The largest one in a random world.
        example: The smallest world where it fails; for a claim that something exists and holds,
            the smallest world where it does. Rational.
        relation: Both sides there.
    """

    claim: Claim
    holds: bool
    worlds: int
    small_worlds: int
    deviation: float
    example: Exits | None
    relation: Relation | None

    def __str__(self) -> str:
        kind = "holds" if self.holds else "fails"
        if self.holds and self.example is not None:
            kind = "holds, for example"
        variant = f", {self.claim.variant}" if self.claim.variant else ""
        head = f"{self.claim.title} ({self.claim.setting.definition}{variant}) {kind}"
        return head if self.example is None else f"{head}:\n{self.example}\n{self.relation}"


def check(claim: Claim, worlds: int = 1000, seed: int = 0, tries: int = 3000) -> ClaimResult:
    """Try a claim on random worlds, and search for the smallest one that breaks it.

    Args:
        claim: One of `CLAIMS`, or your own.
        worlds: Random worlds, of up to 6 points, 5 classes and 4 exits.
        seed: The same seed gives the same worlds.
        tries: Small worlds of each size that the search for a counterexample tries.

    Raises:
        ConfigError: An invalid number or seed, or no world was found that the claim is about.

    Example:
        >>> (claim,) = [c for c in CLAIMS if c.name == "floor"]
        >>> result = check(claim, worlds=200)
        >>> result.holds, result.worlds
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
    example, relation = (None, None) if found is None else _exactly(claim, found)
    largest = float(deviations.max())
    return ClaimResult(claim, holds, len(deviations), seen, largest, example, relation)


def check_all(
    names: Sequence[str] = (),
    worlds: int = 1000,
    seed: int = 0,
    progress: bool | Progress = False,
) -> list[ClaimResult]:
    """Check all claims, or those of some statements.

    Args:
        names: Of statements; none means all of `STATEMENTS`.
        worlds: Random worlds per claim.
        seed: The same seed gives the same results.
        progress: Whether to show it on stderr, or a display of your own.

    Raises:
        ConfigError: There is no statement of that name.
    """
    for name in names:
        if name not in STATEMENTS:
            raise ConfigError(f"there is no statement {name!r}; there are {', '.join(STATEMENTS)}")
    chosen = [claim for claim in CLAIMS if not names or claim.name in names]
    results = []
    with showing(progress) as shown:
        for number, claim in enumerate(chosen):
            shown.step(number, len(chosen), f"{claim.name}, {claim.setting.definition}")
            results.append(check(claim, worlds, seed))
    return results


def search(
    claim: Claim, seed: int = 0, tries: int = 3000, breaking: bool = True
) -> tuple[Draw | None, int]:
    """Go through worlds with small integer weights, the smallest sizes first.

    Args:
        claim: What to break.
        seed: Of the draws.
        tries: Draws per size.
        breaking: Whether to look for a world that breaks the claim, or for one that fulfils it.

    Returns:
        The simplest draw of the smallest size that was found, or None; and how many worlds were
        tried. A draw with infinite sides is returned only if there is no other.

    Example:
        >>> (claim,) = [c for c in CLAIMS if c.name == "anytime-pointwise"]
        >>> found, _ = search(claim)
        >>> found.size
        Size(points=3, classes=2, exits=2)
    """
    seen, infinite = 0, None
    for number, size in enumerate(_sizes(claim.least)):
        rng = np.random.default_rng([seed, number])
        free = Draw.random(rng, tries, size, LARGEST_WEIGHT)
        found = _test(claim, free, breaking)
        seen += int(found.valid.sum())
        if found.finite.any():
            return _simplest(claim, free, found.finite, breaking), seen
        if infinite is None and found.wanted.any():
            infinite = _simplest(claim, free, found.wanted, breaking)
    return infinite, seen


def shrink(claim: Claim, free: Draw, breaking: bool = True) -> Draw:
    """Lower the integers of one draw, one at a time, as long as the claim stays broken.

    Args:
        claim: What the draw breaks.
        free: One draw of integers.
        breaking: As in `search`.

    Returns:
        A draw of the same size in which no single number can be lowered further. Finite sides
        stay finite.
    """
    finite = bool(_test(claim, free, breaking).finite)
    while True:
        steps = _lowered(free)
        if steps is None:
            return free
        found = _test(claim, steps, breaking)
        good = np.flatnonzero(found.finite if finite else found.wanted)
        if not len(good):
            return free
        free = steps.take(good[np.argmin(steps.total[good])])


def claims_table(results: Sequence[ClaimResult]) -> ResultTable:
    """One row per result; a statement's title appears in its first row only."""
    rows, before = [], ""
    for result in results:
        claim, example = result.claim, result.example
        source = f" ({claim.source})" if claim.source else ""
        title = f"{claim.name}: {claim.title}{source}"
        size = "-"
        if example is not None:
            world = example.world
            size = f"{world.num_points} x {world.num_classes} x {example.num_exits}"
        rows.append(
            [
                Cell("" if title == before else title),
                Cell(claim.setting.definition),
                Cell(claim.variant or "-"),
                Cell("holds" if result.holds else "fails", bold=not result.holds),
                Cell(f"{result.worlds:,} + {result.small_worlds:,}"),
                Cell("-" if claim.exists else f"{result.deviation:.1e}"),
                Cell(size),
            ]
        )
        before = title
    columns = ["statement", "calibration", "reading", "verdict", "worlds", "deviation", "smallest"]
    return ResultTable(
        "theory", "The paper's statements in finite worlds", columns, rows, _CAPTION
    )


def summary(results: Sequence[ClaimResult]) -> str:
    """What was found, in a sentence or two."""
    by_name: dict[str, list[bool]] = {}
    for result in results:
        by_name.setdefault(result.claim.name, []).append(result.holds)
    always = [name for name, found in by_name.items() if all(found)]
    never = [name for name, found in by_name.items() if not any(found)]
    mixed = [name for name in by_name if name not in (*always, *never)]
    parts = [
        f"{len(found)} {word}: {', '.join(found)}"
        for found, word in (
            (always, "hold under every definition and reading that was tried"),
            (mixed, "hold under some"),
            (never, "fail under all"),
        )
        if found
    ]
    return f"Of {len(by_name)} statements, " + "; ".join(parts) + "."


_CAPTION = (
    "Worlds: random ones, plus small ones tried by the search. Deviation: the largest in a random "
    "world; 1 or 0 for statements that only hold or fail. Smallest: points x classes x exits of "
    "the smallest world where the statement fails or, for a statement that something exists, of "
    "the smallest example. Where a statement mentions refinement, it is assumed unless the "
    "reading says otherwise."
)


class _Found(NamedTuple):
    """What was found in several draws, bool `[...]` each."""

    valid: Bools  # the claim is about this draw
    wanted: Bools  # it breaks the claim clearly, or (not `breaking`) fulfils it
    finite: Bools  # and both sides are finite, which is more informative


def _test(claim: Claim, free: Draw, breaking: bool) -> _Found:
    _, relation, valid = claim.test(free)
    deviation = relation.deviation
    # Not "above": an undefined side (infinite minus infinite) breaks the claim as well.
    wanted = valid & (~(deviation <= CLEAR) if breaking else deviation <= TOLERANCE)
    return _Found(valid, wanted, wanted & np.isfinite(relation.gap).all(-1))


def _simplest(claim: Claim, free: Draw, good: Bools, breaking: bool) -> Draw:
    """The simplest of a few good draws, after shrinking."""
    found = np.flatnonzero(good)
    first = found[np.argsort(free.total[found], kind="stable")[:5]]
    shrunk = [shrink(claim, free.take(index), breaking) for index in first]
    return min(shrunk, key=lambda each: float(each.total))


def _sizes(least: Size) -> Iterator[Size]:
    bounds = zip(least, LARGEST_SEARCHED, strict=True)
    ranges = (range(low, max(low, high) + 1) for low, high in bounds)
    return (Size(*size) for size in itertools.product(*ranges))


def _lowered(free: Draw) -> Draw | None:
    """All draws with one number set to zero, halved or lowered by one; None if all are zero."""
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


def _deviations(claim: Claim, worlds: int, seed: int) -> Floats:
    """In random worlds of many sizes that the claim is about, `[worlds]`."""
    rng = np.random.default_rng([seed, 1])
    found: list[Floats] = []
    missing, attempts = worlds, 0
    batch = max(min(BATCH, worlds // 10), 1)
    while missing > 0:
        size = Size(*rng.integers(claim.least, LARGEST_RANDOM, endpoint=True).tolist())
        _, relation, valid = claim.test(Draw.random(rng, batch, size))
        found.append(relation.deviation[valid][:missing])
        missing -= len(found[-1])
        attempts += 1
        if attempts > ATTEMPTS and missing == worlds:
            raise ConfigError(f"found no random world that {claim.name!r} is about")
    return np.concatenate(found)


def _exactly(claim: Claim, free: Draw) -> tuple[Exits, Relation]:
    """The found world in rational numbers."""
    exits, relation, valid = claim.test(free.rational())
    # The search works with floats; with small integer weights it cannot be wrong.
    assert valid
    return exits, relation
