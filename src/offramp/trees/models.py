"""Models of trees as stages: the raw scores after so many rounds, by each library's public calls.

No library is imported here but that of the model, which has imported it already.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import joblib
import numpy as np

from offramp.arrays import Array
from offramp.errors import ConfigError
from offramp.ledger.origin import digest

HALVES = np.array([[-0.5, 0.5]])  # of a raw score: the logits of two classes


class TreeModel(ABC):
    """A classifier whose raw scores are sums over rounds of trees.

    A round is what boosting adds at a time, one tree or one per class; in a forest, one tree.

    Args:
        model: Fitted, of the library that the subclass is named after.

    Attributes:
        model: As given.
        classes: `[K]`, what the model calls its classes.
        rounds: How many of them `predict` uses.
        trees_per_round: How many trees are added in each of them.
        identity: Tells the model from others, also after it was saved and loaded.
    """

    can_continue: ClassVar[bool] = True
    """Whether trees can be added to raw scores; else all stages have to be computed."""

    model: Any
    classes: Array
    rounds: int
    trees_per_round: int
    identity: str

    @abstractmethod
    def add(self, rows: Any, start: int, stop: int, before: Array | None = None) -> Array:  # noqa: ANN401
        """Raw scores `[n]` or `[n, K]` with the rounds from `start` to before `stop` added."""

    def all(self, rows: Any) -> Array:  # noqa: ANN401
        """Raw scores of all rounds, as fast as the library computes them."""
        return self.add(rows, 0, self.rounds)

    def staged(self, rows: Any, at: Sequence[int]) -> Iterator[Array]:  # noqa: ANN401
        """Raw scores after each of these numbers of rounds."""
        scores, start = None, 0
        for stop in at:
            scores = self.add(rows, start, stop, scores)
            yield scores
            start = stop

    def logits(self, scores: Array) -> Array:
        """Logits `[n, K]` float32 of raw scores."""
        if scores.ndim == 1:
            scores = scores[:, None] * HALVES
        return scores.astype(np.float32)


class LightGBM(TreeModel):
    """A `Booster` or an `LGBMClassifier`."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401
        self.model = booster = getattr(model, "booster_", model)
        about = booster.dump_model(num_iteration=1)
        kind = about.get("objective", "none").split()[0]
        _check_kind(kind in ("binary", "multiclass", "multiclassova"), "LightGBM", kind)
        if about.get("average_output"):
            raise ConfigError(
                "boosting='rf' of LightGBM averages its trees, and gives no sums to go on from: "
                "take boosting='gbdt', or a random forest of scikit-learn"
            )
        self.trees_per_round = booster.num_model_per_iteration()
        self.classes = _classes(model, self.trees_per_round)
        best = booster.best_iteration
        self.rounds = best if best > 0 else booster.current_iteration()
        leaves = [booster.get_leaf_output(t, 0) for t in {0, booster.num_trees() - 1}]
        self.identity = _identity("lightgbm", self, sorted(leaves))

    def add(self, rows: Any, start: int, stop: int, before: Array | None = None) -> Array:  # noqa: ANN401
        """See `TreeModel.add`."""
        found: Array = self.model.predict(
            rows, start_iteration=start, num_iteration=stop - start, raw_score=True
        )
        return found if before is None else before + found


class XGBoost(TreeModel):
    """A `Booster` or an `XGBClassifier`."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401
        is_booster = not hasattr(model, "get_booster")
        self.model = booster = model if is_booster else model.get_booster()
        learner = json.loads(booster.save_config())["learner"]
        kind = learner["objective"]["name"]
        has_trees = learner["gradient_booster"]["name"] != "gblinear"
        _check_kind(has_trees and kind.startswith(("binary:", "multi:")), "XGBoost", kind)
        best = None if is_booster else booster.attr("best_iteration")
        self.rounds = booster.num_boosted_rounds() if best is None else int(best) + 1
        last = booster[self.rounds - 1 : self.rounds].get_dump()
        self.trees_per_round = len(last)
        self.classes = _classes(model, int(learner["learner_model_param"]["num_class"]))
        self._missing = getattr(model, "missing", math.nan)
        self.identity = _identity("xgboost", self, last[0])

    def add(self, rows: Any, start: int, stop: int, before: Array | None = None) -> Array:  # noqa: ANN401
        """See `TreeModel.add`; what was before stands in for the base score."""
        found: Array = self.model.inplace_predict(
            rows,
            iteration_range=(start, stop),
            predict_type="margin",
            missing=self._missing,
            base_margin=before,
        )
        return found


class CatBoost(TreeModel):
    """A `CatBoostClassifier`, or a `CatBoost` with the loss of one."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401
        self.model = model
        found = len(model.classes_)
        _check_kind(found > 1, "CatBoost", str(model.get_all_params().get("loss_function")))
        self.classes = np.asarray(model.classes_)
        self.rounds, self.trees_per_round = int(model.tree_count_), 1
        self.identity = _identity("catboost", self, model.get_leaf_values()[-4:].tolist())

    def add(self, rows: Any, start: int, stop: int, before: Array | None = None) -> Array:  # noqa: ANN401
        """See `TreeModel.add`."""
        found: Array = self.model.predict(
            rows, prediction_type="RawFormulaVal", ntree_start=start, ntree_end=stop
        )
        return found if before is None else before + found


