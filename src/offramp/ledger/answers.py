"""Answers of any kind with confidences, as the table of numbers that a ledger holds.

A row says how sure a stage is, as log-odds of being right, which stage was the first to give the
same answer, and features. So answers can be compared without being known, and nothing about a
stage depends on later ones.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from offramp.arrays import Array, as_numpy, float64, is_array, sigmoid
from offramp.errors import LedgerError, LedgerWarning
from offramp.ledger.history import voted_stage
from offramp.ledger.oddities import warn_of_none_right

LIMIT = 80.0  # of log-odds: a stage that is certain is surer than any that is not

UNSTATED = 0.5  # the confidence of an answer that comes without one

Normalise = Callable[[Any], Any]

Rows = list[list[Any]]

_MISSING = object()  # in place of an answer: equal to no answer


@dataclass(frozen=True)
class Confidences:
    """Log-odds by sample and stage.

    Attributes:
        odds: float64 `[N, W]`; NaN where a sample does not have a stage.
        sizes: `[N]`, how many stages the row of each sample had.
    """

    odds: Array
    sizes: list[int]

    @classmethod
    def of(
        cls,
        confidence: Any,  # noqa: ANN401
        log_confidence: Any,  # noqa: ANN401
        mask: Any,  # noqa: ANN401
        answers: Any = None,  # noqa: ANN401
    ) -> "Confidences":
        """From probabilities, or from their logarithms; of answers alone, one half for each."""
        if confidence is None and log_confidence is None and answers is not None:
            confidence = [
                [None if answer is None else UNSTATED for answer in row]
                for row in _rows("answers", answers)
            ]
        if (confidence is None) == (log_confidence is None):
            raise LedgerError(
                "give either `confidence`, probabilities, or `log_confidence`, their logarithms; "
                "or neither, with `answers` that vote"
            )
        name = "confidence" if log_confidence is None else "log_confidence"
        rows = _rows(name, confidence if log_confidence is None else log_confidence)
        to_odds = log_odds_of if log_confidence is None else log_odds_of_log
        _warn_of_impossible(rows, name)
        sizes = [len(row) for row in rows]
        if mask is not None:
            there = _rows("mask", mask, sizes)
            rows = [
                [value if is_there else None for value, is_there in zip(*pair, strict=True)]
                for pair in zip(rows, there, strict=True)
            ]
        odds = [
            [_odds(name, to_odds, value, sample, stage) for stage, value in enumerate(row)]
            for sample, row in enumerate(rows)
        ]
        found = cls(_padded(odds, np.float64, math.nan), sizes)
        empty = np.flatnonzero(~found.there[:, :1].any(axis=1))
        if len(empty):
            raise LedgerError(f"sample {empty[0]} has no first stage; leave such samples out")
        return found

    @cached_property
    def there(self) -> Array:
        """Whether a sample has a stage, bool `[N, W]`."""
        return ~np.isnan(self.odds)

    @cached_property
    def lengths(self) -> Array:
        """How many stages there are up to the last that is there, `[N]`."""
        lengths: Array = self.odds.shape[1] - self.there[:, ::-1].argmax(axis=1)
        return lengths

    def carried(self, table: Array) -> Array:
        """Values `[N, W, ...]` as `[N, M, ...]`: a missing stage has the value of the one before.

        Example:
            >>> stages = Confidences.of([[0.5, None, 0.5], [0.5, 0.5]], None, None)
            >>> stages.carried(np.array([[1, 2, 3], [4, 5, 6]]))
            array([[1, 1, 3],
                   [4, 5, 5]])
        """
        stages = np.arange(self.lengths.max())
        there = self.there[:, : len(stages)]
        last = np.maximum.accumulate(np.where(there, stages, 0), axis=1)
        carried: Array = table[np.arange(len(table))[:, None], last]
        return carried


def answer_table(
    answers: Any,  # noqa: ANN401 - rows of anything, checked
    confidence: Confidences,
    labels: Sequence[Any] | None,
    correct: Any,  # noqa: ANN401
    features: Any,  # noqa: ANN401
    normalise: Normalise | None,
    stage_names: Sequence[str] | None = None,
) -> tuple[Array, Array | None]:
    """Check answers, and make a table of them; see `Ledger.from_answers`.

    Returns:
        float32 `[N, M, 2+F]`: log-odds, the first stage with the same answer, features; and bool
        `[N, M]`, which stages are right, or None where nobody knows.
    """
    odds = confidence.carried(confidence.odds)
    first = np.broadcast_to(np.arange(odds.shape[1]), odds.shape)  # where nobody knows: itself
    forms = None
    if answers is not None:
        forms = _forms(_rows("answers", answers, confidence.sizes), confidence, normalise)
        places = [[row.index(form) for form in row] for row in forms]
        first = confidence.carried(_padded(places, np.int64))
    hits = _hits(forms, labels, correct, confidence.sizes, normalise)
    right = None
    if hits is not None:
        own = _padded(hits, np.bool_)
        right = confidence.carried(own)
        pairs: dict[int, list[tuple[Any, Any]]] = {}  # by stage that is never right
        for stage in [] if labels is None else np.flatnonzero(~own.any(axis=0)).tolist():
            assert forms is not None and labels is not None
            truths = as_numpy(labels).tolist() if is_array(labels) else labels
            rows = zip(forms, truths, strict=True)
            found = [(row[stage], truth) for row, truth in rows if stage < len(row)]
            pairs[stage] = [pair for pair in found if pair[0] is not _MISSING]
        warn_of_none_right(own, pairs, stage_names, lambda truth: same_form(truth, normalise))
    parts = [odds[..., None], first[..., None]]
    if features is not None:
        parts.append(confidence.carried(_features(features, confidence)))
    return np.concatenate(parts, axis=2, dtype=np.float32), right


def right_by_vote(outputs: Array, right: Array, lengths: Array) -> Array:
    """Whether the vote of all stages that a sample has is right, bool `[N]`."""
    there = np.arange(right.shape[1]) < lengths[:, None]
    # A stage after the end says what no other says, and is less sure than any.
    said = np.where(there, outputs[..., 1], -1.0 - np.arange(right.shape[1]))
    sure = np.where(there, sigmoid(float64(outputs[..., 0])), 0.0)
    found: Array = np.take_along_axis(right, voted_stage(said, sure), axis=1)[:, 0]
    return found


def named_as(
    positive: Any,  # noqa: ANN401
    answers: Any,  # noqa: ANN401
    labels: Sequence[Any] | None,
    confidence: Confidences,
    normalise: Normalise | None,
) -> Array:
    """Whether each stage gives an answer, and whether the label is it: bool `[N, M+1]`."""
    if answers is None or labels is None:
        raise LedgerError("`positive` is one of the answers: give `answers` and `labels`, too")
    wanted = same_form(positive, normalise)
    forms = _forms(_rows("answers", answers, confidence.sizes), confidence, normalise)
    named = _padded([[bool(form == wanted) for form in row] for row in forms], np.bool_)
    true = [bool(same_form(label, normalise) == wanted) for label in labels]
    return np.concatenate([confidence.carried(named), np.array(true)[:, None]], axis=1)


def padded_costs(costs: Any, confidence: Confidences) -> Any:  # noqa: ANN401
    """Cumulative costs as they were given, or, from rows of different lengths, `[N, M]`.

    A stage that is missing has cost nothing more.
    """
    ragged = isinstance(costs, Sequence) and len(costs) and isinstance(costs[0], Sequence)
    if not ragged:
        return costs
    lengths, sizes = confidence.lengths.tolist(), confidence.sizes
    if len(costs) != len(lengths):
        raise LedgerError(f"there must be costs for {len(lengths)} samples, got {len(costs)}")
    for sample, (row, length, size) in enumerate(zip(costs, lengths, sizes, strict=True)):
        if not length <= len(row) <= size or row[0] is None:
            raise LedgerError(f"`costs` has {len(row)} stages for sample {sample}, not {length}")
    return [_carried(row, max(lengths)) for row in costs]


def _carried(row: Sequence[Any], stages: int) -> list[Any]:
    found: list[Any] = []
    for value in [*row[:stages], *[None] * (stages - len(row))]:
        found.append(found[-1] if value is None else value)
    return found


def log_odds_of(probability: float) -> float:
    """Log-odds of a probability, within +-80.

    Example:
        >>> log_odds_of(0.5), log_odds_of(1.0)
        (0.0, 80.0)
    """
    if not 0 <= probability <= 1:
        hint = "; give log-probabilities as log_confidence" if probability < 0 else ""
        raise LedgerError(f"a confidence is a probability in [0, 1], got {probability:g}{hint}")
    if probability in (0, 1):
        return LIMIT if probability else -LIMIT
    return math.log(probability) - math.log1p(-probability)


def log_odds_of_log(log_probability: float) -> float:
    """Log-odds of a probability that is given by its logarithm, within +-80.

    Example:
        >>> round(log_odds_of_log(-1e-9), 1), log_odds_of_log(-1000.0)
        (20.7, -80.0)
    """
    if not log_probability <= 0:
        raise LedgerError(
            f"a log-probability is not above 0, got {log_probability:g}; give probabilities as "
            "confidence"
        )
    if log_probability == 0:
        return LIMIT
    odds = log_probability - math.log(-math.expm1(log_probability))
    return max(-LIMIT, min(LIMIT, odds))


def same_form(answer: Any, normalise: Normalise | None) -> Any:  # noqa: ANN401
    """An answer as it is compared: after the caller's normaliser, if there is one."""
    if normalise is None:
        return answer
    try:
        return normalise(answer)
    except Exception as error:  # it is the caller's, and fails in its own ways
        raise LedgerError(
            f"`normalise` fails on the answer {answer!r}: {type(error).__name__}: {error}"
        ) from error


