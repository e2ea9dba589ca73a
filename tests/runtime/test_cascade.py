"""Several models, one policy: recorded, run, and run when models fail or are slow."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import offramp
from offramp import Cascade, Costs, MaxProbability, Policy
from offramp.arrays import softmax
from offramp.errors import ConfigError, LedgerError, LedgerWarning, NetworkError
from offramp.runtime import Member, Response
from offramp.scorers import LogisticCorrector

from .cascades import cascade_of, first, policy_for_words, quick, truth, words


def data(samples=400, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=samples)
    inputs = 3 * np.eye(8, dtype=np.float32)[labels]
    return inputs + rng.standard_normal((samples, 8), np.float32), labels


class Blurred:
    """Looks at its inputs through some noise that is always the same."""

    def __init__(self, noise):
        weight = np.eye(8, 3) + noise * np.random.default_rng(1).standard_normal((8, 3))
        self.weight, self.asked = weight.astype(np.float32), 0

    def __call__(self, x):
        self.asked += len(x)
        return x @ self.weight

    def module(self):
        """The same as a module of torch."""
        linear = nn.Linear(8, 3, bias=False)
        linear.weight.data = torch.from_numpy(self.weight.T.copy())
        return linear


def blurred():
    return Cascade(
        [Member(Blurred(0.6), 1.0, name="small"), Member(Blurred(0.05), 9.0, name="big")],
        unit="dollars",
    )


def policy_of(cascade, scorer=None, budget=0.5):
    parts = [offramp.record(cascade, data(seed=n), split=split) for n, split in enumerate(SPLITS)]
    policy = Policy(scorer or MaxProbability()).fit(parts[0]).tune(parts[1]).at(budget=budget)
    return policy, parts[2]


SPLITS = ("held_out", "val", "test")


def test_a_recorded_cascade_is_a_ledger_of_its_models():
    cascade, (inputs, labels) = blurred(), data(50)
    ledger = offramp.record(cascade, (inputs, labels), split="val")
    assert np.array_equal(ledger.logits[:, 1], cascade.members[1].model(inputs))
    assert ledger.costs.tolist() == [1, 10]
    assert ledger.cost_model.alone.tolist() == [1, 9]
    assert (ledger.reference_cost, ledger.unit) == (9, "dollars")
    pairs = list(zip(inputs, labels, strict=True))
    assert np.array_equal(cascade.record(pairs, split="val").logits, ledger.logits)


@pytest.mark.parametrize("scorer", [MaxProbability(), LogisticCorrector()], ids=repr)
def test_running_decides_as_the_ledger_does_and_items_leave(scorer):
    cascade = blurred()
    policy, test = policy_of(cascade, scorer)
    inputs, _ = data(seed=2)
    big = cascade.members[1].model
    big.asked = 0
    found = cascade.run(inputs, policy)
    exits, replay = policy.decide(test).tolist(), policy.replay(test)
    assert [answer.stage for answer in found] == exits
    assert big.asked == sum(exits)  # the big model saw no one else
    taken = replay.predictions[range(len(exits)), exits]
    assert [answer.answer for answer in found] == taken.tolist()
    costs = replay.costs * test.reference_cost
    assert [answer.cost for answer in found] == pytest.approx(costs.tolist())
    assert {answer.why for answer in found} == {"sure", "last"}
    streamed = list(cascade.stream(inputs, policy, batch_size=64))
    assert [answer.answer for answer in streamed] == [answer.answer for answer in found]


def test_modules_of_torch_take_arrays_and_tensors():
    models, (inputs, labels) = [Blurred(0.6), Blurred(0.05)], data()
    members = [Member(model.module(), cost) for model, cost in zip(models, (1, 9), strict=True)]
    cascade = Cascade(members, unit="dollars")
    tensors = torch.from_numpy(inputs), torch.from_numpy(labels)
    ledger = cascade.record((inputs, labels), split="all")
    for given in (tensors, torch.utils.data.TensorDataset(*tensors)):
        again = cascade.record(given, split="all")
        assert np.array_equal(again.logits, ledger.logits)
        assert np.array_equal(again.labels, labels)
    wanted = np.stack([model(inputs) for model in models], axis=1)
    assert np.allclose(ledger.logits, wanted, atol=1e-5)
    held_out, val, _ = ledger.partition()
    policy = Policy(MaxProbability()).fit(held_out).tune(val).at(budget=0.5)
    found = cascade.run(tensors[0], policy)
    assert found == cascade.run(inputs, policy) == list(cascade.stream(tensors[0], policy))
    assert [answer.stage for answer in found] == policy.decide(ledger.as_split("test")).tolist()
    others = [Blurred(0.5).module(), Blurred(0.05).module()]
    assert Cascade(others).fingerprint() != cascade.fingerprint()


def test_exits_of_a_network_are_stages_too():
    network = offramp.build("convnet", num_classes=3, image_size=8)
    images, labels = torch.rand(60, 3, 8, 8), torch.arange(60) % 3
    other = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    cascade = Cascade([Member(other, cost=500.0), network], unit="macs")
    assert cascade.num_stages == 5
    ledger = cascade.record((images, labels), split="all")
    with torch.no_grad():
        wanted = network.eval()(images)
    assert np.allclose(ledger.logits[:, 1:], wanted, atol=1e-5)
    own = offramp.networks.count_macs(network)
    assert ledger.costs.tolist() == [500, *(500 + own.cumulative).tolist()]
    assert ledger.reference_cost == float(own.stages.sum() + own.heads[-1])
    held_out, val, _ = ledger.partition()
    policy = Policy(MaxProbability()).fit(held_out).tune(val, "geometric").at_point(100)
    found = cascade.run(images, policy)
    assert [answer.stage for answer in found] == policy.decide(ledger.as_split("test")).tolist()
    few = [part.keep_exits([0, 2, 4]) for part in (held_out, val)]
    dropped = Policy(MaxProbability()).fit(few[0]).tune(few[1], "geometric").at_point(60)
    assert {answer.stage for answer in cascade.run(images, dropped)} <= {0, 2, 4}


def test_a_model_after_a_network_does_not_pay_for_exits_that_were_dropped():
    network = offramp.build("convnet", num_classes=3, image_size=8)
    images, labels = torch.rand(60, 3, 8, 8), torch.arange(60) % 3
    other = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    cascade = Cascade([network, Member(other, cost=5e6)], unit="macs")
    ledger = cascade.record((images, labels), split="all")
    own = offramp.networks.count_macs(network)
    assert ledger.cost_model.alone.tolist() == [*own.alone.tolist(), 5e6]
    held_out, val, _ = (part.keep_exits([1, 4]) for part in ledger.partition())
    wanted = [float(own.alone[1]), float(own.alone[1]) + 5e6]
    assert held_out.costs.tolist() == pytest.approx(wanted)
    policy = Policy(MaxProbability()).fit(held_out).tune(val, "geometric").at_point(100)
    paid = {answer.stage: answer.cost for answer in cascade.run(images, policy)}
    assert [paid[1], paid[4]] == pytest.approx(wanted)


def test_a_network_after_a_network_costs_what_it_costs_alone(tmp_path):
    """By hand: its exits need nothing of the first one's, which may be left out."""
    networks = [offramp.build("convnet", num_classes=3, image_size=8, at=2) for _ in range(2)]
    images, labels = torch.rand(60, 3, 8, 8), torch.arange(60) % 3
    stated = [
        Costs((4.0, 6.0), (1.0, 2.0), unit="dollars"),
        Costs((30, 50), (5, 7), unit="dollars"),
    ]
    members = [Member(network, cost=cost) for network, cost in zip(networks, stated, strict=True)]
    cascade = Cascade(members, unit="dollars")
    ledger = cascade.record((images, labels), split="all")
    assert ledger.costs.tolist() == [5, 13, 48, 105]
    assert ledger.cost_model.alone.tolist() == [5, 12, 35, 87]
    assert ledger.reference_cost == 87
    loaded = offramp.Ledger.load(ledger.save(tmp_path / "ledger"))
    assert loaded.cost_model.alone.tolist() == [5, 12, 35, 87]
    held_out, val, test = ledger.partition()
    table = offramp.compare(held_out, val, test, ["baseline"], budgets=[0.9], resamples=5)
    fixed = [row.cost for row in table.references.fixed]
    assert fixed == pytest.approx([5 / 87, 12 / 87, 35 / 87, 1])
    few = [part.keep_exits([0, 2, 3]) for part in (held_out, val)]
    assert few[0].costs.tolist() == [5, 40, 97]  # 5, then 30 + 5, then 50 + 7
    policy = Policy(MaxProbability()).fit(few[0]).tune(few[1], "geometric")
    for selected in (0, 60, len(policy.points) - 1):
        for found in cascade.run(images, policy.at_point(selected)):
            assert found.cost == {0: 5, 2: 40, 3: 97}[found.stage]
    last = ledger.keep_exits([2, 3])
    assert last.costs.tolist() == [35, 92] and last.cost_model.alone.tolist() == [35, 87]


