import lightgbm
import numpy as np
import pytest
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)

TRAIN = 600
ROUNDS = 24


def lightgbm_model(rows, labels):
    made = lightgbm.LGBMClassifier(n_estimators=ROUNDS, num_leaves=7, n_jobs=1, verbose=-1)
    return made.fit(rows, labels)


def xgboost_model(rows, labels):
    xgboost = pytest.importorskip("xgboost")
    return xgboost.XGBClassifier(n_estimators=ROUNDS, max_depth=3, n_jobs=1).fit(rows, labels)


def catboost_model(rows, labels):
    catboost = pytest.importorskip("catboost")
    settings = {"verbose": 0, "thread_count": 1, "allow_writing_files": False}
    return catboost.CatBoostClassifier(ROUNDS, depth=3, **settings).fit(rows, labels)


MAKERS = {
    "lightgbm": lightgbm_model,
    "xgboost": xgboost_model,
    "catboost": catboost_model,
    "forest": lambda *data: RandomForestClassifier(ROUNDS, random_state=0).fit(*data),
    "extra-trees": lambda *data: ExtraTreesClassifier(ROUNDS, random_state=0).fit(*data),
    "hist": lambda *data: HistGradientBoostingClassifier(max_iter=ROUNDS).fit(*data),
    "gradient": lambda *data: GradientBoostingClassifier(
        n_estimators=ROUNDS, max_depth=2, random_state=0
    ).fit(*data),
}
CONTINUED = ["lightgbm", "xgboost", "catboost", "forest", "extra-trees"]


@pytest.fixture(scope="session")
def data():
    """By name: rows and labels of two classes, which have names, and of ten."""
    rows, labels = make_classification(4000, 12, n_informative=6, class_sep=0.8, random_state=0)
    return {"two": (rows, np.array(["no", "yes"])[labels]), "ten": load_digits(return_X_y=True)}


@pytest.fixture(scope="session")
def fitted(data):
    """A function of a library and of data that gives a model, made once."""
    made = {}

    def find(library, kind="ten"):
        if (library, kind) not in made:
            rows, labels = data[kind]
            if library == "xgboost" and kind == "two":  # it takes no names
                labels = (labels == "yes").astype(int)
            made[library, kind] = MAKERS[library](rows[:TRAIN], labels[:TRAIN])
        return made[library, kind]

    return find