def _warn_of_impossible(rows: Rows, name: str) -> None:
    """Warn of answers whose own model gives them no chance at all."""
    found = sum(value == -math.inf for row in rows for value in row)
    if found and name == "log_confidence":
        warnings.warn(
            f"{found:,} of the log-confidences are -inf: a model gave its own answer no chance, "
            "which mostly means that the answer could not be read; None or `mask` leaves such a "
            "stage out, and otherwise it is taken as surely wrong",
            LedgerWarning,
            stacklevel=4,
        )


def _odds(
    name: str,
    to_odds: Callable[[float], float],
    value: Any,  # noqa: ANN401
    sample: int,
    stage: int,
) -> float:
    """Log-odds; NaN where there are none."""
    if value is None or value != value:
        return math.nan
    try:
        return to_odds(float(value))
    except LedgerError as error:
        raise LedgerError(f"`{name}`, sample {sample}, stage {stage}: {error}") from None
    except (TypeError, ValueError):
        raise LedgerError(
            f"`{name}` must be numbers, got {value!r} at sample {sample}, stage {stage}"
        ) from None


def _rows(name: str, values: Any, sizes: list[int] | None = None) -> Rows:  # noqa: ANN401
    """A list of lists, from an array or from lists of different lengths: of these, where given."""
    plain = values.tolist() if is_array(values) else values
    if isinstance(plain, str) or not isinstance(plain, Sequence) or not len(plain):
        raise LedgerError(f"`{name}` must be a table, a row per sample, got {values!r}")
    for sample, row in enumerate(plain):
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            raise LedgerError(
                f"`{name}` must have a row per sample and a value per stage, got {row!r} for "
                f"sample {sample}"
            )
    if sizes is not None and len(plain) != len(sizes):
        raise LedgerError(
            f"`{name}` has {len(plain)} samples, and the confidences have {len(sizes)}"
        )
    for sample, (row, size) in enumerate(zip(plain, sizes or (), strict=False)):
        if len(row) != size:
            raise LedgerError(
                f"`{name}` has {len(row)} stages for sample {sample}, and the confidences have "
                f"{size}"
            )
    return [list(row) for row in plain]


