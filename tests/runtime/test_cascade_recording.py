"""What was paid for is kept: recordings that fail, are interrupted, and go on."""

import asyncio
import json

import numpy as np
import pytest

import offramp
from offramp import Cascade
from offramp.errors import FileFormatError, LedgerError, LedgerWarning
from offramp.progress import Progress
from offramp.runtime import Member, Response

from .cascades import cascade_of, exact, first, quick, truth, words


def labelled(samples=40):
    return words(samples), [truth(word) for word in words(samples)]


class Counted:
    """Says how often it was asked about each text; some fail, the first few times or for good."""

    def __init__(self, failing=(), error=None, cost=None):
        self.asked, self.failing, self.cost = {}, set(failing), cost
        self.error = error or ConnectionError("lost")

    async def __call__(self, text):
        self.asked[text] = self.asked.get(text, 0) + 1
        await asyncio.sleep(0)
        if text in self.failing:
            raise self.error
        return (truth(text), 0.99) if self.cost is None else (truth(text), 0.99, self.cost)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_recording_read_as_a_ledger_says_how_to_make_one(tmp_path):
    path = tmp_path / "responses.jsonl"
    ledger = cascade_of(first, exact).record(labelled(10), "val", path=path)
    with pytest.raises(FileFormatError, match="has a response in each row"):
        offramp.Ledger.load(path, split="val")
    again = cascade_of(first, exact).record(labelled(10), "val", path=path)
    np.testing.assert_array_equal(again.outputs, ledger.outputs)


def test_every_response_is_a_line_as_soon_as_it_is_there(tmp_path):
    path, seen = tmp_path / "new" / "calls.jsonl", []

    async def last(text):
        seen.append(len(lines_of(path)))
        return truth(text), 0.99

    ledger = cascade_of(first, last, concurrency=1).record(labelled(10), "val", path=path)
    assert seen == sorted(seen) and seen[-1] >= 18
    lines = lines_of(path)
    assert len(lines) == 20
    assert {line["member"] for line in lines} == {"first", "second"}
    assert ledger.labels[:, 1].all()


@pytest.mark.parametrize("kinds", ["async", "synchronous"])
def test_what_was_paid_for_is_not_asked_again(tmp_path, kinds):
    """Interrupted in the middle, and killed in the middle of a line."""
    path, calls = tmp_path / "calls.jsonl", []

    def second(batch):
        calls.extend(batch)
        if len(calls) == 21:
            raise KeyboardInterrupt
        return exact(batch)

    async def second_alone(text):
        calls.append(text)
        if len(calls) == 21:
            raise SystemExit
        return truth(text), 0.99

    one, two = (quick, second) if kinds == "synchronous" else (first, second_alone)
    cascade = cascade_of(one, two, concurrency=1)
    whole = cascade_of(quick, exact).record(labelled(), "val")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        cascade.record(labelled(), "val", 3, path=path)
    with path.open("a") as file:
        file.write('{"item": "39:')
    known = {
        line["item"].split(":")[0] for line in lines_of_whole(path) if line["member"] == "second"
    }
    assert len(known) >= 18
    ledger = cascade.record(labelled(), "val", 3, path=path)
    assert all(calls.count(words(40)[int(row)]) == 1 for row in known)
    assert np.array_equal(ledger.outputs, whole.outputs)
    assert ledger.costs.tolist() == whole.costs.tolist()
    again = len(calls)
    cascade.record(labelled(), "val", path=path)
    assert len(calls) == again and len(lines_of(path)) == 80


def test_an_empty_answer_is_an_answer_that_is_not_asked_for_again(tmp_path):
    path, calls = tmp_path / "calls.jsonl", []

    def empty(batch):
        calls.extend(batch)
        return [("", 0.5) for _ in batch]

    for _ in range(2):
        cascade = offramp.Cascade([Member(empty, 1.0, "one"), Member(empty, 2.0, "two")])
        ledger = cascade.record(([1, 2], ["", ""]), "val", path=path)
        assert ledger.heads_correct.all()
    assert len(calls) == 4


