"""Cascades behind real clients: shared by event loops and threads, slow, hung, and failing."""

import asyncio
import gc
import threading
import time
from email.utils import formatdate

import numpy as np
import pytest

from offramp import Cascade, Ledger, MaxProbability, Policy
from offramp.answers import MajorityVote
from offramp.errors import ConfigError, LedgerError, NetworkError
from offramp.runtime import Member, Response
from offramp.runtime.calls import passes, retry_after
from offramp.scorers import Patience, Settled

from .cascades import (
    cascade_of,
    exact,
    first,
    policy_for_words,
    quick,
    second,
    truth,
    words,
)


@pytest.fixture(scope="module")
def policy():
    return policy_for_words()


class Client:
    """Belongs to the event loop of its first call, as clients with open connections do."""

    def __init__(self):
        self.loop = None

    async def __call__(self, text):
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop() or self.loop.is_closed():
            raise RuntimeError("Event loop is closed")
        await asyncio.sleep(0.001)
        return truth(text), 0.99


def test_one_client_serves_call_after_call_from_all_threads(policy):
    client = Client()
    found = []
    with cascade_of(first, client) as cascade:
        cascade.record((words(20), [truth(w) for w in words(20)]), split="val")

        def ask():
            found.extend(cascade.run(words(14), policy))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [each.answer for each in found] == [truth(w) for w in words(14)] * 8
    assert not any(each.failures for each in found)


def test_async_programs_call_clients_on_their_own_loop(policy):
    client = Client()
    cascade = cascade_of(first, client)

    async def program():
        client.loop = asyncio.get_running_loop()
        both = await asyncio.gather(*(cascade.arun([w], policy) for w in words(30)))
        return [each.answer for (each,) in both]

    assert asyncio.run(program()) == [truth(w) for w in words(30)]


def test_the_thread_of_a_cascade_ends_with_it(policy):
    def alive():
        return [t for t in threading.enumerate() if t.name == "offramp-cascade"]

    gc.collect()
    before = len(alive())
    cascade = cascade_of()
    cascade.run(["6-6"], policy)
    assert len(alive()) == before + 1
    cascade.close()
    assert len(alive()) == before
    assert cascade.run(["6-6"], policy)[0].answer == "6"  # with another one
    del cascade
    gc.collect()
    assert len(alive()) == before


def test_a_model_that_calls_its_own_cascade_is_told_to_await(policy):
    async def nested(text):
        return cascade.run([text], policy)[0].answer, 0.99

    cascade = cascade_of(first, nested, retries=0)
    (found,) = cascade.run(["6-6"], policy)
    assert found.failures == ("second",)
    assert "await cascade.arun" in found.asked[1].error


def test_a_hung_call_holds_up_its_own_item_only(policy):
    times = {}

    async def sometimes_hung(text):
        if text == "6-6":
            await asyncio.sleep(60)
        times[text] = time.monotonic() - began
        return truth(text), 0.99

    cascade = cascade_of(first, sometimes_hung, concurrency=64)
    began = time.monotonic()
    found = cascade.run(words(60), policy, deadline=1.0)
    assert time.monotonic() - began < 5
    assert max(times.values()) < 0.8  # nobody has waited for it
    late = [text for text, each in zip(words(60), found, strict=True) if each.why == "deadline"]
    assert late == ["6-6"]
    right = [each.answer == truth(text) for text, each in zip(words(60), found, strict=True)]
    assert sum(right) == 59


@pytest.mark.parametrize("limit", ["deadline", "timeout", "own"])
def test_a_hung_synchronous_model_is_cut_off_and_replaced(policy, limit):
    release, calls = threading.Event(), []

    def hangs_once(batch):
        calls.append(list(batch))
        if len(calls) == 1:
            release.wait(30)
        return exact(batch)

    settings = {"timeout": 0.2} if limit == "timeout" else {}
    cascade = cascade_of(quick, hangs_once, retries=1, **settings)
    cascade.members[1].timeout = 0.2 if limit == "own" else None
    began = time.monotonic()
    (found,) = cascade.run(["6-6"], policy, deadline=0.2 if limit == "deadline" else None)
    assert time.monotonic() - began < 5
    expected = {"deadline": ("?", "deadline"), "timeout": ("6", "last"), "own": ("6", "last")}
    assert (found.answer, found.why) == expected[limit]
    assert cascade.run(["5-5"], policy)[0].answer == "5"  # another thread
    release.set()


