"""Models of trees as stages, whatever the library: the sums are the model's own."""

import numpy as np
import pytest
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression

from offramp.errors import ConfigError
from offramp.trees import tree_model

from .conftest import CONTINUED, MAKERS, ROUNDS, TRAIN


@pytest.mark.parametrize("kind", ["two", "ten"])
@pytest.mark.parametrize("library", MAKERS)
def test_all_stages_end_with_what_the_model_predicts(library, kind, fitted, data):
    model, rows = fitted(library, kind), data[kind][0][TRAIN:]
    trees = tree_model(model)
    *_, last = trees.staged(rows, [1, 5, ROUNDS])
    answered = trees.classes[trees.logits(last).argmax(axis=1)]
    assert (answered == np.ravel(model.predict(rows))).all()
    assert trees.rounds == ROUNDS
    assert np.allclose(trees.all(rows), last, atol=1e-4)


@pytest.mark.parametrize("kind", ["two", "ten"])
@pytest.mark.parametrize("library", CONTINUED)
def test_trees_are_added_to_what_was_there_whatever_the_steps(library, kind, fitted, data):
    trees, rows = tree_model(fitted(library, kind)), data[kind][0][TRAIN : TRAIN + 200]
    in_one_step = trees.add(rows, 0, 9)
    one_by_one = None
    for start in range(9):
        one_by_one = trees.add(rows, start, start + 1, one_by_one)
    assert np.allclose(one_by_one, in_one_step, atol=1e-4)
    assert not np.allclose(trees.add(rows, 0, 8), in_one_step, atol=1e-4)


@pytest.mark.parametrize("library", CONTINUED)
def test_scores_of_a_row_do_not_depend_on_the_rows_beside_it(library, fitted, data):
    trees, rows = tree_model(fitted(library)), data["ten"][0][TRAIN : TRAIN + 50]
    before = trees.add(rows, 0, 3)
    together = trees.add(rows, 3, 10, before)
    alone = trees.add(rows[7:8], 3, 10, before[7:8])
    assert np.array_equal(alone[0], together[7])


@pytest.mark.parametrize("library", ["hist", "gradient"])
@pytest.mark.parametrize("kind", ["two", "ten"])
def test_the_stages_of_scikit_learn_are_its_own(library, kind, fitted, data):
    model, rows = fitted(library, kind), data[kind][0][TRAIN : TRAIN + 50]
    stages = list(model.staged_predict(rows))
    trees = tree_model(model)
    for done, scores in zip([2, 7], trees.staged(rows, [2, 7]), strict=True):
        answered = trees.classes[trees.logits(scores).argmax(axis=1)]
        assert (answered == stages[done - 1]).all()


def test_a_forest_votes_as_far_as_it_has_come_and_is_unsure_in_the_beginning(fitted, data):
    forest, rows = fitted("forest"), data["ten"][0][TRAIN:]
    trees = tree_model(forest)
    first, last = (trees.logits(scores) for scores in trees.staged(rows, [1, ROUNDS]))
    assert (last.argmax(axis=1) == forest.predict_proba(rows).argmax(axis=1)).all()
    assert np.exp(first).max() == pytest.approx((1 + 1 / 10) / 2)  # one vote, and one for none
    assert np.exp(last).sum(axis=1) == pytest.approx(1.0)


def test_a_round_counts_its_trees(fitted):
    assert tree_model(fitted("lightgbm", "two")).trees_per_round == 1
    assert tree_model(fitted("lightgbm", "ten")).trees_per_round == 10
    assert tree_model(fitted("hist", "ten")).trees_per_round == 10
    assert tree_model(fitted("forest", "ten")).trees_per_round == 1


def test_a_round_of_xgboost_counts_its_trees(fitted):
    assert tree_model(fitted("xgboost", "ten")).trees_per_round == 10
    assert tree_model(fitted("xgboost", "two").get_booster()).classes.tolist() == [0, 1]


def test_a_model_that_was_saved_and_loaded_is_the_same_and_another_one_is_not(
    fitted, data, tmp_path
):
    import lightgbm

    model = fitted("lightgbm")
    model.booster_.save_model(tmp_path / "model.txt")
    loaded = lightgbm.Booster(model_file=tmp_path / "model.txt")
    assert tree_model(loaded).identity == tree_model(model).identity
    rows, labels = data["ten"]
    other = MAKERS["lightgbm"](rows[: TRAIN - 100], labels[: TRAIN - 100])
    assert tree_model(other).identity != tree_model(model).identity


def test_early_stopping_in_training_sets_the_number_of_rounds(data):
    import lightgbm

    rows, labels = data["two"]
    model = lightgbm.LGBMClassifier(n_estimators=200, learning_rate=0.5, verbose=-1, n_jobs=1)
    stop = [lightgbm.early_stopping(3, verbose=False)]
    held_out = [(rows[TRAIN:1000], labels[TRAIN:1000])]
    model.fit(rows[:TRAIN], labels[:TRAIN], eval_set=held_out, callbacks=stop)
    trees = tree_model(model)
    assert trees.rounds == model.best_iteration_ < 200
    answered = trees.classes[trees.logits(trees.all(rows)).argmax(axis=1)]
    assert (answered == model.predict(rows)).all()


@pytest.mark.parametrize(
    "model", [LogisticRegression(), RandomForestRegressor(), BaggingClassifier()]
)
def test_other_models_are_refused_by_name(model):
    with pytest.raises(ConfigError, match=f"or a random forest .* got a {type(model).__name__}"):
        tree_model(model)


def test_regression_is_refused_since_every_tree_changes_its_answer(data):
    import lightgbm

    rows, labels = data["ten"]
    model = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1).fit(rows, labels)
    with pytest.raises(ConfigError, match="objective 'regression': of a regression or a ranking"):
        tree_model(model)


def test_regression_of_other_libraries_is_refused_too(data):
    rows, labels = data["ten"]
    xgboost = pytest.importorskip("xgboost")
    with pytest.raises(ConfigError, match="'reg:squarederror'"):
        tree_model(xgboost.XGBRegressor(n_estimators=3).fit(rows, labels))
    catboost = pytest.importorskip("catboost")
    model = catboost.CatBoostRegressor(3, verbose=0, allow_writing_files=False).fit(rows, labels)
    with pytest.raises(ConfigError, match="'RMSE'"):
        tree_model(model)


def test_averages_of_trees_in_lightgbm_are_refused(data):
    import lightgbm

    settings = {"boosting_type": "rf", "bagging_fraction": 0.5, "bagging_freq": 1}
    model = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1, **settings)
    with pytest.raises(ConfigError, match="boosting='rf' of LightGBM averages"):
        tree_model(model.fit(*data["ten"]))


def test_a_forest_with_several_outputs_is_refused(data):
    rows, labels = data["ten"]
    model = RandomForestClassifier(3).fit(rows, np.stack([labels, labels], axis=1))
    with pytest.raises(ConfigError, match="must have one output"):
        tree_model(model)
