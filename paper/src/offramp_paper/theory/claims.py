"""The table's rows: each statement, under the definitions and readings it is checked for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from offramp_paper.theory import statements
from offramp_paper.theory.calibration import DEFINITIONS, Definition, Exits
from offramp_paper.theory.generate import Draw, Setting, Size, Structure, exits_from
from offramp_paper.theory.risks import READINGS
from offramp_paper.theory.statements import Bools, Relation

SMALLEST = Size(1, 2, 2)
TWO_POINTS = Size(2, 2, 2)
THREE_EXITS = Size(1, 2, 3)  # the last exit always stops, so two exits show nothing
THREE_CLASSES = Size(1, 3, 2)


@dataclass(frozen=True)
class Claim:
    """One row of the table: a statement about all exits of a setting.

    Args:
        name: Of the statement; several claims share one.
        title: The statement in words.
        source: Where the paper makes it; empty if it does not.
        statement: Computes both sides.
        setting: What is assumed.
        variant: The reading, loss or assumption that distinguishes claims of the same name.
        least: The smallest worlds that it is about.
        exists: Whether it claims that such a world exists, rather than something about all.
        where: Which of the worlds it is about, bool `[...]`.
    """

    name: str
    title: str
    source: str
    statement: Callable[[Exits], Relation]
    setting: Setting
    variant: str = ""
    least: Size = SMALLEST
    exists: bool = False
    where: Callable[[Exits], Bools] | None = None

    def test(self, free: Draw) -> tuple[Exits, Relation, Bools]:
        """Build exits from draws; return them, the relation, and which the claim is about."""
        exits, valid = exits_from(free, self.setting)
        if self.where is not None:
            valid = valid & self.where(exits)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            return exits, self.statement(exits), valid


class _Case(NamedTuple):
    """What distinguishes the claims of one statement: setting, variant, arguments of the test."""

    setting: Setting
    variant: str
    arguments: dict[str, Any]


def _case(
    definition: Definition,
    structure: Structure,
    variant: str = "",
    /,
    **arguments: Any,  # noqa: ANN401
) -> _Case:
    return _Case(Setting(definition, structure), variant, arguments)


def _each(structure: Structure, variant: str = "", **arguments: Any) -> list[_Case]:  # noqa: ANN401
    """Under every definition."""
    return [_case(definition, structure, variant, **arguments) for definition in DEFINITIONS]


def _chains(variant: str = "", **arguments: Any) -> list[_Case]:  # noqa: ANN401
    """Under every definition with refinement, and under `exact` without."""
    without = f"{variant}, no refinement" if variant else "no refinement"
    return [*_each("chain", variant, **arguments), _case("exact", "any", without, **arguments)]


def _claims(
    name: str,
    words: tuple[str, str],
    test: Callable[..., Relation],
    cases: Iterable[_Case],
    **options: Any,  # noqa: ANN401 - `least`, `exists` and `where` of the claims
) -> list[Claim]:
    title, source = words
    return [
        Claim(name, title, source, partial(test, **arguments), setting, variant, **options)
        for setting, variant, arguments in cases
    ]


def _high(exits: Exits) -> Bools:
    return statements.has_rival(exits) & statements.confidence_reaches_bound(exits)


def _low(exits: Exits) -> Bools:
    return statements.has_rival(exits) & ~statements.confidence_reaches_bound(exits)


CLAIMS: tuple[Claim, ...] = (
    *_claims(
        "canonical",
        ("canonically calibrated exits are identical", "Prop. 3.2"),
        statements.later_exits_match_first,
        _each("points"),
    ),
    *_claims(
        "non-trivial",
        ("exits calibrated w.r.t. one grouping can differ", "Prop. 3.3"),
        statements.later_exits_match_first,
        _each("one", operator="!="),
        least=TWO_POINTS,  # the paper asks for a group of two points
        exists=True,
    ),
    *_claims(
        "swap",
        ("swapping two points of a group keeps calibration", "proof of Prop. 3.3"),
        statements.swap_keeps_calibration,
        [
            *(
                _case(each, "swap", "equally probable points", definition=each)
                for each in DEFINITIONS
            ),
            _case("mean", "uneven swap", "any two points", definition="mean"),
        ],
        least=TWO_POINTS,
    ),
    *_claims(
        "information",
        ("excess risk over a group = I[y, x | group]", "Prop. 3.6"),
        statements.excess_risk_is_information,
        _each("any"),
    ),
    *_claims(
        "refinement",
        ("excess lost over a group = I[y, later group | group]", "Theorem 3.7"),
        statements.refinement_reduces_excess_risk,
        _chains(),
    ),
    *_claims(
        "anytime",
        ("excess risk over a group does not grow, next ≤ this", "after Theorem 3.7"),
        statements.anytime,
        [*_chains("log loss"), *_chains("zero-one loss", loss="zero-one")],
    ),
    *_claims(
        "anytime-pointwise",
        ("excess risk does not grow at any single point, next ≤ this", "Definition 3.5"),
        statements.anytime,
        [_case("exact", "chain", "log loss", pointwise=True)],
    ),
    *_claims(
        "anytime-strict",
        ("a strictly finer grouping has strictly lower excess risk", ""),
        statements.strictly_anytime,
        [_case("exact", "strict chain", "log loss")],
        least=TWO_POINTS,
    ),
    *_claims(
        "anytime-converse",
        ("excess risk falls only if groupings refine", ""),
        statements.anytime_needs_refinement,
        [_case("exact", "any", "log loss")],
        least=TWO_POINTS,
    ),
    *(
        claim
        for variant, where in (("c ≥ 1/(K-1)", _high), ("c < 1/(K-1)", _low))
        for claim in _claims(
            "unbounded",
            ("log-loss excess risk can be arbitrarily large", "Prop. 3.8"),
            statements.log_loss_is_unbounded,
            [_case("confidence", "any", variant)],
            least=THREE_CLASSES,
            where=where,
        )
    ),
    *_claims(
        "floor",
        ("excess risk at a point ≤ -log(1 - (K-1) c)", ""),
        statements.excess_is_bounded,
        [_case("confidence", "any", "c < 1/(K-1)")],
        least=THREE_CLASSES,
        where=_low,
    ),
    *_claims(
        "controlled",
        ("0-1 excess risk at confidence c = E[max P(y|x)] - c", "Lemma 3.9"),
        statements.zero_one_risk_is_controlled,
        _each("any"),
    ),
    *_claims(
        "product-below",
        ("P(stop) for one label ≤ P(stop) with the product", "Section 4"),
        statements.product_at_most_joint,
        [_case("exact", "chain", "product, sampled", reverse=True)],
    ),
    *_claims(
        "product-above",
        ("P(stop) with the product ≤ P(stop) for one label", "Section 4"),
        statements.product_at_most_joint,
        [_case("exact", "chain", "product, sampled")],
    ),
    *_claims(
        "monotone",
        ("stopping over a group becomes more probable, this ≤ next", "Prop. 4.1"),
        statements.monotone_stopping,
        [case for reading in READINGS for case in _chains(reading, reading=reading)],
        least=THREE_EXITS,
    ),
    *_claims(
        "monotone-pointwise",
        ("stopping becomes more probable at every point, this ≤ next", ""),
        statements.monotone_stopping,
        [_case("exact", "chain", each, reading=each, pointwise=True) for each in READINGS],
        least=THREE_EXITS,
    ),
    *_claims(
        "monotone-converse",
        ("stopping becomes more probable only if groupings refine", ""),
        statements.monotone_needs_refinement,
        [_case("exact", "any", each, reading=each) for each in READINGS],
        least=THREE_EXITS,
    ),
)
STATEMENTS: tuple[str, ...] = tuple(dict.fromkeys(claim.name for claim in CLAIMS))