def test_a_call_that_takes_too_long_for_good_is_a_failure(policy):
    async def hangs(text):
        await asyncio.sleep(60)

    (found,) = cascade_of(first, hangs, timeout=0.05, retries=1).run(["6-6"], policy)
    assert (found.answer, found.why, found.failures) == ("?", "failed", ("second",))
    assert found.asked[1].error == "TimeoutError: no answer within 0.05 s"


def test_a_timeout_of_the_model_itself_is_no_deadline(policy):
    async def times_out(text):
        raise TimeoutError("read timeout")

    cascade = cascade_of(first, times_out, timeout=5.0, retries=0)
    (found,) = cascade.run(["6-6"], policy, deadline=5.0)
    assert (found.why, found.asked[1].error) == ("failed", "TimeoutError: read timeout")


def test_synchronous_models_get_what_has_come_meanwhile_as_one_batch(policy):
    """The first model answers item by item; the second is slow, and takes what waits for it."""
    sizes = []

    async def one_by_one(text):
        await asyncio.sleep(0.002 * int(text.split("-")[1]))
        return "?", 0.2

    def slow(batch):
        sizes.append(len(batch))
        time.sleep(0.03)
        return exact(batch)

    found = cascade_of(one_by_one, slow, concurrency=99).run(words(40), policy)
    assert [each.answer for each in found] == [truth(w) for w in words(40)]
    assert sum(sizes) == 40
    assert 1 < len(sizes) < 20 and max(sizes) > 2


class StatusError(Exception):
    def __init__(self, status, headers=None):
        super().__init__(f"status {status}")
        self.status_code = status
        self.headers = headers or {}


class NestedError(Exception):
    def __init__(self, status, headers=None):
        self.response = StatusError(status, headers)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (type("APIConnectionError", (Exception,), {})(), True),
        *((StatusError(status), True) for status in (408, 409, 429, 500, 503)),
        *((NestedError(status), status != 401) for status in (401, 502)),
        *((StatusError(status), False) for status in (400, 401, 404, 422)),
        (ValueError("not JSON"), False),
        (FileNotFoundError(), False),
    ],
)
def test_only_what_passes_is_tried_again(policy, error, expected):
    assert passes(error) == expected
    calls = []

    async def fails_once(text):
        calls.append(text)
        if len(calls) == 1:
            raise error
        return truth(text), 0.99

    (found,) = cascade_of(first, fails_once).run(["6-6"], policy)
    assert len(calls) == 1 + expected
    assert found.answer == ("6" if expected else "?")


def test_what_is_tried_again_is_the_callers_choice(policy):
    calls = []

    def fails_once(batch):
        calls.append(len(batch))
        if len(calls) == 1:
            raise ValueError("not JSON")
        return exact(batch)

    with_choice = cascade_of(quick, fails_once, retry_on=lambda e: isinstance(e, ValueError))
    assert with_choice.run(["6-6"], policy)[0].answer == "6"
    with pytest.raises(ConfigError, match="`retry_on` must be a function of the exception"):
        cascade_of(retry_on=[429])
    with pytest.raises(ConfigError, match="`timeout` must be above 0"):
        cascade_of(timeout=0)


def test_retry_after_is_kept(policy):
    assert retry_after(StatusError(429, {"retry-after": "1.5"})) == 1.5
    in_ten = formatdate(time.time() + 10, usegmt=True)
    assert 8 < retry_after(NestedError(503, {"Retry-After": in_ten})) <= 10
    assert retry_after(StatusError(429, {"retry-after": "soon"})) == retry_after(OSError()) == 0
    times = []

    async def busy(text):
        times.append(time.monotonic())
        if len(times) == 1:
            raise StatusError(429, {"Retry-After": "0.15"})
        return truth(text), 0.99

    assert cascade_of(first, busy).run(["6-6"], policy)[0].answer == "6"
    assert times[1] - times[0] >= 0.15
    # A pause beyond the deadline is not waited for.
    times.clear()
    began = time.monotonic()
    (found,) = cascade_of(first, busy).run(["6-6"], policy, deadline=0.1)
    assert (found.answer, found.why) == ("?", "failed")
    assert time.monotonic() - began < 0.1


