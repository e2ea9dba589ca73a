"""Costs that differ from sample to sample, samples that end early, and groups."""

import numpy as np
import pytest

from offramp import Costs, Ledger, MaxProbability, Policy, compare, evaluate, synthetic
from offramp.errors import ConfigError, LedgerError, SplitError
from offramp.evaluation.bootstrap import Resamples
from offramp.guarantees import Guarantee, certify
from offramp.registry import THRESHOLDS
from offramp.scorers import BreakEven, Corrector, LogisticCorrector
from offramp.targets import oracle_accuracies
from offramp.thresholds import exits_taken
from offramp.thresholds.tuning import ScoredSamples, tune_points


def varied(ledger, seed=0):
    """The ledger with costs that differ: stages of 1 to 9 tokens."""
    steps = np.random.default_rng(seed).integers(1, 10, (len(ledger), ledger.num_exits))
    costs = Costs.from_cumulative(steps.cumsum(axis=1), "tokens")
    return ledger.with_costs(costs)


@pytest.fixture(scope="module")
def tokens():
    made = synthetic.ledgers(seed=0, samples=300, exits=4, classes=8)
    return {name: varied(ledger, number) for number, (name, ledger) in enumerate(made.items())}


def test_costs_by_sample_are_what_the_hand_calculates(tokens):
    policy = Policy(MaxProbability()).fit(tokens["held_out"]).tune(tokens["val"]).at(budget=0.5)
    replay, test = policy.replay(tokens["test"]), tokens["test"]
    table = test.cost_model.cumulative
    paid = np.array([table[n, m] for n, m in enumerate(policy.decide(test).tolist())])
    assert np.allclose(replay.costs * table[:, -1].mean(), paid)
    assert evaluate(policy, test).mean_cost == pytest.approx(paid.mean() / table[:, -1].mean())
    points = policy.points
    val = tokens["val"].cost_model.cumulative
    exits = exits_taken(policy.replay(tokens["val"], "val", "val").scores, points.thresholds)
    by_hand = [val[np.arange(len(val)), row].mean() / val[:, -1].mean() for row in exits]
    assert np.allclose(points.budgets, by_hand)
    assert points.budgets[policy.selected] <= 0.5


@pytest.mark.parametrize("method", THRESHOLDS)
def test_thresholds_are_the_same_for_equal_costs_of_all_samples(tokens, method):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(120, 4)).astype(np.float32)
    correct = rng.random((120, 4)) < 0.6
    costs = np.array([0.1, 0.4, 0.7, 1.0])
    plain, table = (
        tune_points(ScoredSamples(scores, correct, each), 0.6, method, 21)
        for each in (costs, np.tile(costs, (120, 1)))
    )
    assert np.array_equal(plain.thresholds, table.thresholds)
    assert np.allclose(plain.budgets, table.budgets)