def test_multiply_accumulates_of_modules_are_counted():
    inputs, labels = torch.rand(20, 8), torch.arange(20) % 3
    small, large = nn.Linear(8, 3), nn.Sequential(nn.Linear(16, 10), nn.ReLU(), nn.Linear(10, 3))
    twice = Member(large, prepare=lambda batch: torch.cat([batch, batch], dim=1))
    ledger = Cascade([small, twice], unit="macs").record((inputs, labels), "val")
    assert ledger.unit == "macs"
    assert ledger.cost_model.alone.tolist() == [8 * 3, 16 * 10 + 10 * 3]


def test_models_that_are_left_out_are_not_asked():
    asked = []

    def model(name, sure):
        def answer(batch):
            asked.append(name)
            return [(text[0], sure) for text in batch]

        return Member(answer, cost=1.0, name=name)

    words = ["a", "b", "c", "d"] * 20
    cascade = Cascade([model("one", 0.5), model("two", 0.7), model("three", 0.9)])
    ledger = cascade.record((words, words), split="all")
    held_out, val, _ = ledger.partition()
    kept = [part.keep_exits([0, 2]) for part in (held_out, val)]
    policy = Policy(MaxProbability()).fit(kept[0]).tune(kept[1], "geometric").at_point(-1)
    asked.clear()
    found = cascade.run(["a"], policy)
    assert asked == ["one", "three"]
    assert (found[0].stage, found[0].member, found[0].cost) == (2, "three", 2.0)


