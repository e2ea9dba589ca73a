"""What a ledger holds is what its file gives back, for every type of ledger and of file."""

import json

import numpy as np
import pytest

from offramp import Ledger
from offramp.batch_times import BatchTimes
from offramp.costs import Costs
from offramp.errors import LedgerError
from offramp.files import write_sealed
from offramp.ledger import History, has_ledger

TIMES = BatchTimes(
    np.array([[4.0], [6.0], [5.0]]),
    np.array([[1.0], [1.0], [2.0]]),
    reference=15.0,
    heads_reading_back=np.array([[2.0], [2.0], [2.0]]),
    origin="a laptop",
)


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def rich_logits():
    return Ledger(
        normal(4, 3, 2),
        [0, 1, 1, 0],
        TIMES,
        split="val",
        sample_ids=["a", "b", "c", "d"],
        network="a network",
        class_names=["cat", "dog"],
        recorded_on="cpu, float32",
        groups=[7, 7, 8, 9],
        lengths=[3, 2, 3, 1],
    )


def rich_answers(**known):
    return Ledger.from_answers(
        confidence=[[0.5, 0.8, 0.9], [0.25, 0.5], [1.0, 0.0, 0.5]],
        correct=[[True, False, True], [False, True], [False, False, False]],
        features=[[[1.0], [2.0], [3.0]], [[4.0], [5.0]], [[6.0], [7.0], [8.0]]],
        costs=[[1, 2, 4], [2, 5], [3, 4, 9]],
        unit="tokens",
        split="val",
        groups=["q", "q", "r"],
        sample_ids=[3, 1, 2],
        network="letters",
        **known,
    )


def known_answers():
    return rich_answers(answers=[["x", "y", "x"], ["y", "y"], ["z", "x", "z"]])


@pytest.mark.parametrize("make", [rich_logits, known_answers, rich_answers])
@pytest.mark.parametrize("exits", [[0, 1, 2], [0, 2]])
def test_a_folder_gives_back_everything(make, exits, tmp_path):
    ledger = make().keep_exits(exits)
    ledger.save(tmp_path / "val")
    found = Ledger.load(tmp_path / "val")
    assert type(found) is type(ledger)
    for name in ("split", "network", "class_names", "recorded_on", "sample_ids", "groups"):
        assert getattr(found, name) == getattr(ledger, name), name
    assert np.array_equal(found.outputs, ledger.outputs)
    assert np.array_equal(found.labels, ledger.labels)
    assert str(found.lengths) == str(ledger.lengths)
    assert found.exits == tuple(exits)
    assert found.cost_model == ledger.cost_model
    if ledger.batch_times is not None:
        assert found.batch_times.costs_of(True) == ledger.batch_times.costs_of(True)
        assert found.batch_times.origin == "a laptop"
    assert repr(found) == repr(ledger)
    assert found.data_fingerprint == ledger.data_fingerprint


def test_a_sample_keeps_its_last_answer_at_the_first_kept_exit_after_it():
    ledger = known_answers().keep_exits([0, 2])
    assert ledger.lengths is None  # the second sample has a second stage, which stands there
    assert ledger.outputs[1, 1].tolist() == [0.0, 0.0, 5.0]
    assert ledger.labels[1].tolist() == [False, True]
    assert ledger.cumulative_costs[1].tolist() == [2, 5]
    assert rich_logits().keep_exits([0, 1]).lengths.tolist() == [2, 2, 2, 1]
    assert rich_logits().keep_exits([1, 2]).lengths.tolist() == [2, 1, 2, 1]


def test_a_folder_of_an_older_version_has_what_it_does_not_say_by_default(tmp_path):
    ledger = Ledger(normal(4, 2, 2), [0, 1, 1, 0], [0.5, 1.0], split="val", network="n")
    ledger.save(tmp_path / "val")
    (file,) = (tmp_path / "val").glob("*.json")
    meta = json.loads(file.read_text())
    for key in ("kind", "labelled", "exits", "recorded_on", "batch_times"):
        del meta[key]
    write_sealed(file, meta)
    found = Ledger.load(tmp_path / "val")
    assert type(found) is type(ledger)
    assert np.array_equal(found.labels, ledger.labels)
    assert (found.exits, found.recorded_on, found.batch_times) == ((0, 1), None, None)


