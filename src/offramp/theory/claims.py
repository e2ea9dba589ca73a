"""The table's rows: each statement, under each definition and reading that it is asked about."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from offramp.theory import counterexamples, statements
from offramp.theory.exits import READINGS, Exits
from offramp.theory.generate import Draw, Setting, Size, build
from offramp.theory.predictors import DEFINITIONS
from offramp.theory.statements import Sides

ANY = Size(1, 2, 2)


@dataclass(frozen=True)
class Claim:
    """One cell of the table: a statement about all exits of a setting.

    Args:
        name: Of the statement; several claims share one.
        title: The statement in words.
        source: Where the paper makes it; empty if it does not.
        statement: Gives both sides.
        setting: What is assumed.
        variant: Reading, loss or assumption that tells this claim from its neighbours.
        least: The smallest worlds that it is about.
        exists: Whether one world is enough for it to hold; otherwise it is about all.
        where: Which of the worlds it is about, bool `[...]`.
    """

    name: str
    title: str
    source: str
    statement: Callable[[Exits], Sides]
    setting: Setting
    variant: str = ""
    least: Size = ANY
    exists: bool = False
    where: Callable[[Exits], npt.NDArray[np.bool_]] | None = None

    def test(self, free: Draw) -> tuple[Exits, Sides, npt.NDArray[np.bool_]]:
        """Build exits from draws; return them, the sides, and which of them the claim is about."""
        exits, valid = build(free, self.setting)
        if self.where is not None:
            valid = valid & self.where(exits)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            return exits, self.statement(exits), valid


_NO_CHAIN = "no refinement"


def _claims() -> list[Claim]:
    return [
        *_trivial(),
        *_risks(),
        *_anytime(),
        *_confidence(),
        *_product(),
        *_stopping(),
    ]


def _trivial() -> list[Claim]:
    same = ("canonical", "canonically calibrated exits are identical", "Prop. 3.2")
    differ = ("non-trivial", "exits calibrated w.r.t. one grouping can differ", "Prop. 3.3")
    swap = ("swap", "swapping two points of a group keeps calibration", "proof of Prop. 3.3")
    claims = [
        Claim(*same, statements.exits_are_identical, Setting(definition, "points"))
        for definition in DEFINITIONS
    ]
    claims += [
        Claim(
            *differ,
            statements.exits_differ,
            Setting(definition, "one"),
            least=Size(2, 2, 2),  # the paper asks for a group of two points
            exists=True,
        )
        for definition in DEFINITIONS
    ]
    for definition in DEFINITIONS:
        test = partial(statements.swap_keeps_calibration, definition=definition)
        setting = Setting(definition, "swap")
        claims.append(Claim(*swap, test, setting, "equally probable points", Size(2, 2, 2)))
    test = partial(statements.swap_keeps_calibration, definition="mean")
    uneven = Setting("mean", "uneven swap")
    return [*claims, Claim(*swap, test, uneven, "any two points", Size(2, 2, 2))]


def _risks() -> list[Claim]:
    words = ("information", "excess risk over a group = I[y, x | group]", "Prop. 3.6")
    information = [
        Claim(*words, statements.excess_risk_is_information, Setting(definition, "any"))
        for definition in DEFINITIONS
    ]
    words = ("refinement", "excess lost over a group = I[y, later group | group]", "Theorem 3.7")
    test = statements.refinement_reduces_excess_risk
    return [*information, *_with_and_without_chain(words, test)]


def _anytime() -> list[Claim]:
    claims = []
    words = ("anytime", "excess risk over a group does not grow, next ≤ this", "after Theorem 3.7")
    for loss in ("log", "zero-one"):
        test = partial(statements.anytime, loss=loss)
        claims += _with_and_without_chain(words, test, f"{loss} loss")
    chain, strict = Setting("exact", "chain"), Setting("exact", "strict chain")
    return [
        *claims,
        Claim(
            "anytime-pointwise",
            "excess risk does not grow at any single point, next ≤ this",
            "Definition 3.5",
            statements.anytime_at_every_point,
            chain,
            "log loss",
        ),
        Claim(
            "anytime-strict",
            "a strictly finer grouping has strictly lower excess risk",
            "",
            statements.strictly_anytime,
            strict,
            "log loss",
            Size(2, 2, 2),
        ),
        Claim(
            "anytime-converse",
            "excess risk falls only if groupings refine",
            "",
            statements.anytime_needs_refinement,
            Setting("exact", "any"),
            "log loss",
            Size(2, 2, 2),
        ),
    ]


def _confidence() -> list[Claim]:
    unbounded = ("unbounded", "log-loss excess risk can be arbitrarily large", "Prop. 3.8")
    test, setting = counterexamples.log_loss_is_unbounded, Setting("confidence", "any")
    big = Size(1, 3, 2)
    controlled = ("controlled", "0-1 excess risk at confidence c = E[max P(y|x)] - c", "Lemma 3.9")
    return [
        Claim(*unbounded, test, setting, "c ≥ 1/(K-1)", big, where=_high),
        Claim(*unbounded, test, setting, "c < 1/(K-1)", big, where=_low),
        Claim(
            "floor",
            "excess risk at a point ≤ -log(1 - (K-1) c)",
            "",
            counterexamples.excess_stays_below_the_floor,
            setting,
            "c < 1/(K-1)",
            big,
            where=_low,
        ),
        *(
            Claim(*controlled, statements.zero_one_risk_is_controlled, Setting(definition, "any"))
            for definition in DEFINITIONS
        ),
    ]


def _product() -> list[Claim]:
    joint, product = "P(stop) for one label", "P(stop) with the product"
    tests = {
        "below": (f"{joint} ≤ {product}", statements.product_at_least_joint),
        "above": (f"{product} ≤ {joint}", statements.product_at_most_joint),
    }
    chain, variant = Setting("exact", "chain"), "product, sampled"
    return [
        Claim(f"product-{side}", title, "Section 4", test, chain, variant)
        for side, (title, test) in tests.items()
    ]


def _stopping() -> list[Claim]:
    claims = []
    words = ("monotone", "stopping over a group becomes more probable, this ≤ next", "Prop. 4.1")
    points = (
        "monotone-pointwise",
        "stopping becomes more probable at every point, this ≤ next",
        "",
    )
    converse = ("monotone-converse", "stopping becomes more probable only if groupings refine", "")
    three = Size(1, 2, 3)  # the last exit always stops, so that two exits show nothing
    for reading in READINGS:
        test = partial(statements.monotone_stopping, reading=reading)
        claims += _with_and_without_chain(words, test, reading, three)
    for reading in READINGS:
        test = partial(statements.monotone_at_every_point, reading=reading)
        claims.append(Claim(*points, test, Setting("exact", "chain"), reading, three))
    for reading in READINGS:
        test = partial(statements.monotone_needs_refinement, reading=reading)
        claims.append(Claim(*converse, test, Setting("exact", "any"), reading, three))
    return claims


def _with_and_without_chain(
    words: tuple[str, str, str],
    test: Callable[[Exits], Sides],
    variant: str = "",
    least: Size = ANY,
) -> list[Claim]:
    """Under every definition with refinement, and under `exact` without."""
    settings: list[tuple[Any, str]] = [
        *((Setting(definition, "chain"), variant) for definition in DEFINITIONS),
        (Setting("exact", "any"), f"{variant}, {_NO_CHAIN}" if variant else _NO_CHAIN),
    ]
    return [Claim(*words, test, setting, text, least) for setting, text in settings]


def _high(exits: Exits) -> npt.NDArray[np.bool_]:
    return counterexamples.has_a_rival(exits) & counterexamples.above_the_floor(exits)


def _low(exits: Exits) -> npt.NDArray[np.bool_]:
    return counterexamples.has_a_rival(exits) & ~counterexamples.above_the_floor(exits)


CLAIMS: tuple[Claim, ...] = tuple(_claims())
STATEMENTS: tuple[str, ...] = tuple(dict.fromkeys(claim.name for claim in CLAIMS))
