"""Faults of tables and cascades that would otherwise give plausible figures."""

import json
import warnings

import numpy as np
import pytest

import offramp
from offramp import Ledger, synthetic
from offramp.errors import ConfigError, FileFormatError, LedgerError, LedgerWarning
from offramp.ledger import load_ledgers
from offramp.runtime import Member

ROW = {"answers": ["4", "5"], "confidence": [0.5, 0.6], "label": "4", "model_costs": [1, 2]}


def table(folder, *rows, name="all"):
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_labels_of_another_type_are_warned_of_with_the_remedy(tmp_path):
    path = table(tmp_path, *[{**ROW, "label": 4}] * 3)
    with pytest.warns(LedgerWarning, match=r"ever right: .* '4' \(str\), and its label 4 \(int\)"):
        Ledger.load(path, "all")
    labels = {"labels": [4], "costs": [1, 2], "split": "all", "confidence": [[0.5, 0.6]]}
    found = Ledger.from_answers([["4", "5"]], normalise=str, **labels)
    assert found.labels.tolist() == [[True, False]]


def test_a_model_of_several_that_answers_in_another_type_is_named_with_the_remedy(tmp_path):
    def of_type(kind):
        return lambda items: [(kind(item), 0.9) for item in items]

    members = [Member(of_type(str), 1.0, "small"), Member(of_type(int), 5.0, "large")]
    found = r"no answer of `large` is ever right, .* is 1 \(int\), and its label '1' \(str\)"
    with pytest.warns(LedgerWarning, match=found):
        offramp.Cascade(members).record((["1", "2"], ["1", "2"]), split="all")
    with pytest.warns(LedgerWarning, match=r"no answer of stage 1 is ever right, of 3 samples: "):
        Ledger.load(table(tmp_path, *[{**ROW, "answers": ["4", 4]}] * 3), "all")
    with pytest.warns(LedgerWarning, match=r"no answer of stage 1 is ever right, .* '5' \(str\)"):
        Ledger.load(table(tmp_path, *[ROW] * 50), "all")


def test_a_stage_that_knows_nothing_yet_is_no_sign_of_a_mistake(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ledger.load(table(tmp_path, *[{**ROW, "answers": [None, "4"]}] * 3), "all")
        Ledger.load(table(tmp_path, *[{**ROW, "answers": ["5", "4"]}] * 3), "all")


def test_correct_that_is_never_true_is_warned_of():
    with pytest.warns(LedgerWarning, match="is `correct` what it should be"):
        Ledger.from_answers(
            correct=[[False, False]], confidence=[[0.5, 0.6]], costs=[1, 2], split="all"
        )


def test_answers_that_their_own_model_calls_impossible_are_warned_of():
    with pytest.warns(LedgerWarning, match="1 of the log-confidences are -inf"):
        ledger = Ledger.from_answers(
            correct=[[True, True]], log_confidence=[[-np.inf, -0.1]], costs=[1, 2], split="all"
        )
    assert ledger.history().odds[0, 0] == -80


def test_a_model_that_answered_has_a_cost_and_one_that_was_not_asked_has_none(tmp_path):
    path = table(tmp_path, ROW, {**ROW, "model_costs": [1, None]})
    with pytest.raises(FileFormatError, match="row 2: `confidence` has a value of model 1, and"):
        Ledger.load(path, "all")
    asked = {**ROW, "answers": ["4", None], "confidence": [0.5, None], "model_costs": [1, None]}
    found = Ledger.load(table(tmp_path, ROW, asked), "all")
    assert found.cumulative_costs.tolist() == [[1, 3], [1, 1]]
    assert found.lengths.tolist() == [2, 1]


def test_two_models_of_one_name_are_refused():
    def model(items):
        return [("a", 0.5) for _ in items]

    with pytest.raises(ConfigError, match="two models are called `quick`"):
        offramp.Cascade([Member(model, name="quick"), Member(model, name="quick")])
    assert offramp.Cascade([model, model, model]).stage_names == ["model", "model-2", "model-3"]


def test_a_train_file_is_cut_and_the_test_file_stays_apart(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        rows = [
            {**ROW, "confidence": rng.random(2).tolist(), "network": "made up"} for _ in range(60)
        ]
        table(tmp_path, *rows, name=name)
    found = load_ledgers(tmp_path)
    assert {name: len(part) for name, part in found.items()} == {
        "held_out": 30,
        "val": 30,
        "test": 60,
    }
    assert offramp.auto(found["held_out"], found["val"], [1.0])
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(FileFormatError, match=r"has train.jsonl, and lacks test"):
        load_ledgers(tmp_path)


def test_halves_keep_groups_whole_and_need_two_parts():
    train = synthetic.cascade(seed=0, samples=40)["val"].as_split("train")
    train.groups = [number // 4 for number in range(40)]
    held_out, val = train.halves(share=0.3)
    assert not set(held_out.groups) & set(val.groups)
    assert (len(held_out), len(val)) == (12, 28)
    with pytest.raises(LedgerError, match="too few for two parts"):
        train.take([0, 1]).halves()


def test_cascades_are_not_spoken_of_as_networks():
    splits = synthetic.cascade(seed=0, samples=100)
    plan = offramp.auto(splits["held_out"], splits["val"], [0.5])
    text = str(offramp.evaluate(plan[0.5], splits["test"]))
    assert "the last model alone" in text and "model  leave" in text
    assert "network" not in text and "exit" not in text


def test_a_cost_that_is_clearly_above_the_tuned_one_is_said():
    splits = synthetic.cascade(seed=0, samples=200)
    plan = offramp.auto(splits["held_out"], splits["val"], [0.5])
    test = splits["test"]
    hard = test.take(np.argsort(test.history().odds[:, 1])[:100])
    assert offramp.evaluate(plan[0.5], hard).overrun > 0.1
    assert "clearly more than on val: +" in str(offramp.evaluate(plan[0.5], hard))
    assert "clearly more" not in str(offramp.evaluate(plan[0.5], test))