def test_an_npz_counts_in_macs_where_stages_and_heads_stand_apart(tmp_path):
    arrays = {"logits": np.zeros((2, 2, 3)), "labels": [0, 1]}
    np.savez(tmp_path / "apart.npz", stage_costs=[4.0, 6.0], head_costs=[1.0, 2.0], **arrays)
    found = Ledger.load(tmp_path / "apart.npz", "test")
    assert found.cost_model == Costs([4, 6], [1, 2])
    assert found.unit == "macs"


@pytest.mark.parametrize("name", ["confidence", "log_confidence"])
def test_an_npz_of_answers_may_be_told_its_network(name, tmp_path):
    values = np.array([[0.5, 0.75], [0.25, 1.0]])
    values = values if name == "confidence" else np.log(values)
    np.savez(tmp_path / "said.npz", **{name: values}, costs=[1.0, 2.0], network="its own")
    plain = Ledger.load(tmp_path / "said.npz", "test")
    assert plain.network == "its own"
    assert plain.outputs[0, 1, 0].item() == pytest.approx(np.log(3))
    assert Ledger.load(tmp_path / "said.npz", "test", network="another").network == "another"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"log_confidence": 3}, "`log_confidence` must be a table"),
        ({"confidence": 3}, "`confidence` must be a table"),
        ({"confidence": [[0.5, 1.5]]}, r"got 1.5$"),
        ({"confidence": [[0.5, -1.5]]}, "give log-probabilities as log_confidence"),
        ({"confidence": [[0.5, 0.5]], "mask": 3}, "`mask` must be a table"),
        ({"confidence": [[0.5, 0.5]], "log_confidence": [[-1, -1]]}, "either `confidence`"),
        ({}, "either `confidence`, probabilities, or `log_confidence`"),
        (
            {"confidence": [[0.5, 0.5]], "answers": [["a", "b", "c"]]},
            "`answers` has 3 stages for sample 0",
        ),
    ],
)
def test_answers_that_do_not_fit_are_named(given, message):
    with pytest.raises(LedgerError, match=message):
        Ledger.from_answers(**given, costs=[1, 2], split="val")


def test_what_is_worked_out_for_all_samples_holds_for_some_and_for_earlier_exits():
    logits = normal(6, 3, 4)
    whole, rows = History(logits, logits, lengths=np.array([3, 1, 2, 3, 3, 2])), [4, 1]
    fresh = [whole.take(rows), whole.until(1)]
    _ = whole.log_probs, whole.predictions
    handed_on = [whole.take(rows), whole.until(1)]
    for one, other in zip(fresh, handed_on, strict=True):
        assert np.array_equal(one.log_probs, other.log_probs)
        assert np.array_equal(one.predictions, other.predictions)
        assert np.array_equal(one.log_prob, other.log_prob)
        assert np.array_equal(one.lengths, other.lengths)
    # handed on, and not worked out again
    assert np.shares_memory(handed_on[1].log_probs, whole.log_probs)


def test_seconds_of_batches_stand_beside_the_costs_of_the_exits_that_are_kept():
    ledger = Ledger(normal(4, 3, 2), [0, 1, 1, 0], [1, 2, 3], split="val")
    timed = ledger.with_costs(TIMES)
    assert (timed.unit, timed.costs.tolist()) == ("seconds", TIMES.costs.cumulative.tolist())
    fewer = ledger.keep_exits([0, 2]).with_costs(TIMES)
    assert fewer.cost_model == TIMES.costs.keep([0, 2])
    plain = ledger.keep_exits([0, 2]).with_costs(TIMES.costs)
    assert plain.cost_model == fewer.cost_model
    assert plain.batch_times is None


def test_other_costs_are_not_paid_after_the_end_of_a_sample():
    timed = rich_logits().with_costs(Costs([4, 6, 5], [1, 1, 2], unit="seconds"))
    assert timed.cumulative_costs[[0, 1, 3]].tolist() == [[5, 12, 19], [5, 12, 12], [5, 5, 5]]


def test_a_ledger_is_found_by_its_split_or_holds_them_all(tmp_path):
    ledger = Ledger(normal(4, 2, 2), [0, 1, 1, 0], [0.5, 1.0], split="val", network="n")
    ledger.save(tmp_path / "run" / "val")
    (tmp_path / "run" / "test.jsonl").write_text("")
    found = [has_ledger(tmp_path / "run", split) for split in ("held_out", "val", "test")]
    assert found == [False, True, True]
    assert has_ledger(tmp_path / "run" / "val", "test")
    assert has_ledger(tmp_path / "run" / "test.jsonl", "val")
