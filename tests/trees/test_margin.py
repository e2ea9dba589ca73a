"""A certified margin for LightGBM: the simulation is exact, and the certificate holds."""

import lightgbm
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_classification
from typer.testing import CliRunner

from offramp import trees
from offramp.bounds import certified, upper_bounds
from offramp.cli.app import app
from offramp.cli.trees import _table
from offramp.errors import ConfigError, FileFormatError, LedgerError
from offramp.trees.margin import MARGINS, stopped_by_margin

from .conftest import ROUNDS, TRAIN


@pytest.fixture(scope="module")
def easy():
    """A model of 60 rounds, and 6,000 rows with labels that it has not seen."""
    rows, labels = make_classification(
        7000, 10, n_informative=6, n_classes=3, class_sep=2.0, random_state=1
    )
    model = lightgbm.LGBMClassifier(n_estimators=60, num_leaves=7, verbose=-1, n_jobs=1)
    return model.fit(rows[:1000], labels[:1000]), rows[1000:], labels[1000:]


@pytest.mark.parametrize("kind", ["two", "ten"])
@pytest.mark.parametrize("freq", [1, 5, 7])
def test_margins_stop_where_lightgbm_stops_by_itself(kind, freq, fitted, data):
    model, rows = fitted("lightgbm", kind), data[kind][0][TRAIN:]
    margins = [0.3, 1.0, 2.5, np.inf]
    found = stopped_by_margin(model, rows, margins, freq)
    for column, margin in enumerate(margins[:-1]):
        settings = {"pred_early_stop_margin": margin, "pred_early_stop_freq": freq}
        own = model.predict_proba(rows, raw_score=True, pred_early_stop=True, **settings)
        stages = {
            stop: model.predict_proba(rows, raw_score=True, num_iteration=stop)
            for stop in set(found.rounds[:, column].tolist())
        }
        expected = [stages[stop][row] for row, stop in enumerate(found.rounds[:, column].tolist())]
        assert np.allclose(own, expected)
        predicted = own.argmax(axis=1) if own.ndim == 2 else own > 0
        assert (found.predictions[:, column] == predicted).all()
    assert (found.rounds[:, -1] == ROUNDS).all()
    assert (found.rounds[:, 0] < ROUNDS).mean() > 0


def test_what_is_found_goes_into_predict_and_saves_trees(easy):
    model, rows, labels = easy
    found = trees.early_stop(model, rows[:4000], labels[:4000], max_drop=0.005)
    assert found.stops and found["pred_early_stop_freq"] == 5
    assert found.rounds < 0.6 and found.drop <= found.drop_bound <= 0.005
    assert "at most 0.5 points below that of all trees, with confidence 0.95 on 4,000" in str(
        found
    )
    new, truth = rows[4000:], labels[4000:]
    lost = (model.predict(new) == truth).mean() - (model.predict(new, **found) == truth).mean()
    assert lost <= 0.005
    booster = model.booster_.predict(new, **found).argmax(axis=1)
    assert (booster == model.predict(new, **found)).all()


def test_the_smallest_margin_is_taken_of_all_that_are_certified_on_the_way(easy):
    model, rows, labels = easy
    found = trees.early_stop(model, rows, labels, max_drop=0.003, delta=0.1)
    stopped = stopped_by_margin(model, rows, [np.inf, *MARGINS], 5)
    hits = stopped.predictions == labels[:, None]
    losses = hits[:, :1] - hits[:, 1:].astype(float)
    bounds = upper_bounds(losses, 0.1, signed=True)
    count = certified(bounds, 0.003)
    assert found["pred_early_stop_margin"] == MARGINS[count - 1]
    assert found.drop == losses[:, count - 1].mean()