def lines_of_whole(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def test_calls_that_failed_are_masked_and_asked_again_next_time(tmp_path):
    path = tmp_path / "calls.jsonl"
    second = Counted(failing=["6-6", "0-7"])
    cascade = cascade_of(first, second, retries=0)
    with pytest.warns(LedgerWarning, match="2 calls failed .* `second` on sample [67]: Connec"):
        ledger = cascade.record(labelled(), "val", path=path)
    assert len(ledger) == 40
    assert ledger.lengths.tolist() == [1 if row in (6, 7) else 2 for row in range(40)]
    assert sum("error" in line for line in lines_of(path)) == 2
    second.failing = set()
    ledger = cascade.record(labelled(), "val", path=path)
    assert ledger.lengths is None
    assert {text: n for text, n in second.asked.items() if n > 1} == {"6-6": 2, "0-7": 2}


def test_items_without_a_first_answer_are_kept_apart():
    one = Counted(failing=["3-3"], error=ValueError("no such key"))
    with pytest.warns(
        LedgerWarning, match=r"1 items without.*`first` on sample 3: ValueError: no"
    ):
        ledger = cascade_of(one).record(labelled(), "val", groups=list(range(40)))
    assert len(ledger) == 39 and 3 not in list(ledger.sample_ids)
    assert 3 not in list(ledger.groups)


def test_a_model_that_fails_on_everything_is_named_with_its_reason():
    with pytest.raises(LedgerError, match="`second` failed on every sample: ValueError: no such"):
        cascade_of(first, Counted(words(), ValueError("no such key"))).record(labelled(), "val")


class BilledError(Exception):
    cost = 0.5


def test_what_was_billed_for_failures_counts():
    second = Counted(failing=["6-6"], error=BilledError("not JSON"), cost=2.0)
    with pytest.warns(LedgerWarning, match="`second` on sample 6: BilledError: not JSON"):
        ledger = cascade_of(first, second).record(labelled(10), "val")
    assert ledger.cost_model.heads[:, 1].tolist() == [0.5 if n == 6 else 2.0 for n in range(10)]
    assert ledger.reference_cost == pytest.approx((9 * 2.0 + 0.5) / 10)


def test_progress_counts_responses(tmp_path):
    class Kept(Progress):
        total = done = 0

        def start(self, text, total, done=0):
            self.total, self.done = total, done

        def advance(self, steps=1):
            self.done += steps

    shown = Kept()
    cascade_of().record(labelled(10), "val", path=tmp_path / "calls", progress=shown)
    assert (shown.done, shown.total) == (20, 20)
    front = Kept()
    offramp.record(cascade_of(), labelled(5), "val", progress=front)
    assert (front.done, front.total) == (10, 10)
    again = Kept()
    cascade_of().record(labelled(12), "val", path=tmp_path / "calls", progress=again)
    assert (again.done, again.total) == (24, 24)


@pytest.mark.parametrize(
    "items",
    [
        np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32),
        [{"question": n, "options": ["a", "b"]} for n in range(8)],
        [object] * 8,
    ],
    ids=["arrays", "objects", "others"],
)
def test_items_of_any_kind_are_found_again(tmp_path, items):
    asked = []

    def model(batch):
        asked.append(len(batch))
        return [Response("a", 0.7, features=(0.5,)) for _ in batch]

    cascade = Cascade([Member(model, 1.0), Member(model, 2.0)])
    wanted = cascade.record((items, ["a"] * 8), "val", path=tmp_path / "calls")
    asked.clear()
    found = cascade.record((items, ["a"] * 8), "val", path=tmp_path / "calls")
    assert not asked
    assert np.array_equal(found.outputs, wanted.outputs)


def test_other_items_and_other_models_are_asked(tmp_path):
    path = tmp_path / "calls"
    cascade_of().record(labelled(4), "val", path=path)
    third = Counted()
    longer = Cascade([*cascade_of().members, Member(third, 9.0, "third")])
    longer.record(labelled(4), "val", path=path)
    assert sum(third.asked.values()) == 4
    assert len(lines_of(path)) == 12
    changed = ["x-1", *words(4)[1:]]
    longer.record((changed, ["x"] * 4), "val", path=path)
    assert third.asked["x-1"] == 1 and sum(third.asked.values()) == 5


def test_logits_are_read_back_bitwise(tmp_path):
    weight = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    cascade = Cascade([Member(lambda x: x @ weight, 1.0), Member(lambda x: x @ weight * 3, 2.0)])
    inputs = np.random.default_rng(1).standard_normal((10, 3)).astype(np.float32)
    wanted = cascade.record((inputs, [0] * 10), "val", path=tmp_path / "calls")
    found = cascade.record((inputs, [0] * 10), "val", path=tmp_path / "calls")
    assert np.array_equal(found.logits, wanted.logits) and found.has_logits


def test_a_file_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("buy milk\n")
    with pytest.raises(FileFormatError, match=r"notes\.txt, line 1 is no response of a model"):
        cascade_of().record(labelled(), "val", path=path)
    assert path.read_text() == "buy milk\n"
