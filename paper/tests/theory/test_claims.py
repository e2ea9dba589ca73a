"""The table: its verdicts, with every counterexample recomputed with loops and fractions."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from offramp.errors import ConfigError
from offramp.progress import Progress
from offramp_paper import theory
from offramp_paper.theory import World
from offramp_paper.theory.check import search, shrink
from offramp_paper.theory.claims import CLAIMS
from offramp_paper.theory.counterexamples import counterexample_texts
from offramp_paper.theory.generate import Size

# Verdict, and the size of the smallest world: points x classes x exits.
TABLE = """
canonical          exact      -                            holds
canonical          mean       -                            holds
canonical          confidence -                            fails 1 3 2
non-trivial        exact      -                            fails 2 2 2
non-trivial        mean       -                            holds 2 2 2
non-trivial        confidence -                            holds 2 2 2
swap               exact      equally probable points      holds
swap               mean       equally probable points      holds
swap               confidence equally probable points      fails 2 2 2
swap               mean       any two points               fails 2 2 2
information        exact      -                            holds
information        mean       -                            fails 2 2 2
information        confidence -                            fails 1 3 2
refinement         exact      -                            holds
refinement         mean       -                            fails 2 2 2
refinement         confidence -                            fails 1 3 2
refinement         exact      no refinement                fails 2 2 2
anytime            exact      log loss                     holds
anytime            mean       log loss                     fails 2 2 2
anytime            confidence log loss                     fails 1 3 2
anytime            exact      log loss, no refinement      fails 2 2 2
anytime            exact      zero-one loss                holds
anytime            mean       zero-one loss                fails 2 2 2
anytime            confidence zero-one loss                fails 1 3 2
anytime            exact      zero-one loss, no refinement fails 2 2 2
anytime-pointwise  exact      log loss                     fails 3 2 2
anytime-strict     exact      log loss                     fails 2 2 2
anytime-converse   exact      log loss                     fails 3 2 2
unbounded          confidence c ≥ 1/(K-1)                  holds
unbounded          confidence c < 1/(K-1)                  fails 1 3 2
floor              confidence c < 1/(K-1)                  holds
controlled         exact      -                            holds
controlled         mean       -                            fails 2 2 2
controlled         confidence -                            holds
product-below      exact      product, sampled             fails 1 2 2
product-above      exact      product, sampled             fails 2 2 2
monotone           exact      product                      holds
monotone           mean       product                      fails 2 2 3
monotone           confidence product                      fails 1 3 3
monotone           exact      product, no refinement       fails 2 2 3
monotone           exact      sampled                      holds
monotone           mean       sampled                      fails 2 2 3
monotone           confidence sampled                      fails 1 3 3
monotone           exact      sampled, no refinement       fails 2 2 3
monotone           exact      argmax                       holds
monotone           mean       argmax                       fails 2 2 3
monotone           confidence argmax                       fails 1 3 3
monotone           exact      argmax, no refinement        fails 2 2 3
monotone-pointwise exact      product                      fails 2 2 3
monotone-pointwise exact      sampled                      fails 2 2 3
monotone-pointwise exact      argmax                       fails 3 2 3
monotone-converse  exact      product                      fails 2 2 3
monotone-converse  exact      sampled                      fails 2 2 3
monotone-converse  exact      argmax                       fails 2 2 3
"""


def expected():
    for line in TABLE.strip().splitlines():
        name, definition = line[:18].strip(), line[19:29].strip()
        verdict, *size = line[59:].split()
        yield name, definition, line[30:58].strip(), verdict, tuple(map(int, size))


EXPECTED = list(expected())


@pytest.fixture(scope="module")
def results():
    return [theory.check(claim, worlds=200) for claim in CLAIMS]


def test_the_table_asks_what_is_expected_and_nothing_else():
    asked = [(claim.name, claim.setting.definition, claim.variant or "-") for claim in CLAIMS]
    assert asked == [row[:3] for row in EXPECTED]


@pytest.mark.parametrize("number", range(len(EXPECTED)), ids=lambda n: "-".join(EXPECTED[n][:3]))
def test_every_verdict_and_the_size_of_its_smallest_world(results, number):
    found, (*_, verdict, size) = results[number], EXPECTED[number]
    assert ("holds" if found.holds else "fails") == verdict
    assert found.worlds == 200
    if not size:
        assert found.example is None
        assert found.deviation <= 1e-9
        assert found.small_worlds > 1000
        return
    world = found.example.world
    assert (world.num_points, world.num_classes, found.example.num_exits) == size


def test_the_docs_show_these_verdicts():
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text().replace("\\|", "")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines]
    shown = [
        (definition, variant, verdict, size)
        for _, definition, variant, verdict, _, _, size in (row for row in rows if len(row) == 7)
        if verdict in ("holds", "fails")
    ]
    assert shown == [
        (definition, variant, verdict, " x ".join(map(str, size)) or "-")
        for _, definition, variant, verdict, size in EXPECTED
    ]


FOUND = [number for number, row in enumerate(EXPECTED) if row[4]]


@pytest.mark.parametrize("number", FOUND, ids=lambda n: "-".join(EXPECTED[n][:3]))
def test_smallest_worlds_are_rational_and_what_their_setting_says(results, number, by_hand):
    exits, setting = results[number].example, results[number].claim.setting
    assert all(type(value) is Fraction for value in exits.predictors.flat)
    assert sum(exits.world.p_x) == 1
    calibrated = range(1 if "swap" in setting.structure else exits.num_exits)
    for m in calibrated:
        assert by_hand.violation(exits, m, setting.definition) == 0
    if "chain" in setting.structure:
        assert by_hand.is_chain(exits)
    if setting.structure == "swap":
        assert exits.world.p_x[0] == exits.world.p_x[1]
    if "swap" in setting.structure:
        first, second = exits.predictors[:2].tolist()
        assert second[:2] == first[1::-1]
        assert by_hand.exit_groups(exits, 0)[0][:2] == [0, 1]


@pytest.mark.parametrize("number", FOUND, ids=lambda n: "-".join(EXPECTED[n][:3]))
def test_smallest_worlds_show_what_they_are_said_to_show(results, number, by_hand):
    result = results[number]
    name, definition, variant, *_ = EXPECTED[number]
    assert BY_LOOPS[name](by_hand, result.example, definition, variant) == result.holds


def _differ(by_hand, exits, definition, variant):
    return any(exits.predictors[0].tolist() != later.tolist() for later in exits.predictors[1:])


def _same(by_hand, exits, definition, variant):
    return not _differ(by_hand, exits, definition, variant)


def _swap(by_hand, exits, definition, variant):
    return by_hand.violation(exits, 1, definition) == 0


def _information(by_hand, exits, definition, variant):
    for m in range(exits.num_exits):
        excess = by_hand.excesses(exits, m, "log")
        for group in by_hand.exit_groups(exits, m):
            mean = by_hand.group_average(exits.world, group, excess)
            known = by_hand.information(exits.world, group, [[x] for x in group])
            if abs(mean - known) > 1e-9:
                return False
    return True


def _refinement(by_hand, exits, definition, variant):
    for early in range(exits.num_exits):
        for late in range(early + 1, exits.num_exits):
            lost = [
                before - after
                for before, after in zip(
                    by_hand.excesses(exits, early, "log"),
                    by_hand.excesses(exits, late, "log"),
                    strict=True,
                )
            ]
            for group in by_hand.exit_groups(exits, early):
                parts = [
                    [x for x in fine if x in group] for fine in by_hand.exit_groups(exits, late)
                ]
                known = by_hand.information(exits.world, group, [p for p in parts if p])
                if abs(by_hand.group_average(exits.world, group, lost) - known) > 1e-9:
                    return False
    return True


def _anytime(by_hand, exits, definition, variant):
    loss = "log" if variant.startswith("log") else "zero-one"
    for m in range(exits.num_exits - 1):
        now, then = (by_hand.excesses(exits, e, loss) for e in (m, m + 1))
        for group in by_hand.exit_groups(exits, m):
            mean = (by_hand.group_average(exits.world, group, values) for values in (now, then))
            before, after = mean
            if after > before + 1e-9:
                return False
    return True


def _anytime_points(by_hand, exits, definition, variant):
    table = [by_hand.excesses(exits, m, "log") for m in range(exits.num_exits)]
    return all(
        after <= before + 1e-9
        for m in range(exits.num_exits - 1)
        for before, after in zip(table[m], table[m + 1], strict=True)
    )


def _anytime_strict(by_hand, exits, definition, variant):
    everyone = range(exits.world.num_points)
    means = [
        by_hand.group_average(exits.world, everyone, by_hand.excesses(exits, m, "log"))
        for m in range(exits.num_exits)
    ]
    return all(after < before - 1e-9 for before, after in pairwise(means))


def _anytime_converse(by_hand, exits, definition, variant):
    falls = _anytime(by_hand, exits, definition, "log loss")
    falls = falls and _anytime_strict(by_hand, exits, definition, variant)
    return not falls or by_hand.is_chain(exits)


def _unbounded(by_hand, exits, definition, variant):
    """No class can get nothing: all others together cannot hold everything."""
    top = max(exits.predictors[0, 0])
    floor = 1 - (exits.world.num_classes - 1) * top
    return floor <= 0


def _controlled(by_hand, exits, definition, variant):
    for m in range(exits.num_exits):
        predicted = exits.predictors[m]
        excess = by_hand.excesses(exits, m, "zero-one")
        best = [max(row) for row in exits.world.p_y_given_x]
        for c in {max(row) for row in predicted}:
            level = [x for x, row in enumerate(predicted) if max(row) == c]
            left = by_hand.group_average(exits.world, level, excess)
            if left != by_hand.group_average(exits.world, level, best) - c:
                return False
    return True


def _product(sign):
    def holds(by_hand, exits, definition, variant):
        gaps = [
            product - joint
            for m in range(exits.num_exits)
            for product, joint in zip(
                by_hand.stops(exits, m, "product"), by_hand.stops(exits, m, "sampled"), strict=True
            )
        ]
        return all(sign * gap >= 0 for gap in gaps)

    return holds


def _monotone(by_hand, exits, definition, variant):
    reading = variant.partition(",")[0]
    for m in range(exits.num_exits - 1):
        now, then = by_hand.stops(exits, m, reading), by_hand.stops(exits, m + 1, reading)
        for group in by_hand.exit_groups(exits, m):
            before = by_hand.group_average(exits.world, group, now)
            if before > by_hand.group_average(exits.world, group, then):
                return False
    return True


def _monotone_points(by_hand, exits, definition, variant):
    table = [by_hand.stops(exits, m, variant) for m in range(exits.num_exits)]
    return all(
        before <= after
        for m in range(exits.num_exits - 1)
        for before, after in zip(table[m], table[m + 1], strict=True)
    )


def _monotone_converse(by_hand, exits, definition, variant):
    everyone = range(exits.world.num_points)
    means = [
        by_hand.group_average(exits.world, everyone, by_hand.stops(exits, m, variant))
        for m in range(exits.num_exits - 1)
    ]
    rises = all(before < after for before, after in pairwise(means))
    monotone = rises and _monotone(by_hand, exits, definition, variant)
    return not monotone or by_hand.is_chain(exits, exits.num_exits - 1)


BY_LOOPS = {
    "canonical": _same,
    "non-trivial": _differ,
    "swap": _swap,
    "information": _information,
    "refinement": _refinement,
    "anytime": _anytime,
    "anytime-pointwise": _anytime_points,
    "anytime-strict": _anytime_strict,
    "anytime-converse": _anytime_converse,
    "unbounded": _unbounded,
    "controlled": _controlled,
    "product-below": _product(+1),
    "product-above": _product(-1),
    "monotone": _monotone,
    "monotone-pointwise": _monotone_points,
    "monotone-converse": _monotone_converse,
}


def claim_of(name, definition, variant=""):
    (claim,) = [
        c
        for c in CLAIMS
        if (c.name, c.setting.definition, c.variant) == (name, definition, variant)
    ]
    return claim


def test_the_same_seed_gives_the_same_table():
    claim = claim_of("anytime", "mean", "log loss")
    one, two = (theory.check(claim, worlds=50, seed=3, tries=200) for _ in range(2))
    assert one.deviation == two.deviation
    assert str(one) == str(two)
    assert theory.check(claim, worlds=50, seed=4, tries=200).deviation != one.deviation


def test_a_shrunk_draw_cannot_be_lowered_further_and_still_breaks_the_claim():
    claim = claim_of("monotone", "mean", "argmax")
    found, _ = search(claim, tries=500)
    again = shrink(claim, found)
    assert float(again.total) == float(found.total)
    bigger = replace(found, points=found.points * 7)
    assert float(shrink(claim, bigger).total) < float(bigger.total)


def test_a_claim_that_only_infinite_sides_break_does_not_hold():
    """A class that occurs with predicted probability zero, which random floats never are."""

    def bounded(exits):
        excess = theory.excess_risk(exits.world, exits.predictors[..., 0, :, :])
        return theory.Relation(excess, np.full_like(excess, 1000.0), "<=")

    claim = replace(claim_of("information", "confidence"), statement=bounded, least=Size(1, 3, 2))
    result = theory.check(claim, worlds=50)
    assert result.deviation == 0
    assert not result.holds
    assert np.isinf(result.relation.gap).any()
    assert str(result.relation) == "inf <= 1000 is false"


def test_a_claim_about_no_world_says_so():
    nowhere = replace(CLAIMS[0], where=lambda exits: np.zeros(exits.world.p_x.shape[:-1], bool))
    with pytest.raises(ConfigError, match="found no random world that 'canonical' is about"):
        theory.check(nowhere, worlds=10)


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match="`worlds` must be at least 1, got 0"):
        theory.check(CLAIMS[0], worlds=0)
    with pytest.raises(ConfigError, match="`tries` must be at least 1, got 0"):
        theory.check(CLAIMS[0], tries=0)
    for call in (theory.random_exits, lambda seed: theory.check(CLAIMS[0], seed=seed)):
        with pytest.raises(ConfigError, match="`seed` must be an integer of at least 0, got -1"):
            call(seed=-1)
    for size in ((0, 2, 2), (4, 3)):
        with pytest.raises(
            ConfigError, match="`size` must be points, classes and exits, at least"
        ):
            theory.random_exits(size=size)
    with pytest.raises(ConfigError, match="there is no statement 'anyhow'; there are canonical,"):
        theory.check_all(["anyhow"])
    with pytest.raises(ConfigError, match="a swap needs at least two points and two exits"):
        theory.random_exits(0, theory.Setting("mean", "swap"), Size(1, 2, 2))
    with pytest.raises(ConfigError, match=r"found no world of .* for .*: try a larger one"):
        theory.random_exits(0, theory.Setting("exact", "strict chain"), Size(1, 2, 2))


def test_progress_names_what_is_being_checked():
    reported = []

    class Reported(Progress):
        def step(self, *call):
            reported.append(call)

    theory.check_all(["floor"], worlds=20, progress=Reported())
    assert reported == [(0, 1, "floor, confidence")]


def test_a_described_world_can_be_typed_in_again():
    pair = theory.calibrated_but_worse()
    rows = [line.split() for line in str(pair.calibrated).splitlines()[1:]]
    p_x = [Fraction(row[1]) for row in rows]
    again = World(p_x, [[Fraction(value) for value in row[2:4]] for row in rows])
    assert again.p_y_given_x.tolist() == pair.calibrated.world.p_y_given_x.tolist()
    predicted = [[Fraction(value) for value in row[4:6]] for row in rows]
    assert predicted == pair.calibrated.predictors[0].tolist()


@pytest.fixture(scope="module")
def few_results():
    chosen = [claim for claim in CLAIMS if claim.name in ("canonical", "non-trivial")]
    return [theory.check(claim, worlds=20, tries=500) for claim in chosen]


def test_the_table_has_a_row_per_claim_and_names_a_statement_once(few_results):
    rendered = theory.claims_table(few_results)
    assert len(rendered.rows) == 6
    titles = [row[0].text for row in rendered.rows]
    assert titles[0].startswith("canonical: ")
    assert titles[1:3] == ["", ""]
    assert [row[3].text for row in rendered.rows][:4] == ["holds", "holds", "fails", "fails"]
    assert [row[3].bold for row in rendered.rows][:4] == [False, False, True, True]
    assert rendered.rows[3][5].text == "-"  # that something exists has no deviation


def test_a_result_says_whether_its_example_shows_a_failure_or_existence(few_results):
    shown = [str(result) for result in few_results if result.example is not None]
    assert len(shown) == 4
    assert str(few_results[0]) == "canonically calibrated exits are identical (exact) holds"
    assert "(confidence) fails:" in shown[0]
    assert "(exact) fails:" in shown[1]
    assert "(mean) holds, for example:" in shown[2]
    assert shown[2].endswith("is true")
    assert shown[0].endswith("is false")


def test_the_counterexamples_are_shown_with_what_they_cost():
    growing, worse = counterexample_texts()
    assert "mean excess risk: 0.0000, then 0.4621" in growing
    assert "calibrated network, thresholds on its confidence: accuracy 3/5 at cost 1" in worse
    assert worse.count("accuracy 4/5 at cost 8/5") == 2
    assert worse.count("accuracy 4/5 at cost 2") == 1