def test_the_certificate_is_broken_by_few_draws_of_rows(easy):
    """Rows are drawn from a world whose true drops are known: all 6,000, with replacement."""
    model, rows, labels = easy
    stopped = stopped_by_margin(model, rows, [np.inf, *MARGINS], 5)
    hits = stopped.predictions == labels[:, None]
    losses = hits[:, :1] - hits[:, 1:].astype(float)
    true, rng, broken, chosen = losses.mean(axis=0), np.random.default_rng(0), 0, 0
    for _ in range(200):
        drawn = losses[rng.integers(len(losses), size=1500)]
        count = certified(upper_bounds(drawn, 0.2, signed=True), 0.004)
        chosen += count > 0
        broken += count > 0 and true[count - 1] > 0.004
    assert chosen > 100
    assert broken <= 0.2 * 200


def test_without_enough_rows_all_trees_are_computed_and_the_reason_says_what_could_be(easy):
    model, rows, labels = easy
    found = trees.early_stop(model, rows[:200], labels[:200], max_drop=0.001)
    assert dict(found) == {"pred_early_stop": False} and not found.stops
    assert "no margin can be certified to lose at most 0.1 points" in found.why
    assert "the smallest drop that could be is" in found.why
    assert (model.predict(rows, **found) == model.predict(rows)).all()


def test_a_margin_that_is_not_quicker_is_not_taken(easy, monkeypatch):
    model, rows, labels = easy
    monkeypatch.setattr("offramp.trees.margin._seconds", lambda *_: 0.99)
    found = trees.early_stop(model, rows, labels, max_drop=0.01)
    assert dict(found) == {"pred_early_stop": False}
    assert "is certified, and takes 0.99 times as long as all trees" in found.why


def test_other_libraries_have_no_such_setting(fitted, data):
    with pytest.raises(ConfigError, match=r"a RandomForestClassifier: use offramp\.trees\.TreeR"):
        trees.early_stop(fitted("forest"), *data["ten"])


def test_settings_and_labels_are_checked(easy):
    model, rows, labels = easy
    with pytest.raises(ConfigError, match=r"`max_drop` must lie in \(0, 1\), got 2"):
        trees.early_stop(model, rows, labels, max_drop=2)
    with pytest.raises(ConfigError, match=r"`freq` must lie in \[1, 60\], got 0"):
        trees.early_stop(model, rows, labels, freq=0)
    with pytest.raises(LedgerError, match=r"labels must be classes of the model"):
        trees.early_stop(model, rows, labels + 5)


def test_the_command_prints_settings_for_predict(easy, tmp_path):
    model, rows, labels = easy
    model.booster_.save_model(tmp_path / "model.txt")
    frame = pd.DataFrame(rows, columns=model.booster_.feature_name()).assign(label=labels)
    frame.iloc[:, ::-1].to_parquet(tmp_path / "data.parquet")  # columns are found by name
    frame.to_csv(tmp_path / "data.csv", index=False)
    for name in ("data.parquet", "data.csv"):
        command = ["trees", tmp_path / "model.txt", tmp_path / name, "--max-drop", "0.01"]
        found = CliRunner().invoke(app, list(map(str, command)))
        assert found.exit_code == 0, found.output
        assert "pred_early_stop=True, pred_early_stop_margin=" in found.output


def test_the_command_refuses_other_files(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("")
    with pytest.raises(FileFormatError, match=r"DATA must be a \.parquet or a \.csv file"):
        _table(path, "label", ["a"])
    path = tmp_path / "data.csv"
    pd.DataFrame({"a": [1], "b": [2], "lable": [0]}).to_csv(path, index=False)
    with pytest.raises(ConfigError, match="no column 'label'; did you mean `lable`"):
        _table(path, "label", ["a"])
    with pytest.raises(ConfigError, match="must have the 3 features of the model besides 'lable'"):
        _table(path, "lable", ["x", "y", "z"])
    rows, labels = _table(path, "lable", ["Column_0", "Column_1"])
    assert rows.to_numpy().tolist() == [[1, 2]] and labels.tolist() == [0]


def test_the_command_refuses_a_file_that_is_no_model(tmp_path):
    from offramp.cli.trees import trees_command

    for name in ("model.txt", "data.csv"):
        (tmp_path / name).write_text("nonsense")
    with pytest.raises(FileFormatError, match="must be a text file that LightGBM saved"):
        trees_command(tmp_path / "model.txt", tmp_path / "data.csv")