def test_estimators_and_onnx_sessions_are_models(tmp_path):
    from sklearn.linear_model import LogisticRegression

    inputs, labels = data()
    fitted = LogisticRegression().fit(inputs, labels)
    cascade = Cascade([Member(Blurred(0.6), 1.0), Member(fitted, 2.0)])
    ledger = cascade.record((inputs, labels), split="val")
    probs = softmax(ledger.logits[:, 1])
    assert np.allclose(probs, fitted.predict_proba(inputs), atol=1e-6)
    named = LogisticRegression().fit(inputs, np.array(list("xyz"))[labels])
    words = Cascade([Member(named, 1.0), Member(named, 2.0)]).record(
        (inputs, ["xyz"[label] for label in labels]), split="val"
    )
    assert words.history_type.name == "answers"
    assert words.labels.mean() > 0.8
    onnxruntime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "same",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "same.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "same.onnx")
    first_three = Member(session, 2.0, name="onnx", prepare=lambda batch: batch[:, :3])
    cascade = Cascade([Member(Blurred(0.6), 1.0), first_three])
    ledger = cascade.record((inputs, labels), "val")
    assert np.array_equal(ledger.logits[:, 1], inputs[:, :3])
    with_tensors = Cascade([Member(fitted, 1.0), first_three])
    tensors = torch.from_numpy(inputs).requires_grad_()
    assert np.array_equal(
        with_tensors.record((tensors, labels), "val").logits[:, 1], inputs[:, :3]
    )
    policy = Policy(MaxProbability()).fit(ledger, "val").tune(ledger, allow_split="val")
    first_three.prepare = lambda batch: seen.append(len(batch)) or batch[:, :3]
    seen = []
    found = cascade.run(inputs, policy.at(budget=0.8))
    assert seen == [sum(answer.stage for answer in found)]  # only those that come to it


def careful(batch):
    return [Response(truth(text), 0.99, cost=2.0 + len(text)) for text in batch]


def test_costs_that_calls_state_are_those_of_the_ledger():
    cascade = Cascade([Member(quick, cost=1.0), careful], unit="tokens")
    ledger = cascade.record((words(), [truth(w) for w in words()]), split="all")
    wanted = [[1.0, 3.0 + len(text)] for text in words()]
    assert ledger.cost_model.cumulative.tolist() == wanted
    assert ledger.reference_cost == pytest.approx(np.mean([2 + len(w) for w in words()]))
    held_out, val, _ = ledger.partition()
    policy = Policy(MaxProbability()).fit(held_out).tune(val).at(budget=0.6)
    found = {w: answer for w, answer in zip(words(), cascade.run(words(), policy), strict=True)}
    assert found["6-6"].answer == "6" and found["6-6"].cost == 1 + 2 + 3
    assert found["0-0"].member == "quick" and found["0-0"].cost == 1


def test_no_more_calls_run_at_once_than_allowed():
    running, most = 0, 0

    async def second(text):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return truth(text), 0.99

    cascade = cascade_of(first, second, concurrency=3)
    found = cascade.run(words(), policy_for_words())
    assert all(answer.answer == truth(text) for answer, text in zip(found, words(), strict=True))
    assert most == 3


