"""Costs of exits: what is kept, what ends early, and the same in batches that shrink."""

import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offramp.batch_times import OCCUPANCY, BatchTimes, seconds_left
from offramp.costs import Costs, kept_stages
from offramp.errors import LedgerError


@st.composite
def chains(draw):
    """Costs of networks that start afresh at some exits, and some of their exits."""
    count = draw(st.integers(2, 5))
    cost = st.integers(1, 9)
    stages, heads = (draw(st.lists(cost, min_size=count, max_size=count)) for _ in range(2))
    starts = draw(st.sets(st.integers(1, count - 1)))
    exits = draw(st.sets(st.integers(0, count - 1), min_size=1))
    entry = draw(st.integers(0, 3))
    return Costs(stages, heads, 0.0, "seconds", sorted(starts), float(entry)), sorted(exits)


@given(chains())
def test_batches_that_do_not_shrink_cost_what_is_kept(chain):
    costs, exits = chain
    kept = BatchTimes.proportional(costs).keep(exits)
    assert kept.costs == costs.keep(exits)
    assert BatchTimes.from_json(kept.to_json()).costs == kept.costs


@given(chains(), st.data())
def test_exits_that_are_kept_in_two_steps_cost_what_they_cost_in_one(chain, data):
    costs, exits = chain
    first = costs.keep(exits)
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(exits))), min_size=1)))
    assert first.keep(chosen) == costs.keep([exits[number] for number in chosen])


def test_a_later_network_that_becomes_the_first_pays_the_entry():
    costs = Costs([4, 6, 5], [1, 1, 2], starts=[1], entry=3.0, unit="seconds")
    assert costs.alone.tolist() == [5, 10, 16]
    assert costs.keep([1, 2]).cumulative.tolist() == [10, 17]
    assert costs.keep([0, 2]).cumulative.tolist() == [5, 18]
    assert costs.keep([2]).cumulative.tolist() == [16]


def test_what_stays_when_the_last_exit_goes_is_not_the_network_without_exits():
    costs = Costs([4, 6], [1, 2], reference=9)
    assert costs.alone.tolist() == [5, 9]
    cut = costs.keep([0])
    assert cut.cut
    assert (cut.alone.tolist(), cut.mean_reference) == ([5], 9)
    assert costs.keep([1]).cumulative.tolist() == [9]
    assert BatchTimes.proportional(cut).costs.alone.tolist() == [5]


def test_a_sample_pays_nothing_after_its_end():
    costs = Costs([[2, 3, 3], [4, 5, 6]], [[1, 1, 3], [1, 1, 1]], unit="tokens")
    ended = costs.until(np.array([2, 3]))
    assert ended.cumulative.tolist() == [[3, 7, 7], [5, 11, 18]]
    # who goes to the end pays the reference as stated, which has no heads on the way
    assert ended.reference.tolist() == [7, 16]
    same = Costs([2, 3, 3], [1, 1, 3]).until(np.array([2, 3]))
    assert same.cumulative.tolist() == [[3, 7, 7], [3, 7, 13]]


def test_what_a_sample_would_have_paid_after_its_end_is_left_out_of_its_reference():
    stages, heads = [[2.0, 3.0]], [[1.0, 3.0]]  # equal at the end: only their sum shows it
    ended = Costs(stages, heads, reference=[5.0], unit="tokens").until(np.array([1]))
    assert ended.reference.tolist() == [3]


@pytest.mark.parametrize("costs", [[1, None], ["1", "2"], [[1], [1, 2]], None, "abc"])
def test_what_is_no_number_is_refused(costs):
    with pytest.raises(LedgerError, match="`costs` must be a list of numbers or a table"):
        Costs.from_cumulative(costs)


def test_tensors_are_taken_and_arrays_kept():
    torch = pytest.importorskip("torch")
    parts = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.5])
    costs = Costs(*parts, reference=torch.tensor(3.5))
    assert all(part.dtype == np.float64 for part in (costs.stages, costs.heads, costs.reference))
    assert costs == Costs([1, 2], [0.5, 0.5], 3.5)
    times = BatchTimes(*(part[:, None] for part in parts), reference=3.5)
    assert times.costs.cumulative.tolist() == [1.5, 4.0]


def test_arrays_are_taken_while_another_thread_imports_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert Costs([1, 2], np.zeros(2)).cumulative.tolist() == [1, 3]


