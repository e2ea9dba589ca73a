"""Intervals, resamples and references by hand."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from offramp import Costs, Ledger, MaxProbability, Policy, evaluate
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


def test_what_is_reachable_without_logits(answers):
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
