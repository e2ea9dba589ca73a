"""Sides, and how worlds and verdicts are shown."""

from fractions import Fraction

import numpy as np
import pytest

from offramp import theory
from offramp.errors import ConfigError, WorldError
from offramp.theory import Exits, Sides, World, describe, describe_sides
from offramp.theory.claims import CLAIMS
from offramp.theory.show import examples, named_examples, table


@pytest.mark.parametrize(
    ("left", "relation", "right", "deviation"),
    [
        ([1.0, 2.0], "==", [1.0, 2.0], 0.0),
        ([1.0, 2.0], "==", [1.0, 2.5], 0.5),
        ([1.0, 2.0], "<=", [1.5, 2.5], 0.0),
        ([1.0, 2.0], "<=", [0.25, 2.5], 0.75),
        ([1.0, 2.0], "<", [1.5, 2.5], 0.0),
        ([1.0, 2.0], "<", [1.5, 2.0], 1.0),
        ([1.0, 2.0], "!=", [1.0, 2.5], 0.0),
        ([1.0, 2.0], "!=", [1.0, 2.0], 1.0),
    ],
)
def test_deviation_measures_how_wrong_a_relation_is(left, relation, right, deviation):
    sides = Sides(np.array(left), np.array(right), relation)
    assert sides.deviation == deviation
    assert sides.holds == (deviation == 0)


def test_rounding_is_not_held_against_a_statement_and_more_is():
    for gap, holds in ((1e-12, True), (1e-8, False)):
        assert Sides(np.array([1 + gap]), np.array([1.0]), "==").holds == holds
        assert Sides(np.array([1 + gap]), np.array([1.0]), "<=").holds == holds


def test_worlds_side_by_side_have_a_deviation_each():
    sides = Sides(np.array([[1.0, 2.0], [3.0, 3.0]]), np.array([[1.0, 1.0], [3.0, 3.0]]), "<=")
    assert sides.deviation.tolist() == [1.0, 0.0]
    assert sides.holds.tolist() == [False, True]


def test_fractions_lose_nothing_before_they_are_compared():
    tiny = Fraction(1, 10**30)
    one, more = np.array([Fraction(1)]), np.array([1 + tiny])
    assert Sides(more, one, "==").gap[0] == 1e-30


def test_an_undefined_side_does_not_hold():
    assert not Sides(np.array([np.nan]), np.array([0.0]), "==").holds
    assert not Sides(np.array([np.inf]), np.array([0.0]), "<=").holds


def test_an_unknown_relation_is_named():
    with pytest.raises(ConfigError, match="one of ==, <=, <, !=, got '>='"):
        Sides(np.array([1.0]), np.array([2.0]), ">=")


@pytest.mark.parametrize(
    "statement",
    [
        theory.exits_are_identical,
        theory.exits_differ,
        theory.refinement_reduces_excess_risk,
        theory.anytime,
        theory.anytime_at_every_point,
        theory.strictly_anytime,
        lambda exits: theory.monotone_stopping(exits, "argmax"),
        lambda exits: theory.monotone_at_every_point(exits, "argmax"),
    ],
)
def test_a_single_exit_makes_no_statement_about_exits_true(statement):
    alone = Exits.calibrated(World([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]]), [[0, 0]])
    with pytest.raises(WorldError, match="needs two of them at least, got one"):
        statement(alone)


def test_sides_that_differ_are_shown_where_they_do():
    shown = describe_sides(Sides(np.array([0.2, 0.5]), np.array([0.5, 0.5]), "!="))
    assert shown == "0.2 != 0.5 is true"


def test_sides_are_shown_where_they_are_furthest_apart():
    shown = describe_sides(Sides(np.array([0.1, 0.9, 0.5]), np.array([0.2, 0.3, 0.4]), "<="))
    assert shown == "0.9 <= 0.3 is false"
    exact = Sides(np.array([Fraction(1, 3)]), np.array([Fraction(1, 2)]), "<=")
    assert describe_sides(exact) == "1/3 <= 1/2 is true"


def test_a_described_world_can_be_typed_in_again():
    pair = theory.calibrated_but_worse()
    rows = [line.split() for line in describe(pair.calibrated).splitlines()[1:]]
    p_x = [Fraction(row[1]) for row in rows]
    again = World(p_x, [[Fraction(value) for value in row[2:4]] for row in rows])
    assert again.p_y_given_x.tolist() == pair.calibrated.world.p_y_given_x.tolist()
    said = [[Fraction(value) for value in row[4:6]] for row in rows]
    assert said == pair.calibrated.predictors[0].tolist()


@pytest.fixture(scope="module")
def verdicts():
    chosen = [claim for claim in CLAIMS if claim.name in ("canonical", "non-trivial")]
    return [theory.check(claim, worlds=20, tries=500) for claim in chosen]


def test_the_table_has_a_row_per_claim_and_names_a_statement_once(verdicts):
    rendered = table(verdicts)
    assert len(rendered.rows) == 6
    titles = [row[0].text for row in rendered.rows]
    assert titles[0].startswith("canonical: ")
    assert titles[1:3] == ["", ""]
    assert [row[3].text for row in rendered.rows][:4] == ["holds", "holds", "fails", "fails"]
    assert [row[3].bold for row in rendered.rows][:4] == [False, False, True, True]
    assert rendered.rows[3][5].text == "-"  # that something exists has no deviation


def test_examples_say_whether_they_show_a_failure_or_what_can_be(verdicts):
    shown = examples(verdicts)
    assert len(shown) == 4
    assert "(confidence) fails:" in shown[0]
    assert "(exact) fails:" in shown[1]
    assert "(mean) holds, for example:" in shown[2]
    assert shown[2].endswith("is true")
    assert shown[0].endswith("is false")


def test_the_named_worlds_are_shown_with_what_they_cost():
    growing, worse = named_examples()
    assert "mean excess risk: 0.0000, then 0.4621" in growing
    assert "calibrated network, thresholds on its confidence: accuracy 3/5 at cost 1" in worse
    assert worse.count("accuracy 4/5 at cost 8/5") == 2
    assert worse.count("accuracy 4/5 at cost 2") == 1