def _padded(rows: Rows, dtype: type[np.generic], fill: float = 0) -> Array:
    """Rows of different lengths as one array `[N, W]`."""
    table = np.full((len(rows), max(map(len, rows))), fill, dtype)
    for values, row in zip(table, rows, strict=True):
        values[: len(row)] = row
    return table


def _forms(answers: Rows, confidence: Confidences, normalise: Normalise | None) -> Rows:
    """Answers as they are compared; `_MISSING` where a sample does not have a stage."""
    return [
        [
            same_form(answer, normalise) if is_there else _MISSING
            for answer, is_there in zip(row, known, strict=False)  # of the widest row
        ]
        for row, known in zip(answers, confidence.there, strict=True)
    ]


def _hits(
    forms: Rows | None,
    labels: Sequence[Any] | None,
    correct: Any,  # noqa: ANN401
    sizes: list[int],
    normalise: Normalise | None,
) -> Rows | None:
    """Which stages are right; None where nobody knows."""
    if labels is not None and correct is not None:
        raise LedgerError("give either `labels` or `correct`, not both")
    if correct is not None:
        given = _rows("correct", correct, sizes)
        wrong = [value for row in given for value in row if value not in (True, False, None)]
        if wrong:
            raise LedgerError(f"`correct` must be True or False, got {wrong[0]!r}")
        return [[bool(value) for value in row] for row in given]
    if labels is None:
        return None
    if forms is None:
        raise LedgerError("`labels` need `answers` to compare with; or give `correct`")
    truths = labels.tolist() if is_array(labels) else list(labels)  # type: ignore[attr-defined]
    if len(truths) != len(forms):
        raise LedgerError(f"`labels` must be {len(forms)}, one per sample, got {len(truths)}")
    if isinstance(truths[0], list) and not isinstance(forms[0][0], list):
        raise LedgerError(
            f"`labels` is one right answer per sample, got {truths[0]!r} for sample 0; say "
            "which stages are right as `correct`"
        )
    truths = [same_form(truth, normalise) for truth in truths]
    return [
        [bool(form == truth) for form in row] for row, truth in zip(forms, truths, strict=True)
    ]


def _features(features: Any, confidence: Confidences) -> Array:  # noqa: ANN401
    """`[N, W, F]` float64; zero where a sample does not have a stage."""
    given = list(as_numpy(features)) if is_array(features) else features
    rows, there = _rows("features", given, confidence.sizes), confidence.there
    values = [
        row[stage]
        for row, known in zip(rows, there, strict=True)
        for stage in np.flatnonzero(known)
    ]
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"`features` must be numbers [N, M, F]: {error}") from None
    if numbers.ndim != 2:
        shape = [*there.shape, *numbers.shape[1:]]
        raise LedgerError(f"`features` must have the shape [N, M, F], got {shape}")
    table = np.zeros((*there.shape, numbers.shape[1]))
    table[there] = numbers
    wrong = np.argwhere(~np.isfinite(table))
    if len(wrong):
        sample, stage, number = wrong[0]
        raise LedgerError(
            f"`features` must be finite, got {table[sample, stage, number]} at sample {sample}, "
            f"stage {stage}, feature {number}"
        )
    return table