def test_pauses_do_not_take_the_place_of_other_calls(policy):
    async def busy_at_first(text):
        if text == "6-6" and text not in seen:
            seen.append(text)
            raise StatusError(429, {"Retry-After": "0.3"})
        done[text] = time.monotonic() - began
        return truth(text), 0.99

    seen, done = [], {}
    began = time.monotonic()
    cascade_of(first, busy_at_first, concurrency=1).run(["6-6", "5-5", "6-13"], policy)
    assert done["5-5"] < 0.25 and done["6-13"] < 0.25 <= done["6-6"]


class BilledError(Exception):
    cost = 0.25


@pytest.mark.parametrize(
    ("model", "cost"),
    [
        (lambda batch: [Response(error="not JSON", cost=0.5)], 0.5),
        (lambda batch: [("6", float("nan"), 0.75)], 0.75),
        (lambda batch: [(None, 0.9)], 5.0),
    ],
)
def test_a_billed_answer_that_cannot_be_read_is_paid(policy, model, cost):
    (found,) = cascade_of(quick, model).run(["6-6"], policy)
    assert (found.answer, found.failures, found.cost) == ("?", ("second",), 1.0 + cost)


def test_an_exception_may_say_what_was_billed(policy):
    async def unreadable(text):
        raise BilledError("not JSON")

    (found,) = cascade_of(first, unreadable).run(["6-6"], policy)
    assert (found.why, found.cost) == ("failed", 1.25)


def stating(cost, seen):
    async def one(text):
        seen.append(text)
        return Response(truth(text), 0.99, cost)

    return one


@pytest.mark.parametrize("cost", [-0.1, float("nan"), float("inf"), "0.1"])
def test_a_cost_that_cannot_be_is_refused_at_the_first_response(policy, cost):
    seen, message = [], f"`second` must return a cost of at least 0 with its answer, got {cost!r}"
    with pytest.raises(NetworkError, match=message):
        cascade_of(first, stating(cost, seen)).run(["6-6"], policy)
    with pytest.raises(NetworkError, match=message):
        cascade_of(first, stating(cost, seen), concurrency=1).record((words(), None), "val")
    assert len(seen) <= 3  # of 201; a call that was under way is made


def test_a_negative_bill_for_a_failure_is_refused(policy):
    async def refunded(text):
        error = ValueError("not JSON")
        error.cost = -1.0
        raise error

    with pytest.raises(NetworkError, match="`second` must return a cost of at least 0"):
        cascade_of(first, refunded).run(["6-6"], policy)


def test_a_cost_that_nothing_states_is_refused_at_the_first_response(policy):
    seen = []
    members = [Member(first, 1.0, "first"), Member(stating(None, seen), name="second")]
    cascade = Cascade(members, unit="dollars", concurrency=1)
    cascade.run(["6-6"], policy)  # the policy knows what it has cost on average
    with pytest.raises(LedgerError, match="what `second` costs is not known"):
        cascade.record((words(), None), "val")
    assert len(seen) <= 3  # of 201; a call that was under way is made


def test_a_negative_cost_of_a_model_is_refused_when_it_is_stated():
    with pytest.raises(ConfigError, match=r"`cost of x` must be at least 0, got -1\.0"):
        Member(first, cost=-1.0, name="x")


def test_a_policy_for_three_models_is_none_for_two():
    members = [Member(quick, 1.0, "a"), Member(quick, 2.0, "b"), Member(exact, 5.0, "c")]
    ledger = Cascade(members).record((words(), [truth(w) for w in words()]), split="all")
    held_out, val, _ = ledger.partition()
    policy = Policy(MaxProbability()).fit(held_out).tune(val).at(budget=0.9)
    with pytest.raises(NetworkError, match=r"for other models: .* \[0, 1, 2\] .* has 2, of a, c:"):
        Cascade([members[0], members[2]]).run(["6-6"], policy)


def test_names_tell_models_apart(policy):
    async def ask(text):
        return truth(text), 0.9

    numbered = Cascade([ask, ask, Member(ask, name="large")])
    assert numbered.stage_names == ["ask", "ask-2", "large"]
    with pytest.raises(ConfigError, match="two models are called `gpt`"):
        Cascade([Member(quick, name="gpt"), Member(exact, name="gpt")])