def test_calls_that_fail_are_tried_again_with_longer_pauses():
    calls = {}

    async def second(text):
        calls.setdefault(text, []).append(time.monotonic())
        if len(calls[text]) < 3:
            raise ConnectionError
        return truth(text), 0.99

    cascade = cascade_of(first, second, backoff=0.02)
    (found,) = cascade.run(["6-6"], policy_for_words())
    assert (found.answer, found.failures, found.why) == ("6", (), "last")
    one, middle, last = calls["6-6"]
    assert middle - one >= 0.02
    assert last - middle >= 0.04


def test_where_a_model_fails_the_answer_before_is_given():
    async def second(text):
        raise ConnectionError

    (sure, unsure) = cascade_of(first, second).run(["0-0", "6-6"], policy_for_words())
    assert (sure.answer, sure.why) == ("0", "sure")
    assert (unsure.answer, unsure.why, unsure.failures) == ("?", "failed", ("second",))
    assert (unsure.stage, unsure.member, unsure.cost) == (1, "first", 1.0)


def test_where_the_first_model_fails_the_next_is_asked():
    def broken(batch):
        raise RuntimeError("out of order")

    policy = policy_for_words()
    cascade = cascade_of(first, lambda batch: [(truth(text), 0.99) for text in batch])
    cascade.members[0].model = broken
    (found,) = cascade.run(["0-0"], policy)
    assert (found.answer, found.failures, found.cost) == ("0", ("first",), 5.0)
    cascade.members[1].model = broken
    (lost,) = cascade.run(["0-0"], policy)
    assert (lost.answer, lost.why, lost.failures) == (None, "failed", ("first", "second"))


def test_a_response_of_nan_is_a_failure_of_its_item_alone():
    def second(texts):
        return [(truth(text), 0.99 if text == "5-5" else float("nan")) for text in texts]

    cascade = cascade_of(first, second)
    known, unknown = cascade.run(["5-5", "6-6"], policy_for_words())
    assert (known.answer, known.why, known.failures) == ("5", "last", ())
    assert (unknown.answer, unknown.why, unknown.failures) == ("?", "failed", ("second",))
    with pytest.warns(LedgerWarning, match="1 calls failed .* `second` on sample 1: a response"):
        ledger = cascade.record((["5-5", "6-6"], ["5", "6"]), split="val")
    assert ledger.labels.tolist() == [[False, True], [False, False]]

    cascade, (inputs, labels) = blurred(), data(3)
    inputs[1] = np.nan
    (_, lost, _) = cascade.run(inputs, policy_of(cascade)[0])
    assert (lost.answer, lost.why, lost.failures) == (None, "failed", ("small", "big"))
    with pytest.warns(LedgerWarning, match="1 items without an answer of the first model are"):
        ledger = cascade.record((inputs, labels), split="val")
    assert list(ledger.sample_ids) == [0, 2]


def test_at_the_deadline_items_are_answered_with_what_there_is():
    async def second(text):
        await asyncio.sleep(30)
        return truth(text), 0.99

    start = time.monotonic()
    (found,) = cascade_of(first, second).run(["6-6"], policy_for_words(), deadline=0.05)
    assert time.monotonic() - start < 5
    assert (found.answer, found.why) == ("?", "deadline")


def test_streams_of_items_are_answered_in_order():
    async def second(text):
        await asyncio.sleep(0.001 * (len(text) % 3))
        return truth(text), 0.99

    async def collect():
        async def items():
            for text in words(30):
                yield text

        cascade, policy = cascade_of(first, second, concurrency=4), policy_for_words()
        return [found.answer async for found in cascade.astream(items(), policy)]

    # In a thread of its own, since a browser of another test may have left a loop in this one.
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(asyncio.run, collect()).result()
    assert found == [truth(text) for text in words(30)]


def test_failures_while_recording_keep_what_was_said_before():
    async def second(text):
        if text == "6-6":
            raise ConnectionError
        return truth(text), 0.99

    with pytest.warns(LedgerWarning, match="`second` on sample 6: ConnectionError"):
        ledger = cascade_of(first, second).record(
            (words(20), [truth(w) for w in words(20)]), split="val"
        )
    assert ledger.lengths.tolist()[6] == 1
    assert ledger.labels[6].tolist() == [False, False]
    assert ledger.labels[13].tolist() == [False, True]


