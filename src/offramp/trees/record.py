"""Ledgers of models of trees, and what their rounds cost in seconds."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from offramp import check
from offramp.answers import CurrentExit
from offramp.arrays import AnyArray, Array, as_numpy
from offramp.batch_times import BatchTimes, seconds_left
from offramp.costs import Costs
from offramp.decide import Decider
from offramp.errors import ConfigError, LedgerError
from offramp.ledger import Ledger
from offramp.ledger.checks import SampleIds
from offramp.scorers import MaxProbability
from offramp.stopwatch import Stopwatch, Timed, take_turns
from offramp.trees.models import TreeModel, tree_model

Clock: TypeAlias = Callable[[], float]

EXITS = 10  # where nothing is said: more of them gain little, and each takes a call
FIRST = 1 / 50  # of the rounds, after which the first of them lies
TIMED = 16  # batches at most, and
TIMED_ROWS = 256  # rows in all of them, where these are not too large for that
WORTH = 0.95  # of the time of all trees: what stopping early may take at most


def record(
    model: Any,  # noqa: ANN401 - a model of several libraries
    data: tuple[Any, AnyArray | Sequence[Any] | None],
    split: str,
    *,
    at: Sequence[int] | None = None,
    costs: Costs | BatchTimes | None = None,
    sample_ids: SampleIds | None = None,
    groups: SampleIds | None = None,
) -> Ledger:
    """A ledger of a model of trees: the logits after so many rounds.

    They are raw scores (log-odds) of boosted trees, and logarithms of the votes so far of random
    forests. Costs are counted in trees; a round of a model of several classes has a tree for each.

    Args:
        model: A fitted classifier of LightGBM, XGBoost, CatBoost or scikit-learn.
        data: `(rows, labels)` that the model was not trained on; labels may be None.
        split: As for `Ledger`.
        at: After how many rounds it may stop; always at the last one, too. By default, at ten
            places, each half as far again as the one before.
        costs: In place of trees; what `measure` has found, say.
        sample_ids: As for `Ledger`.
        groups: As for `Ledger`.

    Raises:
        ConfigError: Another kind of model, or rounds that it does not have.
        LedgerError: Labels that the model does not know.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> rows, labels = load_digits(return_X_y=True)
        >>> forest = RandomForestClassifier(32, random_state=0).fit(rows[:600], labels[:600])
        >>> record(forest, (rows[600:], labels[600:]), "all", at=[2, 8])
        Ledger(split='all', 1,197 samples, 3 exits, 10 classes, trees costs)
    """
    trees, (rows, labels) = tree_model(model), data
    places = placed(trees, at)
    logits = [trees.logits(scores) for scores in trees.staged(rows, places)]
    return Ledger(
        np.stack(logits, axis=1),
        None if labels is None else class_numbers(trees.classes, labels),
        costs or Costs.from_cumulative(np.array(places) * trees.trees_per_round, "trees"),
        split=split,
        network=f"{trees.identity} after {','.join(map(str, places))} rounds",
        class_names=list(map(str, trees.classes)),
        sample_ids=sample_ids,
        groups=groups,
    )


def measure(
    model: Any,  # noqa: ANN401
    rows: Any,  # noqa: ANN401
    batch_size: int = 1,
    at: Sequence[int] | None = None,
    turns: int = 5,
    clock: Clock = time.perf_counter,
) -> BatchTimes:
    """The seconds of rounds in batches of one size, with the calls that go on from a round.

    Give them to a ledger with `ledger.with_costs(times)`; `auto` then leaves out exits that take
    longer than what they save, and all of them if need be.

    Args:
        model: As for `record`; one that can go on from raw scores.
        rows: As many as a batch, or more.
        batch_size: How many rows will be asked about at once.
        at: As for `record`.
        turns: The fastest of so many counts.
        clock: Seconds; `time.process_time` on a machine that others use, with one thread.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> rows, labels = load_digits(return_X_y=True)
        >>> times = measure(RandomForestClassifier(32).fit(rows, labels), rows, at=[2, 8])
        >>> times.costs.unit, times.stages.shape
        ('seconds', (3, 1))
    """
    trees = continued(model)
    places = placed(trees, at)
    check.within("batch_size", batch_size, 1, len(rows))
    whole = Timed(trees.all, batches(rows, batch_size))
    take_turns([[whole]], Stopwatch(clock), least=turns)
    reference = float(whole.best.sum()) / batch_size

    def timed_at(size: int) -> Array:
        watch = Stopwatch(clock)
        return _seconds(trees, batches(rows, size), places, turns, watch)

    if batch_size == 1:  # a row stays or leaves; its decisions are added where they are known
        stages = timed_at(1)[::2, None]
        return BatchTimes(stages, np.zeros_like(stages), reference)
    sizes = [size for size in (1, 8, 64, 512, 4096) if size < batch_size] + [batch_size]
    seconds = [timed_at(size) for size in sizes]
    curves = np.array([seconds_left(sizes, list(e), batch_size) for e in np.transpose(seconds)])
    return BatchTimes(curves[::2], curves[1::2], reference, origin="these trees on this machine")


def _seconds(
    trees: TreeModel, rows: Sequence[Any], places: Sequence[int], turns: int, watch: Stopwatch
) -> Array:
    """`[2M]`: seconds of each exit's rounds, and of a decision by max probability."""
    decider = Decider(CurrentExit(), MaxProbability(), np.zeros(len(places)))

    def run(batch: Any) -> None:  # noqa: ANN401
        scores, start = None, 0
        for exit_index, stop in enumerate(places):
            watch()
            scores, start = trees.add(batch, start, stop, scores), stop
            watch()
            buffer = decider.begin(len(batch), len(trees.classes))
            found = decider.at_exit(exit_index, buffer, trees.logits(scores))
            if found.scores is not None:
                picked(batch, np.flatnonzero(~decider.stops(exit_index, found.scores)))

    timed = Timed(run, rows)
    take_turns([[timed]], watch, least=turns)
    return timed.best


