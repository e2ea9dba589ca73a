"""Intervals and tables by hand, and numbers that stay as they are from version to version."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from offramp import Costs, Ledger, MaxProbability, Method, Policy, compare, evaluate
from offramp.evaluation.bootstrap import Interval, Resamples, auroc_shares, difference
from offramp.evaluation.columns import Column
from offramp.evaluation.compare import _figure
from offramp.evaluation.diagnostics import Reliability, ScoreHistograms, score_histograms
from offramp.evaluation.pairs import pair_envelope, upper_hull
from offramp.evaluation.references import best_mix, references
from offramp.evaluation.results import Figure


def test_an_interval_is_two_standard_errors_wide_on_both_sides():
    gap = Interval.around(0.5, 0.1)
    assert (gap.low, gap.high) == pytest.approx((0.5 - 0.1959964, 0.5 + 0.1959964))
    ends = [(0.2, True), (0.19, False), (-0.19, False), (-0.2, True)]
    assert all(Interval.around(value, 0.1).is_clear is clear for value, clear in ends)
    assert not Interval.around(0.2, 0.1, negligible=0.005).is_clear
    assert not Interval.around(-0.2, 0.1, negligible=0.005).is_clear
    resampled = np.array([0.1, 0.2, 0.6])  # of variance 0.07
    gap = difference(0.3, resampled, unseen=0.02)
    assert gap.high - 0.3 == pytest.approx(1.959964 * 0.3)


def test_resamples_are_draws_with_replacement():
    draws = Resamples(50, 400, seed=3)
    counts = draws.weights * 50
    np.testing.assert_allclose(counts, counts.round(), atol=1e-5)
    np.testing.assert_allclose(draws.weights.sum(axis=1), 1, atol=1e-5)
    # A sample is missing from a resample with probability (1 - 1/50)^50 = 0.364.
    assert (counts < 0.5).mean() == pytest.approx(0.364, abs=0.01)
    assert counts.var(axis=0).mean() == pytest.approx(0.98, abs=0.05)
    groups = np.array([0, 0, 0, 1, 2, 2])
    whole = Resamples(6, 300, groups=groups).weights
    np.testing.assert_array_equal(whole[:, [0, 4]], whole[:, [1, 5]])
    np.testing.assert_allclose(whole.sum(axis=1), 1, atol=1e-5)
    assert (whole[:, 3] == 0).mean() == pytest.approx((2 / 3) ** 3, abs=0.08)
    np.testing.assert_array_equal(Resamples(50, 2, seed=3).weights, draws.weights[:2])


def test_shares_of_an_auroc_have_the_variance_of_delong():
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 9, 40).astype(float)  # with ties
    targets = generator.random(40) < 0.3 + 0.05 * scores
    area, shares = auroc_shares(scores, targets)
    assert area == pytest.approx(roc_auc_score(targets, scores))
    pairs = (scores[targets][:, None] > scores[~targets]) + 0.5 * (
        scores[targets][:, None] == scores[~targets]
    )
    of_positives, of_negatives = pairs.mean(axis=1), pairs.mean(axis=0)
    delong = of_positives.var(ddof=1) / targets.sum() + of_negatives.var(ddof=1) / (~targets).sum()
    assert (shares**2).sum() / 40**2 == pytest.approx(delong)
    assert shares.sum() == pytest.approx(0)
    # A positive sample that is above more of the others than most are pulls the area up.
    assert (np.sign(shares[targets]) == np.sign(of_positives - area)).all()
    assert (np.sign(shares[~targets]) == np.sign(of_negatives - area)).all()
    single, alone = auroc_shares(np.array([1.0, 3.0, 2.0]), np.array([True, False, False]))
    assert single == 0 and np.isfinite(alone).all()


@pytest.fixture(scope="module")
def waves():
    """Three ledgers of 40 samples, 4 exits and 5 classes that a formula makes."""

    def ledger(split, start):
        number = np.arange(start, start + 800.0).reshape(40, 4, 5)
        labels = (np.arange(40) * 7 + start) % 5
        known = np.eye(5)[labels][:, None] * (np.arange(4)[:, None] + 0.3)
        seen = np.sin(number[:, :1, :1] * 0.37) > -0.5  # the others are hopeless
        costs = Costs((2.0, 3, 4, 5), (0.5, 0.5, 0.5, 0.1), unit="relative")
        logits = (2 * np.sin(number * 1.3) + 1.5 * known * seen).astype(np.float32)
        return Ledger(logits, labels, costs, split=split, network="waves")

    return {split: ledger(split, 1000 * n) for n, split in enumerate(("held_out", "val", "test"))}


@pytest.fixture(scope="module")
def table(waves):
    class Few(Method):
        """The same without exit 1."""

        def plans(self, held_out, val, budgets, seeds, fits=None):
            kept = (each.keep_exits([0, 2, 3]) for each in (held_out, val))
            return [replace(p, exits=[0, 2, 3]) for p in super().plans(*kept, budgets, seeds)]

    methods = ["baseline", "margin:smooth", Few("few", "Few")]
    return compare(**waves, methods=methods, budgets=[0.3, 0.6], resamples=40, progress=False)


def digest(values):
    """Its shape, and a mean of all that is finite in which every place has a weight of its own."""
    values = np.asarray(values, dtype=float)
    finite = np.where(np.isfinite(values), values, -7.0).ravel()
    return [*values.shape, np.average(finite, weights=np.arange(1.0, finite.size + 1))]


FIGURES = {
    "baseline": [0.391364, 0.663652, 0.302156, 0.794363, 0.180648],
    "margin:smooth": [0.35, 0.65, float("nan"), 0.728706, 0.180648],
    "few": [0.365333, 0.6, 0.311233, 0.787698, 0.180648],
}
DIFFERENCES = {
    ("margin:smooth", "accuracy@0.3"): (-0.041364, -0.137764, 0.055037),
    ("margin:smooth", "accuracy@0.6"): (-0.013652, -0.095431, 0.068126),
    ("margin:smooth", "eefp"): (-0.065657, -0.100075, -0.031238),
    ("few", "accuracy@0.3"): (-0.02603, -0.106885, 0.054825),
    ("few", "accuracy@0.6"): (-0.063652, -0.180446, 0.053141),
    ("few", "ece"): (0.009077, -0.032074, 0.050228),
    ("few", "eefp"): (-0.006665, -0.049511, 0.036182),
}
PARTS = {
    "baseline": [
        [
            (100, 0.67),
            (100, 104.558218),
            (100, 0.665532),
            (100, 0.62929),
            (100, 0.618782),
            (100, 4, 0.24946),
            (100, 3, 0.159946),
            (100, 3, 0.626997),
            (100, 0.67256),
            (100, 4, 0.176579),
            (100, 4, 0.001614),
        ],
        [(4, 15, 0.722832), (4, 15, 0.64745), (4, 15, 2.655738)],
        [(3, 41, 1.547829), (3, 40, 0.69449), (3, 40, 0.215702)],
        [(4, 0.58), (4, 0.2371), (4, -2.28958), (4, 1.25905), (4, 0.129813)],
    ],
    "few": [
        [
            (100, 0.67),
            (100, 108.460198),
            (100, 0.665577),
            (100, 0.643573),
            (100, 0.59405),
            (100, 4, 0.249535),
            (100, 3, -2.190812),
            (100, 3, -1.919591),
            (100, 0.685137),
            (100, 4, 0.159762),
            (100, 4, 0.002121),
        ],
        [(4, 15, -0.717573), (4, 15, -0.763388), (4, 15, 2.155738)],
        [(3, 41, 1.345397), (3, 40, 0.485537), (3, 40, 0.124105)],
        [(4, -0.905), (4, -1.2197), (4, -3.851118), (4, -0.458883), (4, -1.313125)],
    ],
}
REFERENCES = {
    "fixed": (4.0, 2.0, 0.655068),
    "best_fixed": (2.0, 2.0, 0.341489),
    "mixes": (2.0, 2.0, 0.495091),
    "reachable": (2.0, 2.0, 0.558904),
    "reachable_curve": (83.0, 2.0, 0.628521),
    "oracle": (2.0, 2.0, 0.5875),
    "oracle_curve": (83.0, 2.0, 0.74122),
}


def test_a_comparison_is_the_same_as_ever(table):
    for name, expected in FIGURES.items():
        figures = table[name].figures
        found = [figures[column.key].value for column in table.columns]
        assert found == pytest.approx(expected, abs=1e-5, nan_ok=True), name
        marks = [figures[column.key].among_best for column in table.columns]
        assert marks == [True, True, name != "margin:smooth", name != "margin:smooth", False]
    for (name, key), expected in DIFFERENCES.items():
        gap = table[name].differences["baseline"][key]
        assert (gap.value, gap.low, gap.high) == pytest.approx(expected, abs=1e-5), (name, key)
    for name, every in PARTS.items():
        found = table[name].diagnostics
        parts = [found.points, found.reliability, found.histograms, table[name].exits[0]]
        for part, expected in zip(parts, every, strict=True):
            for (key, values), place in zip(vars(part).items(), expected, strict=True):
                assert digest(values) == pytest.approx(list(place), abs=1e-5), (name, key)
        assert found.hopeless_count == 9
    for name, expected in REFERENCES.items():
        rows = getattr(table.references, name)
        found = [(row.accuracy, row.cost) for row in rows]
        assert digest(found) == pytest.approx(expected, abs=1e-5), name
    assert table.references.hopeless_share == 9 / 40
    assert [mix.exits for mix in table.references.mixes] == [(0, 1), (1, 3)]


def test_a_figure_is_the_mean_over_seeds_with_its_standard_deviation():
    column = Column("k", "K", measure=lambda run: run)
    assert _figure(column, [1.0, 3.0]) == Figure(2.0, pytest.approx(2**0.5))
    assert _figure(column, [1.0, 2.0, 6.0]) == Figure(3.0, pytest.approx(7**0.5))
    assert _figure(column, [4.0]) == Figure(4.0, None)
    assert _figure(replace(column, varies=False), [1.0, 3.0]) == Figure(1.0, None)


def test_bins_of_kept_exits_keep_their_place():
    parts = np.array([[0.25, 0.5], [0.75, 1.0]]), np.array([[0.0, 1.0], [0.5, 1.0]])
    found = Reliability(*parts, np.array([[3, 4], [5, 6]])).among([0, 2], 3)
    for values, given in zip((found.stated, found.right), parts, strict=True):
        np.testing.assert_array_equal(values, [given[0], [np.nan, np.nan], given[1]])
    assert found.counts.tolist() == [[3, 4], [0, 0], [5, 6]]
    edges, counts = np.array([[0.0, 1.0, 2.0]]), np.array([[1, 2]])
    found = ScoreHistograms(edges, counts, 2 * counts).among([1, 2], 3)
    assert found.edges.tolist() == [[0, 0.5, 1], [0, 1, 2]]
    assert (found.stop.tolist(), found.go.tolist()) == ([[0, 0], [1, 2]], [[0, 0], [2, 4]])


def test_exits_where_all_should_stop_have_no_part_in_the_resampled_eefp():
    @dataclass
    class Some:
        scores: np.ndarray
        stop_targets: np.ndarray

    scores = np.array([[3.0, 1, 0], [1, 2, 0], [2, 3, 0], [0, 4, 0]])
    targets = np.array([[1, 1, 1], [0, 1, 1], [1, 1, 1], [0, 1, 1]], dtype=bool)
    draws = Resamples(4, 3)
    assert draws.eefp(Some(scores, targets)).tolist() == pytest.approx([1.0] * 3)
    every = np.ones((4, 3), dtype=bool)
    np.testing.assert_array_equal(draws.eefp(Some(scores, every)), [np.nan] * 3)


def test_the_share_of_what_is_reachable_is_counted_from_the_baseline(table):
    few, base, reached = 0.6, 0.663652, table.references.reachable[1].accuracy
    found = table.reachable_share("few", 0.6)
    assert found == pytest.approx((few - base) / (reached - base), abs=1e-4)
    assert table.reachable_share("baseline", 0.6) == 0


@pytest.fixture(scope="module")
def answers():
    """Three splits of answers of three models, of which only right or wrong is known."""
    number = np.arange(360.0).reshape(120, 3)
    correct = np.sin(number * 1.9) < np.array([-0.2, 0.2, 0.6])
    odds = 1.5 * (correct - 0.5) + np.sin(number * 2.7) + np.array([0, 0.2, 0.4])
    ledger = Ledger.from_answers(
        confidence=1 / (1 + np.exp(-odds)),
        correct=correct,
        costs=Costs.of_members(np.array([1.0, 2.0, 5.0]), "dollars"),
        split="all",
        network="three",
    )
    rows = np.arange(120)
    return {
        s: ledger.take(rows[n::3]).as_split(s) for n, s in enumerate(("held_out", "val", "test"))
    }


def test_an_outcome_of_answers_counts_who_was_sure_and_who_gave_up(answers):
    policy = Policy(MaxProbability()).fit(answers["held_out"]).tune(answers["val"])
    policy = policy.at_point(0)
    test = answers["test"]
    outcome, replay = evaluate(policy, test), policy.replay(test)
    sure, gave_up, lost = 0, 0, 0
    for row in range(40):
        scores, right = replay.scores[row].tolist(), test.labels[row].tolist()
        stop = next(m for m in range(3) if m == 2 or scores[m] >= float(policy.thresholds[m]))
        if stop < 2:
            hopeless = float(replay.confidences[row, stop]) < 0.5
            sure, gave_up = sure + (not hopeless), gave_up + hopeless
            lost += hopeless and right[2] and not right[stop]
    shares = outcome.sure_share, outcome.gave_up_share, outcome.gave_up_loss
    assert shares == pytest.approx((sure / 40, gave_up / 40, lost / 40))
    assert sure > 0 and gave_up > 0
    assert f"stopped early: {sure / 40:.1%} sure, {gave_up / 40:.1%} as hopeless" in str(outcome)


def test_what_is_reachable_without_logits_is_the_same_as_ever(answers):
    rows = references(answers["val"], answers["test"], [0.2, 0.4, 0.7])
    found = [(row.accuracy, row.cost) for row in rows.reachable]
    expected = [(0.45, 0.2), (0.74642857, 0.4), (0.875, 0.64)]
    assert found == [pytest.approx(pair) for pair in expected]
    assert all(a.accuracy <= b.accuracy for a, b in zip(rows.reachable, rows.oracle, strict=True))


def test_a_hull_leaves_out_what_lies_on_or_below_a_line():
    costs = np.array([3.0, 1.0, 2.0, 1.0, 4.0, 5.0])
    accuracies = np.array([0.75, 0.25, 0.5, 0.125, 0.875, 0.875])
    assert upper_hull(costs, accuracies) == [1, 0, 4]  # the third is on the line of two others
    assert upper_hull(costs[:1], accuracies[:1]) == [0]
    for parts in range(1, 50):  # whatever rounding makes of a line
        line = np.array([98.0, 106.0, 110.0]) / parts, np.array([42.0, 44.0, 45.0]) / parts
        assert upper_hull(*line) == [0, 2]


def test_the_best_mix_spends_the_whole_budget_on_two_exits():
    assert best_mix([0.2, 0.5, 1.0], [0.1, 0.3, 0.9], 0.6) == (0, 2, pytest.approx(0.5))
    assert best_mix([0.2, 0.5, 1.0], [0.1, 0.8, 0.9], 0.6) == (1, 2, pytest.approx(0.2))
    assert best_mix([0.2, 0.5, 1.0], [0.1, 0.8, 0.7], 0.6) == (1, 1, 0.0)
    first, _, share = best_mix([0.2, 0.5, 1.0], [0.1, 0.8, 0.7], 0.1)
    assert (first, share) == (0, 0)  # no exit is that cheap


def test_outer_bins_of_a_histogram_hold_what_lies_beyond_them():
    scores = np.concatenate([[-100.0], np.linspace(0, 1, 998), [100.0]])[:, None]
    found = score_histograms(scores, scores > 0.5, bins=10)
    assert found.edges[0, [0, -1]] == pytest.approx([0.004, 0.996], abs=2e-3)
    assert (found.stop + found.go)[0].tolist() == pytest.approx([100] * 10, abs=6)


def test_corners_of_an_envelope_keep_their_pairs(answers):
    envelope = pair_envelope([answers["held_out"], answers["val"]], answers["test"])
    mix = envelope.at(0.5)
    assert mix.pairs == ((0, 1), (0, 2))
    assert (mix.share, mix.cost, mix.accuracy) == pytest.approx((0.62962963, 0.5, 0.76296296))
    limits = [corner.threshold for corner in envelope.corners[-3:]]
    assert limits == pytest.approx([-0.48903757, -0.26262228, 0.24239063])
    assert (len(envelope.corners), envelope.corners[0].stages) == (8, (0,))
