"""Ledgers of trees: the logits after so many rounds, and what rounds cost."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier

import offramp
from offramp import trees
from offramp.errors import ConfigError, LedgerError
from offramp.trees.record import class_numbers, placed

from .conftest import CONTINUED, MAKERS, ROUNDS, TRAIN


@pytest.mark.parametrize("library", MAKERS)
def test_the_last_exit_is_the_model_and_the_costs_are_its_trees(library, fitted, data):
    rows, labels = (part[TRAIN:] for part in data["ten"])
    model = fitted(library)
    ledger = trees.record(model, (rows, labels), "all", at=[2, 6])
    assert ledger.num_exits == 3 and ledger.unit == "trees"
    assert (
        ledger.costs == np.array([2, 6, ROUNDS]) * trees.tree_model(model).trees_per_round
    ).all()
    accuracy = (np.ravel(model.predict(rows)) == labels).mean()
    assert ledger.heads_correct[:, -1].mean() == accuracy


def test_labels_have_the_names_that_the_model_knows(fitted, data):
    rows, labels = data["two"]
    ledger = trees.record(fitted("hist", "two"), (rows[TRAIN:], labels[TRAIN:]), "all")
    assert ledger.class_names == ["no", "yes"]
    assert (ledger.labels == (labels[TRAIN:] == "yes")).all()
    assert not trees.record(fitted("hist", "two"), (rows, None), "all").has_labels
    with pytest.raises(LedgerError, match=r"which are no, yes; got .*'maybe'.* at row 1"):
        trees.record(fitted("hist", "two"), (rows[:2], ["yes", "maybe"]), "all")


def test_classes_are_found_in_any_order():
    assert class_numbers(np.array([7, 3, 5]), [3, 5, 7, 3]).tolist() == [1, 2, 0, 1]
    with pytest.raises(LedgerError, match=r"0, 1, 2, 3, 4, \.\.\. \(9 in all\); got .*12"):
        class_numbers(np.arange(9), np.array([1, 12]))


def test_exits_are_placed_ever_farther_apart_where_nothing_is_said(fitted):
    model = trees.tree_model(fitted("lightgbm"))
    places = placed(model)
    assert places[-1] == ROUNDS and places[0] == 1 and len(places) <= 10
    assert (np.diff(places, 2) >= -1).all()
    model.rounds = 300
    try:
        assert placed(model) == [6, 9, 14, 22, 34, 53, 81, 126, 194, 300]
    finally:
        model.rounds = ROUNDS


@pytest.mark.parametrize("at", [[3, 2], [2, 2], [5, ROUNDS + 1]])
def test_rounds_that_are_not_there_are_refused(at, fitted):
    with pytest.raises(ConfigError, match=rf"ascending numbers of rounds in 1..{ROUNDS}, got"):
        trees.record(fitted("lightgbm"), (np.ones((1, 64)), None), "all", at=at)
    with pytest.raises(ConfigError, match="`at` must be a whole number of at least 1, got 0"):
        trees.record(fitted("lightgbm"), (np.ones((1, 64)), None), "all", at=[])


def test_a_single_round_cannot_stop_early(data):
    forest = RandomForestClassifier(1).fit(*data["ten"])
    with pytest.raises(ConfigError, match="at least two rounds of trees, and this one has 1"):
        trees.record(forest, data["ten"], "all")


def test_tables_give_what_arrays_give(fitted, data):
    rows, labels = data["ten"]
    frame = pd.DataFrame(rows[TRAIN:], columns=[f"Column_{i}" for i in range(64)])
    for library in ("lightgbm", "forest"):
        of_array = trees.record(fitted(library), (rows[TRAIN:], labels[TRAIN:]), "all")
        of_table = trees.record(fitted(library), (frame, labels[TRAIN:]), "all")
        assert np.array_equal(of_array.logits, of_table.logits)


def test_parts_of_one_ledger_and_ledgers_of_one_model_belong_together(fitted, data):
    rows, labels = data["ten"]
    model, other = fitted("lightgbm"), fitted("forest")
    first, second = (
        trees.record(model, (rows[a:b], labels[a:b]), "all") for a, b in ((600, 900), (900, 1700))
    )
    assert first.network == second.network
    assert trees.record(other, (rows, labels), "all").network != first.network
    assert trees.record(model, (rows, labels), "all", at=[3]).network != first.network


def test_auto_finds_a_policy_that_saves_most_trees_of_an_easy_task(fitted, data):
    rows, labels = data["two"]
    ledger = trees.record(fitted("lightgbm", "two"), (rows[TRAIN:], labels[TRAIN:]), "all")
    held_out, val, test = ledger.partition()
    policy = offramp.auto(held_out, val, [0.5])[0.5]
    found = offramp.evaluate(policy, policy.view(test))
    assert found.accuracy > found.full_accuracy - 0.02
    assert found.mean_cost < 0.55


@pytest.mark.parametrize("library", CONTINUED)
def test_seconds_are_measured_for_single_rows(library, fitted, data):
    times = trees.measure(fitted(library), data["ten"][0], at=[2, 6], turns=2)
    assert times.stages.shape == (3, 1)
    assert (times.stages > 0).all() and not times.heads.any()
    assert not times.origin  # so that the seconds of decisions are added


def test_seconds_of_batches_hold_the_decisions_and_shrink(fitted, data):
    rows, labels = data["ten"]
    times = trees.measure(fitted("lightgbm"), rows, batch_size=100, at=[2, 6], turns=2)
    assert times.stages.shape == times.heads.shape == (3, 11)
    assert (times.stages[:, 0] < times.stages[:, -1]).all()
    assert times.origin
    ledger = trees.record(fitted("lightgbm"), (rows, labels), "all", at=[2, 6], costs=times)
    assert ledger.unit == "seconds"
    assert ledger.reference_cost == times.reference


def test_seconds_need_a_batch_and_a_model_that_can_go_on(fitted, data):
    rows = data["ten"][0]
    with pytest.raises(ConfigError, match=r"`batch_size` must lie in \[1, 5\], got 6"):
        trees.measure(fitted("lightgbm"), rows[:5], batch_size=6)
    for library in ("hist", "gradient"):
        with pytest.raises(
            ConfigError, match=r"GradientBoostingClassifier cannot go on .* can be"
        ):
            trees.measure(fitted(library), rows)