def batches(rows: Any, size: int) -> list[Any]:  # noqa: ANN401
    """Batches of so many rows to time on: several, since rows differ."""
    count = min(TIMED, len(rows) // size, max(1, TIMED_ROWS // size))
    return [picked(rows, np.arange(size) + number * size) for number in range(count)]


def continued(model: Any) -> TreeModel:  # noqa: ANN401
    """A model that can go on from raw scores."""
    trees = tree_model(model)
    if not trees.can_continue:
        raise ConfigError(
            f"a {type(trees.model).__name__} cannot go on from raw scores by its public calls: it "
            "can be recorded, and not be run round by round; LightGBM, XGBoost, CatBoost and "
            "random forests can"
        )
    return trees


def placed(trees: TreeModel, at: Sequence[int] | None = None) -> list[int]:
    """After how many rounds the exits lie, ascending and with the last one."""
    if trees.rounds < 2:
        raise ConfigError(
            "a model that stops early needs at least two rounds of trees, and this one has "
            f"{trees.rounds}"
        )
    if at is None:
        steps = np.geomspace(max(1, trees.rounds * FIRST), trees.rounds, EXITS)
        return sorted(set(steps.round().astype(int).tolist()))
    places = [int(stop) for stop in at]
    check.whole("at", min(places, default=0), least=1)
    if places != sorted(set(places)) or places[-1] > trees.rounds:
        raise ConfigError(
            f"`at` must be ascending numbers of rounds in 1..{trees.rounds}, got {places}"
        )
    return places if places[-1] == trees.rounds else [*places, trees.rounds]


def class_numbers(classes: Array, labels: AnyArray | Sequence[Any]) -> Array:
    """The numbers of labels `[N]` among what a model calls its classes.

    Example:
        >>> class_numbers(np.array(["no", "yes"]), ["yes", "no"])
        array([1, 0])
    """
    given = as_numpy(labels) if not isinstance(labels, list) else np.array(labels)
    order = np.argsort(classes)
    found = order[np.searchsorted(classes, given, sorter=order).clip(max=len(classes) - 1)]
    unknown = classes[found] != given
    if unknown.any():
        sample = int(unknown.argmax())
        raise LedgerError(
            f"labels must be classes of the model, which are {_listed(classes)}; got "
            f"{given[sample]!r} at row {sample}"
        )
    return np.asarray(found)


def picked(rows: Any, index: Array) -> Any:  # noqa: ANN401 - an array or a table
    """Some of the rows."""
    return rows.iloc[index] if hasattr(rows, "iloc") else rows[index]


def _listed(classes: Array) -> str:
    shown = ", ".join(map(str, classes[:5]))
    return shown if len(classes) <= 5 else f"{shown}, ... ({len(classes)} in all)"