def drawn(samples=120, at_most=6):
    """A ledger of samples of one model: the answer to half of the questions is not certain."""
    rng = np.random.default_rng(0)
    rows = [
        [str(n % 5) if n % 2 or rng.random() < 0.7 else "x" for _ in range(at_most)]
        for n in range(samples)
    ]
    return Ledger.from_answers(
        rows,
        confidence=[[0.5] * at_most] * samples,
        labels=[str(n % 5) for n in range(samples)],
        costs=list(range(1, at_most + 1)),
        split="all",
    )


def voting(ledger):
    held_out, val, _ = ledger.partition()
    made = Policy(Patience(), MajorityVote()).fit(held_out).tune(val, "shared")
    return made.at(budget=0.55)


def test_samples_are_asked_at_once_and_cancelled_when_the_vote_is_settled():
    policy = voting(drawn())
    started, cancelled = [], []

    async def draw(text):
        number = len(started)
        started.append(number)
        try:
            await asyncio.sleep(0.02 if number < 3 else 30)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return "4", 0.5

    cascade = Cascade([Member(draw, 1.0, samples=6, at_once=4)], concurrency=8)
    policy.network = cascade.fingerprint()
    began = time.monotonic()
    (found,) = cascade.run(["2 + 2"], policy)
    assert time.monotonic() - began < 5
    assert found.answer == "4" and found.stage < 3
    assert cancelled == [number for number in started if number > 2]
    assert len(started) <= 4 + found.stage
    assert found.cost == len(found.asked)


def test_samples_at_once_decide_as_one_after_the_other():
    policy = voting(drawn())
    answers = {}
    for at_once in (1, 3):
        counts = {}

        async def draw(text, counts=counts):
            number = counts[text] = counts.get(text, -1) + 1
            await asyncio.sleep(0.002 * (3 - number % 3))  # later ones are quicker
            return ("x" if int(text) % 2 == number % 3 else "y"), 0.5

        cascade = Cascade([Member(draw, 1.0, samples=6, at_once=at_once)], concurrency=99)
        policy.network = cascade.fingerprint()
        found = cascade.run([str(n) for n in range(12)], policy)
        answers[at_once] = [(each.answer, each.stage) for each in found]
    assert answers[1] == answers[3]


def test_answers_that_came_before_they_could_be_cancelled_are_paid():
    policy = voting(drawn())

    async def draw(text):
        return "4", 0.5

    cascade = Cascade([Member(draw, 1.0, samples=6, at_once=6)])
    policy.network = cascade.fingerprint()
    (found,) = cascade.run(["2 + 2"], policy)
    assert found.stage < 5 and found.cost == 6


def test_samples_need_no_confidence_from_recording_to_running():
    async def draw(text):
        counts[text] = counts.get(text, -1) + 1
        sure = int(text) % 3
        return text if sure or counts[text] % 3 == 0 else f"not {text}", None

    counts = {}
    texts = [str(number) for number in range(120)]
    with Cascade([Member(draw, 0.5, samples=5, at_once=2)], unit="dollars") as cascade:
        ledger = cascade.record((texts, texts), split="all")
        assert ledger.reference_cost == pytest.approx(2.5)  # of all samples
        held_out, val, _ = ledger.partition()
        policy = Policy(Settled(), MajorityVote()).fit(held_out).tune(val, "shared")
        counts = {}
        found = cascade.run(texts, policy.at(budget=0.7))
    assert {each.answer for each in found[1::3]} == set(texts[1::3])
    assert 1.0 <= np.mean([each.cost for each in found]) < 2.5


def test_impossible_samples_are_named():
    with pytest.raises(ConfigError, match="`quick` must be an async callable to be asked at_once"):
        Member(quick, samples=4, at_once=2)
    with pytest.raises(ConfigError, match="`samples` must be"):
        Member(first, samples=0)
    assert Cascade([Member(second, 2.0, samples=3)]).num_stages == 3


def test_single_items_of_synchronous_models_need_no_event_loop(policy):
    cascade = cascade_of(quick, exact)
    cascade.run(["6-6"], policy)
    assert cascade._loop is None
    best = 1.0
    for _ in range(5):
        began = time.process_time()
        for _ in range(200):
            cascade.run(["6-6"], policy)
        best = min(best, (time.process_time() - began) / 200)
    assert best < 400e-6  # 45 on a quiet machine; an event loop takes over 1,000