def test_costs_differ_where_any_part_differs():
    costs = Costs([4, 6], [1, 2], 9, "macs", [], 1.0)
    for change in (
        {"stages": [4, 7]},
        {"heads": [1, 3]},
        {"reference": 10},
        {"unit": "tokens"},
        {"starts": [1]},
        {"entry": 2.0},
        {"cut": True},
    ):
        values = {"stages": [4, 6], "heads": [1, 2], "reference": 9, "entry": 1.0} | change
        assert costs != Costs(**values)
        assert Costs(**Costs(**values).to_json()) == Costs(**values)
    assert costs != 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Costs([0, -1], [1, 2]), "got -1 for the stage of exit 1"),
        (
            lambda: Costs.of_members([[-0.1, 1.0]], "dollars"),
            "must not be negative, got -0.1 for sample 0, model 0$",
        ),
        (lambda: Costs([0, 1], [3, -2]), "got -2 for the head of exit 1"),
        (lambda: Costs([[0, 1], [1, -3]], [[1, 1], [1, 1]]), "got -3 for the stage of sample 1, "),
        (lambda: Costs([1, 2], [1]), r"as many head costs as stage costs, got \[1\] and \[2\]"),
        (lambda: Costs([1, 0], [1, 0]), "but exit 1 and the stage before it cost nothing"),
        (lambda: Costs([1, 1], [1, 1], reference=-1), "`reference` must be above 0, got -1"),
        (lambda: Costs([1, 1], [1, 1], reference=[1, 2]), "one per sample, got the shape"),
        (lambda: Costs.from_cumulative([1, 3, 2]), "got 2 at exit 2 after 3; they are cumulative"),
        (lambda: Costs.from_cumulative([[1, 3], [2, 1]]), "got 1 at sample 1, exit 1"),
        (
            lambda: Costs.of_members([1, float("nan")], "dollars"),
            "`costs` must be finite, got nan at exit 1",
        ),
        (
            lambda: Costs.of_members([[1, None], [2, None]], "dollars"),
            "the cost of the last model is not known of any sample",
        ),
        (
            lambda: Costs.of_checkpoints([[256, 200]], reading=20),
            "`costs` must not be negative and must not fall",
        ),
        (lambda: Costs.of_members([[[1]]], "dollars"), r"`costs` must have the shape \[M\]"),
    ],
)
def test_wrong_costs_are_named_with_their_place(make, message):
    with pytest.raises(LedgerError, match=message):
        make()


def curve(*seconds):
    """`[M, G]`: seconds of whole batches, proportional to what is left."""
    return np.outer(seconds, OCCUPANCY)


def test_decisions_that_read_earlier_exits_cost_what_was_measured_for_them():
    times = BatchTimes(curve(4, 6), curve(1, 2), 9.0, heads_reading_back=curve(2, 3))
    assert times.costs_of(reads_back=False).heads.tolist() == [1, 2]
    assert times.costs_of(reads_back=True).heads.tolist() == [2, 3]
    assert times.keep([0]).costs_of(reads_back=True).heads.tolist() == [2]
    left, run = np.array([[1.0, 0.5]]), np.array([[True, True]])
    assert times.cumulative_at(left, run)[0].tolist() == pytest.approx([5, 13])
    assert times.cumulative_at(left, run, reads_back=True)[0].tolist() == pytest.approx([6, 15])


@pytest.mark.parametrize("name", ["heads", "heads_reading_back"])
def test_seconds_of_another_shape_are_refused_by_name(name):
    parts = {"stages": curve(4, 6), "heads": curve(1, 2), "heads_reading_back": curve(1, 2)}
    with pytest.raises(LedgerError, match=f"`{name}` must have the shape"):
        BatchTimes(reference=9.0, **{**parts, name: curve(1)})
    with pytest.raises(LedgerError, match="`stages` must have the shape"):
        BatchTimes(np.ones((2, 3)), np.ones((2, 3)), 9.0)


def test_the_last_exit_alone_costs_the_reference_and_no_sample_leaves_before_it():
    kept = BatchTimes(curve(4, 6), curve(1, 2), 9.0).keep([1])
    assert (kept.stages.tolist(), kept.heads.tolist()) == ([[7.0]], [[2.0]])
    assert kept.costs.cumulative.tolist() == [9]


def test_seconds_of_a_share_are_the_mean_over_how_many_rows_are_left():
    seconds = seconds_left([1, 2, 4], [1.0, 1.0, 1.0], batch=4)  # as long for one row as for four
    assert np.allclose(seconds, (1 - (1 - np.array(OCCUPANCY)) ** 4) / 4)


def test_stages_of_a_network_that_is_left_out_are_not_run():
    assert kept_stages([2], [0, 1, 3]) == ([(0, 1), (1, 2), (2, 4)], (2,))
    assert kept_stages([2], [0, 1]) == ([(0, 1), (1, 2)], ())
    assert kept_stages([2], [3]) == ([(2, 4)], ())


def test_a_stage_that_no_sample_of_a_part_has_costs_nothing_more_and_starts_no_model():
    costs = Costs.from_cumulative([[10, 20, 30], [10, 20, 20], [5, 15, 15]], "tokens")
    part = costs.take([1, 2])
    assert part.mean().cumulative.tolist() == [7.5, 17.5, 17.5]
    assert not part.is_cascade and not part.mean().is_cascade
    assert Costs(**part.mean().to_json()) == part.mean()


def test_models_that_were_not_asked_cost_nothing_and_the_reference_is_known_all_the_same():
    costs = Costs.of_members([[1, 4], [3, None]], "dollars")
    assert costs.cumulative.tolist() == [[1, 5], [3, 3]]
    assert costs.reference.tolist() == [4, 4]


def test_readings_of_a_chain_are_charged_and_dropped_readings_are_not():
    costs = Costs.of_checkpoints([[256, 512, 768], [256, 300]], reading=20)
    assert costs.mean_reference == ((768 + 20) + (300 + 20)) / 2
    assert costs.keep([1, 2]).cumulative.tolist() == [[532, 808], [320, 320]]
    assert not costs.is_cascade
    assert Costs.of_checkpoints([100, 300], reading=5).cumulative.tolist() == [105, 310]
