"""A margin for LightGBM's own early stop that is certified to lose little accuracy."""

import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from offramp import check
from offramp.arrays import AnyArray, Array
from offramp.bounds import certified, upper_bounds
from offramp.errors import ConfigError
from offramp.stopwatch import Stopwatch, Timed, take_turns
from offramp.thresholds.rule import bound_text
from offramp.trees.models import LightGBM, TreeModel, tree_model
from offramp.trees.record import WORTH, Clock, batches, class_numbers

MARGINS = np.geomspace(20, 0.5, 38).round(2)
"""From the safest to the riskiest, in raw scores (log-odds); each is a tenth below the last."""
LARGEST = 1000  # rows in a batch, to take the time on


class EarlyStop(dict[str, Any]):
    """Settings of `predict` of LightGBM, to be passed as `model.predict(rows, **settings)`.

    Without a margin that is certified and quicker, they are `pred_early_stop=False`.

    Args:
        settings: Of `predict`.
        why: What is certified, or why nothing is.
        drop: Accuracy that was lost on the rows; below zero, it was gained.
        drop_bound: The smallest `max_drop` that could have been certified for this margin.
        rounds: Mean rounds of trees, as a share of all.
        seconds: Time of `predict`, as a share of that of all trees.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        why: str,
        drop: float = 0.0,
        drop_bound: float = 0.0,
        rounds: float = 1.0,
        seconds: float = 1.0,
    ) -> None:
        super().__init__(settings)
        self.why, self.drop, self.drop_bound = why, drop, drop_bound
        self.rounds, self.seconds = rounds, seconds

    @property
    def stops(self) -> bool:
        """Whether anything stops early."""
        return bool(self["pred_early_stop"])

    def __str__(self) -> str:
        return self.why


class Stopped(NamedTuple):
    """Where LightGBM's early stop ends each of n rows, at P margins."""

    predictions: Array  # int64 `[n, P]`, numbers of classes
    rounds: Array  # int64 `[n, P]`


def early_stop(
    model: Any,  # noqa: ANN401
    rows: Any,  # noqa: ANN401
    labels: AnyArray | list[Any],
    max_drop: float = 0.002,
    delta: float = 0.05,
    freq: int = 5,
    clock: Clock = time.perf_counter,
) -> EarlyStop:
    """The smallest margin of LightGBM's early stop that is certified to lose little accuracy.

    With probability 1 - delta over the draw of the rows, the accuracy on new rows is at most
    `max_drop` below that of all trees. Margins are tried from 20 down to the first that cannot be
    certified: the path is fixed before, and the rows only certify. LightGBM stops by itself, and
    needs nothing of this library.

    Args:
        model: A `Booster` or an `LGBMClassifier`.
        rows: That the model was not trained on, drawn as new ones will be; some thousands.
        labels: `[n]`, their true classes.
        max_drop: Accuracy that may be lost, 0.002 for a fifth of a point.
        delta: Probability with which it may be more.
        freq: After how many rounds each the margin is looked at.
        clock: Seconds; `time.process_time` on a machine that others use, with one thread.

    Returns:
        Settings for `predict`; those of all trees, with the reason, where no margin is certified
        or none is quicker.

    Raises:
        ConfigError: A model of another library, which has no such setting.

    Example:
        >>> import lightgbm
        >>> from sklearn.datasets import make_classification
        >>> rows, labels = make_classification(6000, class_sep=1.5, random_state=0)
        >>> model = lightgbm.LGBMClassifier(verbose=-1, n_jobs=1).fit(rows[:1000], labels[:1000])
        >>> settings = early_stop(model, rows[1000:], labels[1000:], max_drop=0.01)
        >>> sorted(settings)
        ['pred_early_stop', 'pred_early_stop_freq', 'pred_early_stop_margin']
        >>> found = model.predict(rows[:5], **settings)
    """
    trees = tree_model(model)
    if not isinstance(trees, LightGBM):
        raise ConfigError(
            "only LightGBM stops early inside of `predict`, and `model` is a "
            f"{type(model).__name__}: use offramp.trees.TreeRunner"
        )
    check.within("max_drop", max_drop, 0, 1, ends="()")
    check.within("freq", freq, 1, trees.rounds)
    check.within("delta", delta, 0, 1, ends="()")
    right = class_numbers(trees.classes, labels)[:, None]
    stopped = stopped_by_margin(trees, rows, np.append(np.inf, MARGINS), freq)
    hits = stopped.predictions == right
    losses = hits[:, :1].astype(np.float64) - hits[:, 1:]
    bounds = upper_bounds(losses, delta, signed=True)
    count = certified(bounds, max_drop)
    sure = f"with confidence {1 - delta:g} on {len(losses):,} rows"
    if not count:
        return _all_trees(
            f"no margin can be certified to lose at most {100 * max_drop:g} points {sure}; the "
            f"smallest drop that could be is {bound_text(float(bounds[0]))}: ask for that, or "
            "bring more rows"
        )
    settings = {
        "pred_early_stop": True,
        "pred_early_stop_margin": float(MARGINS[count - 1]),
        "pred_early_stop_freq": freq,
    }
    seconds = _seconds(trees, rows, settings, clock)
    if seconds > WORTH:
        return _all_trees(
            f"a margin of {MARGINS[count - 1]:g} is certified, and takes {seconds:.2f} times as "
            "long as all trees: too few rows stop early"
        )
    drop, rounds = float(losses[:, count - 1].mean()), stopped.rounds[:, count].mean()
    why = (
        f"accuracy at most {100 * max_drop:g} points below that of all trees, {sure}; there, it "
        f"was {100 * drop:.2f} points below, with {rounds / trees.rounds:.1%} of the trees in "
        f"{seconds:.1%} of the time"
    )
    share = float(rounds / trees.rounds)
    return EarlyStop(settings, why, drop, float(bounds[count - 1]), share, seconds)