def test_seconds_are_measured_for_what_is_left_of_a_batch():
    now = [0.0]

    def taking(seconds):
        def model(batch):
            now[0] += 0.4 + seconds * len(batch)  # a call has a fixed cost
            return quick(batch)

        return model

    cascade = Cascade([taking(0.1), taking(1.0)]).measure(words(8), 2, lambda: now[0])
    ledger = cascade.record((words(), [truth(w) for w in words()]), split="all")
    assert ledger.unit == "seconds"
    assert ledger.cost_model.alone.tolist() == pytest.approx([0.15, 1.05])
    assert ledger.reference_cost == pytest.approx(1.05)
    left, heads_run = np.array([[1.0, 0.5]]), np.array([[True, True]])
    paid = ledger.batch_times.cumulative_at(left, heads_run)[0]
    # Of eight items four are left on average, and one call in 256 is saved because none is.
    rest = (0.4 * (1 - 0.5**8) + 1.0 * 4) / 4
    assert paid.tolist() == pytest.approx([0.15, 0.15 + rest], rel=1e-3)


def test_in_seconds_a_closed_model_is_not_asked():
    asked = []

    def model(name, cost):
        def answer(batch):
            asked.append(name)
            return [(text[0], 0.5 + 0.4 * (text < "c")) for text in batch]

        return Member(answer, cost=cost, name=name)

    letters = ["a", "b", "c", "d"] * 20
    cascade = Cascade([model("one", 1.0), model("two", 2.0), model("last", 9.0)], unit="seconds")
    held_out, val, test = cascade.record((letters, letters), split="all").partition()
    policy = Policy(MaxProbability()).fit(held_out).tune(val, "geometric").at_point(-1)
    assert np.isinf(policy.thresholds[:2]).all()
    asked.clear()
    (found,) = cascade.run(["a"], policy)
    assert asked == ["last"]
    assert found.cost == 9.0 == policy.replay(test).costs[0] * test.reference_cost
    assert (found.stage, found.answer) == (2, "a")


def broken(batch):
    raise ConnectionError("no key")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Cascade([quick]), ConfigError, "at least two stages"),
        (lambda: Cascade([quick, careful], concurrency=0), ConfigError, "`concurrency` must be"),
        (lambda: Member("gpt"), ConfigError, "cannot be a model of a cascade"),
        (
            lambda: Cascade([quick, careful], unit="euro"),
            ConfigError,
            "`unit` must be one of macs",
        ),
        (lambda: Cascade([quick, careful]).measure([]), ConfigError, "got none"),
        (
            lambda: blurred().run(data()[0], "policy/"),
            ConfigError,
            "ledgers of this cascade, got 'policy/'",
        ),
        (
            lambda: Cascade([Member(quick, 1.0), Member(careful, 2.0)]).record(words(), "val"),
            LedgerError,
            r"records \(inputs, labels\), or a data set of such pairs",
        ),
        (
            lambda: blurred().run("0-0", policy_of(blurred())[0]),
            ConfigError,
            r"takes a batch of items: \['0-0'\]",
        ),
        (
            lambda: Cascade([Member(broken, 1.0), careful], backoff=0).record(
                (words(9), words(9)), "val"
            ),
            LedgerError,
            "`broken` failed on every sample: ConnectionError: no key",
        ),
        (
            lambda: Cascade([Member(quick, 1.0), Member(broken, 2.0)], backoff=0).record(
                (words(9), words(9)), "val"
            ),
            LedgerError,
            "`broken` failed on every sample: ConnectionError: no key",
        ),
        (
            lambda: Cascade([Member(quick, Costs((1,), (0,), unit="seconds")), careful]),
            ConfigError,
            "costs of `quick` are in seconds, and the cascade counts in relative: say Cascade",
        ),
        (lambda: Cascade([quick, careful], unit="macs"), ConfigError, "multiply-accumulates of"),
        (
            lambda: Cascade([quick, quick]).record((words(), words()), split="val"),
            LedgerError,
            "what `quick` costs is not known",
        ),
        (
            lambda: Cascade([Member(quick, 1.0), careful]).record((words(), words())),
            LedgerError,
            "do not say which split",
        ),
        (
            lambda: Cascade([Member(lambda b: [1], 1.0), careful]).record(
                (["a", "b"], None), "val"
            ),
            NetworkError,
            "a confidence for each of 2 items, got 1",
        ),
        (
            lambda: Cascade([Member(lambda b: [1], 1.0), careful]).record((["a"], None), "val"),
            NetworkError,
            "must return logits .n, K., or for each item",
        ),
        (
            lambda: blurred().run(np.zeros((1, 8)), policy_for_words()),
            NetworkError,
            r"fitted for other models: it decides at the stages \[0, 1\] of cascade-.*, and the "
            "cascade has [0-9], of .*: record this cascade, and fit it again",
        ),
    ],
)
def test_mistakes_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
