"""Ledgers of answers without logits: made, read, cut, and used by the whole decision core."""

import json

import numpy as np
import pytest

import offramp
from offramp import Ledger, MaxProbability, Policy
from offramp.answers import GeometricEnsemble, MajorityVote, TemperatureScaling
from offramp.arrays import sigmoid
from offramp.errors import FileFormatError, LedgerError, OfframpError
from offramp.guarantees import Guarantee, certify
from offramp.ledger import AnswerHistory, AnswerLedger, History
from offramp.registry import GROUPS
from offramp.report.tables import comparison_tables
from offramp.scorers import (
    BreakEven,
    Entropy,
    LogisticCorrector,
    Patience,
)

from ..registered import ANSWERS, SCORERS, quick, without_logits


def quiz(samples=240, stages=4, seed=0, **changes):
    """Questions that get easier with thought: some are known at once, some never."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, stages + 2, samples)  # the stage that finds it; some never do
    answers, confidence, tokens = [], [], []
    for when in found:
        right = np.arange(stages) >= when
        answers.append([f"{'yes' if hit else 'no' + str(rng.integers(3))}" for hit in right])
        odds = np.where(right, 1.5, -0.5) + rng.normal(size=stages)
        confidence.append(1 / (1 + np.exp(-odds)))
        tokens.append(rng.integers(5, 40, stages).cumsum())
    arguments = {
        "confidence": np.array(confidence),
        "labels": ["yes"] * samples,
        "costs": np.array(tokens),
        "unit": "tokens",
        "split": "all",
        "network": "quiz",
        "groups": [n // 2 for n in range(samples)],
        **changes,
    }
    return Ledger.from_answers(answers, **arguments)


@pytest.fixture(scope="module")
def parts():
    return quiz(600).partition()


def test_answers_are_compared_after_the_normaliser():
    ledger = Ledger.from_answers(
        [[" A", "a", "b"], ["b", "c", "B"]],
        confidence=[[0.5, 0.6, 0.7], [0.2, 0.9, 0.4]],
        labels=["A", "b "],
        costs=[1, 2, 3],
        split="test",
        normalise=lambda text: text.strip().lower(),
    )
    assert ledger.labels.tolist() == [[True, True, False], [True, False, True]]
    assert ledger.outputs[..., 1].tolist() == [[0, 0, 2], [0, 1, 0]]
    assert np.allclose(sigmoid(ledger.outputs[0, :, 0]), [0.5, 0.6, 0.7])


def test_correct_says_more_than_one_answer_may_be_right():
    ledger = Ledger.from_answers(
        [["1/2", "0.5"], ["3", "4"]],
        confidence=[[0.5, 0.6], [0.2, 0.9]],
        correct=[[True, True], [False, True]],
        costs=[1, 2],
        split="test",
    )
    policy_says = ledger.outputs[..., 1].astype(int)
    assert policy_says.tolist() == [[0, 1], [0, 1]]
    assert offramp.targets.correctness(policy_says, ledger.labels).tolist() == [
        [True, True],
        [False, True],
    ]


def test_probabilities_and_their_logarithms_are_the_same():
    probs = np.array([[0.3, 0.999], [1.0, 1e-30]])
    with np.errstate(divide="ignore"):
        logs = np.log(probs)
    made = [
        Ledger.from_answers(
            correct=[[True, False]] * 2, costs=[1, 2], split="test", **{name: values}
        )
        for name, values in (("confidence", probs), ("log_confidence", logs))
    ]
    assert np.allclose(*(ledger.outputs for ledger in made), rtol=1e-5)
    assert made[0].history_type.name == "confidences"
    assert np.isfinite(made[0].outputs).all()


def test_chains_that_end_and_stages_that_are_missing_keep_what_was_said_before():
    ledger = Ledger.from_answers(
        [["a", "b", "b"], ["c"], ["d", None, "e"]],
        confidence=[[0.1, 0.2, 0.3], [0.9], [0.4, None, 0.8]],
        labels=["b", "c", "e"],
        costs=[[1, 2, 3], [5], [1, 1, 4]],
        split="test",
    )
    assert ledger.lengths.tolist() == [3, 1, 3]
    assert ledger.labels.tolist() == [[False, True, True], [True] * 3, [False, False, True]]
    assert ledger.cost_model.cumulative.tolist() == [[1, 2, 3], [5, 5, 5], [1, 1, 4]]
    assert sigmoid(ledger.outputs[2, :, 0]).tolist() == pytest.approx([0.4, 0.4, 0.8])
    masked = Ledger.from_answers(
        [["a", "b", "b"], ["c", "x", "x"], ["d", "x", "e"]],
        confidence=[[0.1, 0.2, 0.3], [0.9, 0.5, 0.5], [0.4, 0.5, 0.8]],
        mask=[[True] * 3, [True, False, False], [True, False, True]],
        labels=["b", "c", "e"],
        costs=[[1, 2, 3], [5, 9, 9], [1, 1, 4]],
        split="test",
    )
    assert np.array_equal(masked.outputs, ledger.outputs)
    assert np.array_equal(masked.cost_model.cumulative, ledger.cost_model.cumulative)


def test_a_missing_answer_is_not_normalised():
    ledger = Ledger.from_answers(
        [["A", None, "b"], ["B", "b"]],
        confidence=[[0.4, None, 0.8], [0.3, 0.6]],
        labels=["B", "b"],
        costs=[1, 2, 3],
        split="test",
        normalise=str.lower,
    )
    assert ledger.labels.tolist() == [[False, False, True], [True, True, True]]
    assert ledger.outputs[..., 1].tolist() == [[0, 0, 2], [0, 0, 0]]


def test_kept_stages_know_which_of_them_said_it_first():
    ledger = Ledger.from_answers(
        [["a", "b", "a", "b"]] * 2,
        confidence=[[0.5] * 4] * 2,
        labels=["b", "a"],
        costs=[1, 2, 3, 4],
        split="test",
    ).keep_exits([1, 2, 3])
    assert ledger.outputs[..., 1].tolist() == [[0, 1, 0]] * 2
    assert ledger.labels.tolist() == [[True, False, True], [False, True, False]]


def test_a_saved_ledger_is_read_back(tmp_path):
    ledger = quiz(features=np.random.default_rng(0).normal(size=(240, 4, 2)))
    read = Ledger.load(ledger.save(tmp_path / "ledger"))
    assert repr(read) == repr(ledger)
    assert "240 samples in 120 groups, 4 stages of answers, 2 features, tokens" in repr(read)
    assert np.array_equal(read.outputs, ledger.outputs)
    assert np.array_equal(read.labels, ledger.labels)
    with pytest.raises(LedgerError, match="has no logits: it holds answers"):
        _ = read.logits


def rows():
    return [
        {
            "answers": ["a", "b"],
            "confidence": [0.4, 0.8],
            "label": "b",
            "costs": [3, 9],
            "group": f"q{number}",
            "id": f"s{number}",
            "unit": "tokens",
        }
        for number in range(20)
    ]


def test_tables_of_answers_are_read(tmp_path):
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, rows())))
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows()), tmp_path / "all.parquet")
    np.savez(
        tmp_path / "all.npz",
        answers=np.array([["a", "b"]] * 20),
        confidence=np.array([[0.4, 0.8]] * 20),
        labels=np.array(["b"] * 20),
        costs=np.array([[3, 9]] * 20),
        groups=np.array([f"q{n}" for n in range(20)]),
        sample_ids=np.array([f"s{n}" for n in range(20)]),
        unit="tokens",
    )
    read = [Ledger.load(tmp_path / f"all{end}", "all") for end in (".jsonl", ".parquet", ".npz")]
    for ledger in read:
        assert np.array_equal(ledger.outputs, read[0].outputs)
        assert ledger.labels.tolist() == [[False, True]] * 20
        assert (ledger.unit, ledger.groups[3], ledger.sample_ids[3]) == ("tokens", "q3", "s3")
    from offramp.ledger import load_ledgers

    assert set(load_ledgers(tmp_path / "all.jsonl")) == {"held_out", "val", "test"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda row: (row.pop("confidence"), row.pop("answers")),
            "no `confidence`, no `log_confidence` and no `answers`; it has costs",
        ),
        (
            lambda row: row.update(confidense=row.pop("confidence")),
            "rename `confidense` to `confidence`.$",
        ),
        (lambda row: row.pop("costs"), "has no `costs`"),
        (lambda row: row.update(lable=row.pop("label")), "rename `lable` to `label`"),
        (
            lambda row: row.update(confidence=[0.4, 1.8]),
            "sample 0, stage 1: .* got 1.8",
        ),
    ],
)
def test_bad_tables_are_refused_in_words(tmp_path, change, message):
    made = rows()
    for row in made:
        change(row)
    path = tmp_path / "all.jsonl"
    path.write_text("\n".join(map(json.dumps, made)))
    with pytest.raises(OfframpError, match=message):
        Ledger.load(path, "all")


def test_files_may_say_what_each_model_alone_has_cost(tmp_path):
    path = tmp_path / "calls.jsonl"
    told = [{**row, "model_costs": [1, 8], "unit": "dollars"} for row in rows()]
    for row in told:
        del row["costs"]
    path.write_text("\n".join(map(json.dumps, told)))
    ledger = Ledger.load(path, "all")
    assert ledger.cost_model.is_cascade and ledger.unit == "dollars"
    assert (ledger.costs.tolist(), ledger.reference_cost) == ([1, 9], 8)
    for costs in ([1.0, 8.0], [[1.0, 8.0]] * 3):
        arrays = {"confidence": [[0.4, 0.8]] * 3, "correct": [[0, 1]] * 3, "model_costs": costs}
        np.savez(tmp_path / "calls.npz", **arrays)
        assert Ledger.load(tmp_path / "calls.npz", "all").reference_cost == 8
    path.write_text(json.dumps({**told[0], "costs": [1, 9]}))
    with pytest.raises(FileFormatError, match="`model_costs`, what each model alone"):
        Ledger.load(path, "all")


def test_columns_of_another_purpose_are_left_out(tmp_path):
    path = tmp_path / "all.jsonl"
    path.write_text("\n".join(json.dumps({**row, "prompt": "?"}) for row in rows()))
    assert len(Ledger.load(path, "all")) == 20


def test_broken_lines_are_named(tmp_path):
    path = tmp_path / "all.jsonl"
    path.write_text(json.dumps(rows()[0]) + "\n{")
    with pytest.raises(FileFormatError, match="line 2 is not valid JSON"):
        Ledger.load(path, "all")
    path.write_text("[1]")
    with pytest.raises(FileFormatError, match="line 1 must be an object such as"):
        Ledger.load(path, "all")
    short = {key: value for key, value in rows()[0].items() if key != "group"}
    path.write_text("\n".join(map(json.dumps, [*rows(), short])))
    with pytest.raises(FileFormatError, match="row 21 lacks group"):
        Ledger.load(path, "all")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"confidence": [[-0.1, 0.5]]}, "give log-probabilities as log_confidence"),
        ({"confidence": None, "log_confidence": [[0.1, -0.5]]}, "give probabilities as confid"),
        (
            {"log_confidence": [[-0.1, -0.5]]},
            "either `confidence`, probabilities, or `log_confidence`",
        ),
        ({"reference": "first"}, "`reference` must be one of last, vote"),
        ({"confidence": [[0.5]]}, "`answers` has 2 stages for sample 0, and the confidences"),
        ({"confidence": [[None, 0.5]]}, "sample 0 has no first stage"),
        ({"confidence": [["x", 0.5]]}, "must be numbers, got 'x' at sample 0, stage 0"),
        ({"correct": [[True, False]]}, "either `labels` or `correct`"),
        ({"answers": None}, "`labels` need `answers`"),
        ({"labels": ["a", "b"]}, "`labels` must be 1, one per sample, got 2"),
        ({"labels": None, "correct": [[1, 2]]}, "must be True or False, got 2"),
        ({"features": [[[1.0], [float("nan")]]]}, "finite, got nan at sample 0, stage 1"),
        ({"answers": [["a"]], "confidence": [[0.5]]}, "at least two stages"),
        ({"costs": [[2, 1]]}, "must not fall"),
        ({"answers": "ab"}, "must be a table"),
        ({"unit": "euros"}, "`unit` must be one of macs"),
        ({"normalise": int}, "`normalise` fails on the answer 'a': ValueError"),
        ({"labels": [["a", "b"]]}, "`labels` is one right answer per sample, got .'a', 'b'."),
        ({"costs": [[1, 2, 3]]}, "`costs` has 3 stages for sample 0, not 2"),
        ({"costs": [1, 2, 3]}, "one cost per exit: there are 2 exits, and 3 costs"),
    ],
)
def test_bad_answers_are_refused_in_words(changes, message):
    arguments = {
        "answers": [["a", "b"]],
        "confidence": [[0.5, 0.6]],
        "labels": ["b"],
        "costs": [1, 2],
        "split": "test",
        **changes,
    }
    with pytest.raises(LedgerError, match=message):
        Ledger.from_answers(**arguments)


@pytest.mark.parametrize("scorer", [quick(each) for each in without_logits(SCORERS)], ids=repr)
@pytest.mark.parametrize("answer", without_logits(ANSWERS), ids=repr)
def test_sessions_decide_as_ledgers_do(parts, scorer, answer, tmp_path):
    policy = Policy(scorer, answer).fit(parts.held_out).tune(parts.val).at(budget=0.6)
    policy = Policy.load(policy.save(tmp_path / "policy"))
    test = parts.test.take(range(60))
    replay = policy.replay(test)
    table = test.cost_model.cumulative
    for sample, (odds, said) in enumerate(_said(test)):
        session = policy.start()
        for stage in range(4):
            if session.observe(said[stage], odds[stage], cost=float(table[sample, stage])):
                break
        assert session.stage == replay.exits[sample]
        assert session.answer == said[int(replay.predictions[sample, session.stage])]
        assert session.cost == pytest.approx(float(replay.costs[sample]) * test.reference_cost)
        if session.score is not None:
            assert session.score == float(replay.scores[sample, session.stage])
        gave_up = bool(replay.gave_up[sample])
        assert session.why == ("last" if session.stage == 3 else "hopeless" if gave_up else "sure")


def _said(ledger):
    """Confidences and answers of each sample, from what the ledger keeps of them."""
    for row in ledger.outputs:
        yield sigmoid(row[:, 0].astype(np.float64)).tolist(), row[:, 1].tolist()


def test_sessions_on_logits_decide_as_ledgers_do(splits):
    policy = Policy(LogisticCorrector()).fit(splits["held_out"]).tune(splits["val"])
    policy, test = policy.at(budget=0.5), splits["test"].take(range(50))
    exits = policy.decide(test)
    for logits, wanted in zip(test.logits, exits.tolist(), strict=True):
        session = policy.start()
        assert [session.observe(row) for row in logits[: wanted + 1]][-1]
        assert session.stage == wanted
        assert session.why in ("sure", "last")
    with pytest.raises(OfframpError, match="this session has stopped at stage"):
        session.observe(logits[0])
    with pytest.raises(LedgerError, match="observes 10 finite logits"):
        policy.start().observe([1.0, 2.0])


def test_sessions_refuse_what_the_policy_does_not_know(parts):
    policy = Policy(MaxProbability()).fit(parts.held_out).tune(parts.val).at(budget=0.6)
    session = policy.start()
    with pytest.raises(OfframpError, match="nothing was observed yet"):
        _ = session.answer
    with pytest.raises(LedgerError, match="either `confidence` or `log_confidence`"):
        session.observe("yes")
    with pytest.raises(LedgerError, match="reads 0 features per stage, got 1"):
        session.observe("yes", 0.5, features=[1.0])
    with pytest.raises(LedgerError, match="a confidence is a probability"):
        session.observe("yes", 2.0)
    session.observe("yes", 0.01, cost=30)
    with pytest.raises(LedgerError, match="does not fall: got 20 after 30"):
        session.observe("yes", 0.01, cost=20)


@pytest.mark.parametrize(
    ("scorer", "answer"),
    [
        (Entropy(), None),
        (MaxProbability(), TemperatureScaling()),
        (MaxProbability(), GeometricEnsemble()),
    ],
)
def test_what_needs_logits_says_so(parts, scorer, answer):
    with pytest.raises(LedgerError, match="needs the logits, and this ledger has only answers"):
        Policy(scorer, answer).fit(parts.held_out)


def test_what_needs_answers_says_so():
    ledger = Ledger.from_answers(
        confidence=[[0.5, 0.6]] * 9, correct=[[True, True]] * 9, costs=[1, 2], split="held_out"
    )
    with pytest.raises(LedgerError, match="Patience needs the answers, and this ledger has only"):
        Policy(Patience()).fit(ledger)


def test_nothing_sees_a_later_stage(parts):
    policy = Policy(LogisticCorrector(), MajorityVote()).fit(parts.held_out).tune(parts.val)
    test = parts.test
    scores = policy.replay(test).scores[:, :2]
    later = np.floor(np.abs(np.random.default_rng(0).normal(size=(len(test), 2, 2))))
    cut = policy.replay(
        AnswerLedger(
            np.concatenate([test.outputs[:, :2], later], axis=1),
            test.labels,
            test.cost_model,
            split="test",
            network="quiz",
            groups=test.groups,
        )
    ).scores[:, :2]
    assert np.array_equal(scores, cut)


def test_features_help_where_they_tell():
    ledger = quiz(600)
    right = ledger.labels.astype(float)
    noise = 0.1 * np.random.default_rng(0).normal(size=(600, 4, 1))
    told = quiz(600, features=right[..., None] + noise)
    reached = []
    for made in (ledger, told):
        held_out, val, test = made.partition()
        policy = Policy(LogisticCorrector()).fit(held_out).tune(val).at(budget=0.6)
        reached.append(float(offramp.evaluate(policy, test).eefp[:-1].mean()))
    assert reached[1] > reached[0] + 0.02


def test_the_core_works_on_answers(parts):
    table = offramp.compare(
        *parts, ["standard", "patience", "vote", "auto"], budgets=[0.5, 0.7], seeds=1, resamples=50
    )
    names = [method.name for method in table.methods]
    assert names == [*GROUPS["answers"], "patience", "vote"]
    assert table["auto"].accuracy(0.5) > table.references.mixes[0].accuracy
    assert 0.5 < table.references.reachable[0].accuracy <= table.references.oracle[0].accuracy
    (ways,) = (part for part in comparison_tables(table) if part.name == "ways")
    outcome = offramp.evaluate(table.plans["eefp-logistic"][0][0.7], parts.test)
    assert f"{outcome.sure_share:.1%} / {outcome.gave_up_share:.1%}" == ways.rows[1][2].text
    advice = offramp.advise(*parts, budgets=[0.7], resamples=50)
    assert advice.verdict == "exits"
    restored = type(table).from_json(json.loads(json.dumps(table.to_json())))
    assert restored["vote"].accuracy(0.5) == table["vote"].accuracy(0.5)


def test_outcomes_tell_the_two_ways_to_stop_apart(parts):
    policy = Policy(LogisticCorrector()).fit(parts.held_out).tune(parts.val).at(budget=0.4)
    outcome, replay = offramp.evaluate(policy, parts.test), policy.replay(parts.test)
    early = replay.exits < 3
    sure = replay.confidences[range(len(replay)), replay.exits] >= 0.5
    assert outcome.sure_share == pytest.approx((early & sure).mean())
    assert outcome.gave_up_share == pytest.approx((early & ~sure).mean())
    assert outcome.gave_up_share > 0
    lost = early & ~sure & ~replay.right & replay.correct[:, -1]
    assert outcome.gave_up_loss == pytest.approx(lost.mean())
    assert "as hopeless" in str(outcome)


@pytest.mark.parametrize("loss", ["regret", "regret-sure", "regret-hopeless"])
def test_each_way_to_stop_can_be_certified(parts, loss):
    policy = Policy(LogisticCorrector()).fit(parts.held_out)
    policy.tune(parts.held_out, "geometric", allow_split="held_out")
    found = certify(policy, parts.val, Guarantee(epsilon=0.15, loss=loss))
    replay = found.policy.replay(parts.val, "val", "val")
    lost = ~replay.right & replay.correct[:, -1]
    sure = replay.confidences[range(len(replay)), replay.exits] >= 0.5
    lost &= {"regret": sure | ~sure, "regret-sure": sure, "regret-hopeless": ~sure}[loss]
    assert found.loss == pytest.approx(lost.mean())
    assert found.loss <= found.loss_bound <= 0.15


@pytest.mark.parametrize("loss", ["regret-sure", "regret-hopeless"])
def test_each_guarantee_is_broken_in_at_most_delta_of_the_draws(loss):
    world = quiz(3000, seed=1, groups=None).as_split("val")
    held_out = quiz(300, seed=2, groups=None).as_split("held_out")
    policy = Policy(LogisticCorrector()).fit(held_out)
    policy.tune(held_out, "geometric", 21, allow_split="held_out")
    replay = policy.replay(world, "val")
    exits = replay.exits_by_point.T  # [N, P]
    sure = np.take_along_axis(replay.confidences, exits, axis=1) >= 0.5
    lost = replay.correct[:, -1:] & ~np.take_along_axis(replay.correct, exits, axis=1)
    truth = (lost & (sure if loss == "regret-sure" else ~sure)).mean(axis=0)
    draws, epsilon, delta = 100, float(truth.max()) / 2, 0.1
    rng, broken, reached = np.random.default_rng(0), 0, []
    for _ in range(draws):
        sample = world.take(rng.integers(len(world), size=300))
        found = certify(policy, sample, Guarantee(epsilon=epsilon, delta=delta, loss=loss))
        reached.append(float(truth[found.policy.selected]))
        broken += reached[-1] > epsilon
    # What 100 draws may show of a true rate of 0.1, with probability 0.999.
    assert broken / draws <= delta + 3.1 * (delta * (1 - delta) / draws) ** 0.5
    assert np.mean(reached) > epsilon / 4  # and the promise is not kept by doing nothing


def test_answers_without_labels_can_be_tuned(parts):
    def unlabelled(ledger):
        return AnswerLedger(
            ledger.outputs,
            None,
            ledger.cost_model,
            split=ledger.split,
            network="quiz",
            groups=ledger.groups,
        )

    policy = Policy(BreakEven()).fit(unlabelled(parts.held_out))
    policy.tune(unlabelled(parts.val), "shared")
    assert policy.at(budget=0.6).decide(parts.test).shape == (len(parts.test),)


def test_runners_of_networks_refuse_policies_on_answers(parts):
    policy = Policy(MaxProbability()).fit(parts.held_out).tune(parts.val).at(budget=0.6)
    network = offramp.build("convnet", num_classes=2, image_size=8)
    with pytest.raises(OfframpError, match="for answers without logits"):
        offramp.Runner(network, policy)


def test_logits_and_answers_without_are_asked_in_the_same_words():
    logits = np.float32([[[1, 4, 3], [5, 0, 0], [2, 6, 1]], [[0, 0, 1], [0, 2, 1], [9, 3, 1]]])
    of_logits = History(logits, logits)
    assert of_logits.agrees.tolist() == [[True, False, True], [False, False, True]]
    assert of_logits.odds.dtype == np.float64 and of_logits.features.shape == (2, 3, 0)
    for m in range(3):
        until = of_logits.until(m)
        assert np.array_equal(of_logits.odds[:, m], until.log_odds)
        # of the two likeliest classes now, at every exit so far
        order = np.argsort(-logits[:, m], axis=1, kind="stable")[:, None, :2]
        wanted = np.take_along_axis(np.exp(until.log_probs), np.repeat(order, m + 1, 1), 2)
        np.testing.assert_allclose(until.inputs(past=True, top=2), wanted.reshape(2, -1))
        np.testing.assert_allclose(until.inputs(past=False, top=2), wanted[:, -1])
        for row in range(2):
            one = until.take(slice(row, row + 1)).inputs(past=True, top=2)
            assert np.array_equal(one[0], until.inputs(past=True, top=2)[row])
    stated = np.array([[[2.0, 0.0, 7.0], [-1.0, 1.0, 8.0], [3.0, 0.0, 9.0]]])
    without = AnswerHistory(stated, stated)
    assert without.agrees.tolist() == [[True, False, True]]
    assert without.odds.tolist() == [[2, -1, 3]] and without.log_odds.tolist() == [3]
    assert without.features.tolist() == [[[7], [8], [9]]]
    assert without.inputs(past=True, top=1).shape == (1, 9)
    assert without.inputs(past=False, top=1)[0, 1:].tolist() == [1, 9]


@pytest.mark.parametrize("kind", [History, AnswerHistory])
def test_samples_that_are_copied_when_they_are_read_are_the_same_samples(kind):
    outputs = np.random.default_rng(0).integers(0, 3, (9, 3, 4)).astype(np.float32)
    whole = kind(outputs, outputs + 1, lengths=np.arange(9) % 3 + 1)
    _, whole.groups = whole.log_probs, np.arange(9) // 2
    for index, further in (([7, 2, 2, 5, 0], [3, 0, 1]), ([8], [0])):
        index, further = np.array(index), np.array(further)
        taken, among = whole.take(index), whole.among(index)
        pairs = (taken, among), (taken.take(further), among.among(further))
        for one, other in (*pairs, (taken.until(1), among.until(1)), (taken, whole.among(index))):
            assert len(one) == len(other) and one.exit_index == other.exit_index
            assert np.array_equal(one.lengths, other.lengths)
            assert np.array_equal(one.groups, other.groups)
            for name in ("logits", "answers", "answer", "log_probs", "predictions", "log_odds"):
                assert np.array_equal(getattr(one, name), getattr(other, name)), name
            (rows, part), *_ = other.chunks()
            assert np.array_equal(part.answers, one.answers[rows])
        assert np.shares_memory(among._all_answers, whole.answers)
        assert np.array_equal(among.take(further).logits, taken.logits[further])