def stopped_by_margin(model: Any, rows: Any, margins: AnyArray, freq: int) -> Stopped:  # noqa: ANN401
    """Where LightGBM's early stop ends each row, at several margins.

    After every `freq` rounds, it ends a row whose margin is larger. That is twice the absolute raw
    score of two classes, or the difference between the two largest ones of several.

    Args:
        model: A `Booster` or an `LGBMClassifier`.
        rows: To predict.
        margins: `[P]`.
        freq: Rounds between two checks.
    """
    trees = tree_model(model)
    places = [*range(freq, trees.rounds, freq), trees.rounds]
    found, reached = [], []
    for scores in trees.staged(rows, places):
        found.append(trees.logits(scores).argmax(axis=1))
        reached.append(_margin(scores))
    reached[-1] = np.full(len(found[-1]), np.inf)  # the last trees end all rows
    largest = np.maximum.accumulate(reached)  # [S, n]
    first = np.stack([(largest <= min(m, 1e300)).sum(axis=0) for m in margins], axis=1)  # [n, P]
    predictions = np.take_along_axis(np.stack(found, axis=1), first, axis=1)
    return Stopped(predictions, np.array(places)[first])


def _margin(scores: Array) -> Array:
    """`[n]`, as LightGBM compares it."""
    if scores.ndim == 1:
        return np.asarray(2 * np.abs(scores))
    second, first = np.partition(scores, -2, axis=1)[:, -2:].T
    return np.asarray(first - second)


def _all_trees(why: str) -> EarlyStop:
    return EarlyStop({"pred_early_stop": False}, why)


def _seconds(
    trees: TreeModel,
    rows: Any,  # noqa: ANN401
    settings: dict[str, Any],
    clock: Clock,
) -> float:
    """The time of `predict` with these settings, as a share of the time without."""
    one = batches(rows, min(len(rows), LARGEST))[:1]
    pair = [Timed(partial(trees.model.predict, **each), one) for each in (settings, {})]
    take_turns([pair], Stopwatch(clock), least=3)
    return float(pair[0].best.sum() / pair[1].best.sum())