def test_smooth_thresholds_prefer_samples_that_are_dear_to_go_on_with():
    scores = np.zeros((4, 2), dtype=np.float32)
    scores[:, 0] = [4.0, 3.0, 2.0, 1.0]
    correct = np.array([[False, True]] * 4)
    costs = np.array([[1.0, 101.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]) / 26.75
    points = tune_points(ScoredSamples(scores, correct, costs), 1.0, points=11)
    taken = exits_taken(scores, points.thresholds[points.for_budget(0.2)])
    assert taken.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("scorer", [BreakEven(), LogisticCorrector(), Corrector(epochs=1)])
def test_scorers_fit_with_costs_by_sample(tokens, scorer):
    policy = Policy(scorer).fit(tokens["held_out"]).tune(tokens["val"], "shared")
    assert evaluate(policy.at(budget=0.6), tokens["test"]).mean_cost == pytest.approx(0.6, abs=0.1)


def test_saved_ledgers_keep_costs_groups_and_lengths(tokens, tmp_path):
    test = tokens["test"]
    lengths = np.arange(len(test)) % test.num_exits + 1
    ledger = Ledger(
        test.logits,
        test.labels,
        test.cost_model.cumulative,
        split="test",
        groups=[f"q{n // 3}" for n in range(len(test))],
        lengths=lengths,
    )
    read = Ledger.load(ledger.save(tmp_path / "ledger"))
    assert np.array_equal(read.cost_model.cumulative, ledger.cost_model.cumulative)
    assert read.groups == ledger.groups
    assert np.array_equal(read.lengths, lengths)
    assert read.cost_model == ledger.cost_model


def test_npz_may_hold_costs_by_sample_groups_and_lengths(tmp_path):
    logits = np.random.default_rng(0).normal(size=(6, 3, 4)).astype(np.float32)
    costs = np.arange(1, 19).reshape(6, 3)
    np.savez(
        tmp_path / "all.npz",
        logits=logits,
        labels=np.zeros(6, int),
        costs=costs,
        unit="tokens",
        groups=np.array(list("aabbcc")),
        lengths=np.array([3, 3, 2, 3, 3, 3]),
    )
    ledger = Ledger.load(tmp_path / "all.npz", split="all")
    assert ledger.unit == "tokens"
    assert ledger.num_units == 3
    assert ledger.cost_model.cumulative[2].tolist() == [7, 8, 8]


def test_keeping_models_of_a_cascade_drops_what_the_others_cost():
    costs = Costs.of_members([[1.0, 4.0, 10.0], [3.0, 6.0, 20.0]], "dollars")
    ledger = Ledger(np.zeros((2, 3, 4)), [0, 1], costs, split="test")
    assert ledger.costs.tolist() == [2, 7, 22]
    assert ledger.reference_cost == 15
    kept = ledger.keep_exits([0, 2])
    assert kept.cost_model.cumulative.tolist() == [[1, 11], [3, 23]]
    assert kept.reference_cost == 15
    assert ledger.take([0]).reference_cost == 10
    assert Costs.of_members([1, 4, 10], "dollars").keep([0, 2]).cumulative.tolist() == [1, 11]
    network_first = Costs(
        [[4.0, 6.0, 0.0]],
        [[1.0, 1.0, 50.0]],
        [50.0],
    )
    assert network_first.keep([0, 2]).cumulative.tolist() == [[5, 55]]
    assert network_first.keep([1, 2]).cumulative.tolist() == [[11, 61]]
    assert network_first.mean().alone.tolist() == [5, 11, 50]
    two_networks = Costs(
        [[4.0, 6.0, 30.0, 50.0]],
        [[1.0, 2.0, 5.0, 7.0]],
        [87.0],
        starts=(2,),
    )
    assert two_networks.mean().alone.tolist() == [5, 12, 35, 87]
    kept = two_networks.keep([1, 3])
    assert kept.cumulative.tolist() == [[12, 99]] and kept.starts == (1,)
    assert kept.take(np.array([0])).mean().alone.tolist() == [12, 87]


def test_a_sample_that_ends_keeps_its_answer_and_its_cost():
    logits = np.zeros((2, 3, 2))
    logits[:, 0, 0], logits[:, 1:, 1] = 2, 2  # class 0, then 1
    costs = [[1.0, 2.0, 4.0]] * 2
    ledger = Ledger(logits, [1, 1], costs, split="test", lengths=[1, 3])
    assert ledger.logits[0].argmax(1).tolist() == [0, 0, 0]
    assert ledger.cost_model.cumulative.tolist() == [[1, 1, 1], [1, 2, 4]]
    assert ledger.reference_cost == 2.5
    assert ledger.keep_exits([1, 2]).lengths.tolist() == [1, 2]
    same = Ledger(logits, [1, 1], [1.0, 2.0, 4.0], split="test", lengths=[1, 3])
    assert same.cost_model == ledger.cost_model


@pytest.mark.parametrize("scorer", [MaxProbability(), LogisticCorrector(), Corrector(epochs=1)])
def test_no_sample_goes_on_after_its_end(splits, scorer):
    def ending(ledger):
        lengths = np.arange(len(ledger)) % ledger.num_exits + 1
        costs = np.tile(ledger.costs, (len(ledger), 1))
        return Ledger(
            ledger.logits,
            ledger.labels,
            costs,
            split=ledger.split,
            sample_ids=ledger.sample_ids,
            network=ledger.network,
            lengths=lengths,
        )

    held_out, val, test = map(ending, splits.values())
    policy = Policy(scorer).fit(held_out).tune(val).at(budget=0.7)
    replay = policy.replay(test)
    assert (replay.exits < test.lengths).all()
    assert (policy.decide(test) < test.lengths).all()
    assert np.array_equal(replay.exits, policy.decide(test))


def grouped(ledger, size=5):
    """Groups of samples that are copies of each other: no more than one of them counts."""
    rows = np.arange(0, len(ledger), size).repeat(size)
    part = ledger.take(rows)
    return Ledger(
        part.logits,
        part.labels,
        ledger.cost_model,
        split=ledger.split,
        network=ledger.network,
        groups=[f"{ledger.split}-{row}" for row in rows.tolist()],
    )


def test_partition_keeps_groups_whole(splits):
    ledger = grouped(splits["test"]).as_split("all")
    pieces = ledger.partition(seed=3)
    names = [set(piece.groups) for piece in pieces]
    assert len(set.union(*names)) == sum(map(len, names))
    assert sum(map(len, pieces)) == len(ledger)


def test_a_group_in_two_splits_is_refused(splits):
    held_out, val = grouped(splits["held_out"]), grouped(splits["val"])
    val.groups = [*held_out.groups[:5], *val.groups[5:]]
    policy = Policy(MaxProbability()).fit(held_out)
    with pytest.raises(SplitError, match="already used to fit"):
        policy.tune(val)


def test_resamples_of_groups_are_as_wide_as_those_of_one_sample_each():
    right = (np.arange(60) % 3 == 0).astype(float)
    single = Resamples(60, 400).means(right[:, None]).std()
    copies = np.arange(60).repeat(5)
    together = Resamples(300, 400, groups=copies).means(right[copies][:, None]).std()
    apart = Resamples(300, 400).means(right[copies][:, None]).std()
    assert together == pytest.approx(float(single), rel=0.15)
    assert apart < 0.6 * together


def test_certificates_count_groups(splits):
    held_out, val = grouped(splits["held_out"]), grouped(splits["val"])
    policy = Policy(MaxProbability()).fit(held_out)
    policy.tune(held_out, "geometric", allow_split="held_out")
    found = certify(policy, val, Guarantee(epsilon=0.2))
    assert found.samples == val.num_units == 120


def test_certified_budgets_need_the_largest_cost_where_samples_differ(tokens):
    policy = Policy(MaxProbability()).fit(tokens["held_out"])
    policy.tune(tokens["held_out"], "geometric", allow_split="held_out")
    with pytest.raises(ConfigError, match=r"--largest-cost, in tokens"):
        certify(policy, tokens["val"], Guarantee(budget=0.7))
    with pytest.raises(ConfigError, match="and one of this sample costs"):
        certify(policy, tokens["val"], Guarantee(budget=0.7, largest_cost=3))
    found = certify(policy, tokens["val"], Guarantee(budget=0.7, largest_cost=36))
    assert found.cost < found.cost_bound <= 0.7
    reference = tokens["held_out"].reference_cost
    table = tokens["val"].cost_model.cumulative
    paid = table[range(300), found.policy.decide(tokens["val"])].mean()
    assert found.cost == pytest.approx(float(paid) / reference)


def test_compare_takes_costs_by_sample_and_groups(tokens):
    table = compare(**tokens, methods=["baseline", "margin"], budgets=[0.5], resamples=50)
    curve = table["baseline"].curves[0]
    assert curve.at(0.5).cost == pytest.approx(0.5)
    oracle = oracle_accuracies(
        tokens["test"].logits.argmax(2) == tokens["test"].labels[:, None],
        tokens["test"].cost_model.cumulative / tokens["test"].reference_cost,
        np.array([0.5]),
    )
    assert table.references.oracle[0].accuracy == pytest.approx(oracle.item())
    assert table["baseline"].accuracy(0.5) < table.references.oracle[0].accuracy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"costs": [[1.0, 2.0], [3.0, 2.5]]}, "not fall .* got 2.5 at sample 1, exit 1"),
        ({"costs": [[1.0, 2.0]]}, "costs for the 2 samples, got them for 1"),
        ({"costs": [[1.0, 2.0], [1.0, float("nan")]]}, "finite, got nan at sample 1, exit 1"),
        ({"groups": ["a"]}, "`groups` must name the 2 samples, got 1"),
        ({"groups": ["a", 1]}, "`groups` must be all integers or all strings"),
        ({"lengths": [0, 2]}, r"`lengths` must lie in 1..2, got 0 at sample 0"),
        ({"lengths": [1.5, 2]}, "`lengths` must be 2 whole numbers"),
    ],
)
def test_bad_tables_are_refused_in_words(changes, message):
    arguments = {"costs": [[1.0, 2.0], [2.0, 3.0]], "split": "test", **changes}
    with pytest.raises(LedgerError, match=message):
        Ledger(np.zeros((2, 2, 3)), [0, 1], **arguments)


def test_chains_of_any_length_are_cut_compared_and_chosen_for():
    """Only two chains reach the last stages, and not every part has one of them."""
    rng, rows = np.random.default_rng(0), []
    for number in range(160):
        length = 7 if number < 2 else int(rng.integers(1, 5))
        rows.append(rng.integers(0, 3, length).tolist())
    ledger = Ledger.from_answers(
        rows,
        confidence=[rng.random(len(row)).tolist() for row in rows],
        labels=[0] * len(rows),
        costs=[np.arange(1.0, len(row) + 1).tolist() for row in rows],
        unit="tokens",
        split="all",
        network="made up",
    )
    for seed in range(3):
        parts = ledger.partition(seed=seed)
        assert not any(part.cost_model.is_cascade for part in parts)
        table = compare(*parts, ["baseline:smooth", "auto"], [0.5], resamples=2, progress=False)
        assert 0 < table["auto"].accuracy(0.5) < 1