class Boosting(TreeModel):
    """`GradientBoostingClassifier` or `HistGradientBoostingClassifier` of scikit-learn.

    Their public calls begin with the first round, so that nothing can go on from raw scores.
    """

    can_continue = False

    def __init__(self, model: Any) -> None:  # noqa: ANN401
        self.model, self.classes = model, model.classes_
        self.rounds = int(getattr(model, "n_iter_", 0) or model.n_estimators_)
        self.trees_per_round = 1 if len(self.classes) == 2 else len(self.classes)
        self.identity = _identity("scikit-learn", self, joblib.hash(model))

    def add(self, rows: Any, start: int, stop: int, before: Array | None = None) -> Array:  # noqa: ANN401
        """All rounds up to a number of them."""
        assert not start, "staged calls begin with the first round"
        return next(self.staged(rows, [stop]))

    def all(self, rows: Any) -> Array:  # noqa: ANN401
        """See `TreeModel.all`."""
        found: Array = self.model.decision_function(rows)
        return found

    def staged(self, rows: Any, at: Sequence[int]) -> Iterator[Array]:  # noqa: ANN401
        """See `TreeModel.staged`."""
        wanted, last = set(at), max(at)
        for done, scores in enumerate(self.model.staged_decision_function(rows), 1):
            if done in wanted:
                yield scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores
            if done == last:
                return


class Forest(TreeModel):
    """`RandomForestClassifier` or `ExtraTreesClassifier` of scikit-learn: votes so far.

    Raw scores are the sums of what the trees say of each class, as the forest itself averages.
    """

    def __init__(self, model: Any) -> None:  # noqa: ANN401
        self.model, self.classes = model, model.classes_
        if isinstance(self.classes, list):
            raise ConfigError("a forest must have one output, got one with several")
        self.rounds, self.trees_per_round = len(model.estimators_), 1
        last = model.estimators_[-1].tree_
        self.identity = _identity("scikit-learn", self, joblib.hash((last.threshold, last.value)))

    def add(self, rows: Any, start: int, stop: int, before: Array | None = None) -> Array:  # noqa: ANN401
        """See `TreeModel.add`."""
        rows = np.asarray(rows, np.float32)
        total = np.zeros((len(rows), len(self.classes))) if before is None else before
        for tree in self.model.estimators_[start:stop]:
            total = total + tree.predict_proba(rows, check_input=False)
        return total

    def all(self, rows: Any) -> Array:  # noqa: ANN401
        """See `TreeModel.all`."""
        found: Array = self.model.predict_proba(rows)
        return found * self.rounds

    def logits(self, scores: Array) -> Array:
        """The logarithm of the mean vote, with one more tree that knows nothing."""
        votes = scores.sum(axis=1, keepdims=True)
        shares = (scores + 1 / scores.shape[1]) / (votes + 1)
        logits: Array = np.log(shares).astype(np.float32)
        return logits


def tree_model(model: Any) -> TreeModel:  # noqa: ANN401
    """A model of trees as stages.

    Args:
        model: A fitted classifier of LightGBM, XGBoost, CatBoost or scikit-learn.

    Raises:
        ConfigError: It is another kind of model.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> rows, labels = load_digits(return_X_y=True)
        >>> forest = tree_model(RandomForestClassifier(20).fit(rows, labels))
        >>> forest.rounds, forest.logits(forest.add(rows[:3], 0, 5)).shape
        (20, (3, 10))
    """
    if isinstance(model, TreeModel):
        return model
    libraries: dict[str, Any] = {"lightgbm": LightGBM, "xgboost": XGBoost, "catboost": CatBoost}
    for base in type(model).__mro__:
        name = base.__module__.partition(".")[0]
        if name in libraries:
            found: TreeModel = libraries[name](model)
            return found
    from sklearn import ensemble

    forests = ensemble.RandomForestClassifier, ensemble.ExtraTreesClassifier
    boosted = ensemble.GradientBoostingClassifier, ensemble.HistGradientBoostingClassifier
    if isinstance(model, forests):
        return Forest(model)
    if isinstance(model, boosted):
        return Boosting(model)
    raise ConfigError(
        "`model` must be a classifier of LightGBM, XGBoost or CatBoost, or a random forest or a "
        f"gradient boosting classifier of scikit-learn, got a {type(model).__name__}"
    )


def _check_kind(is_known: bool, library: str, kind: str) -> None:
    if not is_known:
        raise ConfigError(
            f"trees can stop early where they classify, and this model of {library} has the "
            f"objective {kind!r}: of a regression or a ranking, every tree changes the answer"
        )


def _classes(model: Any, scores: int) -> Array:  # noqa: ANN401
    """What the model calls its classes; a booster alone counts them."""
    known = getattr(model, "classes_", None)
    return np.arange(max(scores, 2)) if known is None else np.asarray(known)


def _identity(library: str, model: TreeModel, learned: object) -> str:
    return f"{library} {digest(repr((model.rounds, len(model.classes), learned)))}"
