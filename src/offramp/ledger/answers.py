"""Answers of any kind with confidences, as the table of numbers that a ledger holds.

A row says how sure a stage is, as log-odds of being right, which stage was the first to give the
same answer, and features. So answers can be compared without being known, and nothing about a
stage depends on later ones.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offramp.errors import LedgerError

LIMIT = 80.0  # of log-odds: a stage that is certain is surer than any that is not

Normalise = Callable[[Any], Any]


@dataclass(frozen=True)
class AnswerTable:
    """What stages said.

    Attributes:
        outputs: float32 `[N, M, 2+F]`: log-odds, the first stage with the same answer, features.
        right: bool `[N, M]`, or None where nobody knows.
        lengths: `[N]`, how many stages each sample has.
    """

    outputs: Tensor
    right: Tensor | None
    lengths: Tensor


def answer_table(
    answers: Any,  # noqa: ANN401 - rows of anything, checked
    confidence: "Confidences",
    labels: Sequence[Any] | None,
    correct: Any,  # noqa: ANN401
    features: Any,  # noqa: ANN401
    normalise: Normalise | None,
) -> AnswerTable:
    """Check what stages said, and make a table of it; see `Ledger.from_answers`."""
    rows = confidence.rows
    if answers is not None:
        answers = _rows("answers", answers)
        _check_lengths("answers", answers, rows)
    lengths = torch.tensor([_length(row) for row in rows])
    stages = int(lengths.max())
    if stages < 2:
        raise LedgerError("at least two stages are needed, and no sample has more than one")
    odds = torch.tensor([_carried(row, stages) for row in rows], dtype=torch.float64)
    first = _first_stages(answers, rows, stages, normalise)
    right = _right(answers, labels, correct, rows, normalise)
    parts = [odds[..., None], first[..., None].double()]
    if features is not None:
        parts.append(_features(features, rows, stages))
    carried = None if right is None else torch.tensor([_carried(row, stages) for row in right])
    return AnswerTable(torch.cat(parts, dim=2).float(), carried, lengths)


@dataclass(frozen=True)
class Confidences:
    """Log-odds by sample and stage; None where a sample does not have a stage.

    Attributes:
        rows: A list per sample.
    """

    rows: list[list[float | None]]

    @classmethod
    def of(cls, confidence: Any, log_confidence: Any, mask: Any) -> "Confidences":  # noqa: ANN401
        """From probabilities, or from their logarithms."""
        if (confidence is None) == (log_confidence is None):
            raise LedgerError(
                "give either `confidence`, probabilities, or `log_confidence`, their logarithms"
            )
        name = "confidence" if log_confidence is None else "log_confidence"
        given = _rows(name, confidence if log_confidence is None else log_confidence)
        to_odds = log_odds_of if log_confidence is None else log_odds_of_log
        there = None if mask is None else _rows("mask", mask)
        if there is not None:
            _check_lengths("mask", there, given)
        rows = []
        for sample, row in enumerate(given):
            known = [True] * len(row) if there is None else there[sample]
            odds = [
                _odds(name, to_odds, value, sample, stage) if is_there else None
                for stage, (value, is_there) in enumerate(zip(row, known, strict=True))
            ]
            if not odds or odds[0] is None:
                raise LedgerError(f"sample {sample} has no first stage; leave such samples out")
            rows.append(odds)
        return cls(rows)


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


def _odds(
    name: str,
    to_odds: Callable[[float], float],
    value: Any,  # noqa: ANN401
    sample: int,
    stage: int,
) -> float | None:
    if value is None or value != value:  # NaN
        return None
    try:
        return to_odds(float(value))
    except LedgerError as error:
        raise LedgerError(f"`{name}`, sample {sample}, stage {stage}: {error}") from None
    except (TypeError, ValueError):
        raise LedgerError(
            f"`{name}` must be numbers, got {value!r} at sample {sample}, stage {stage}"
        ) from None


def _rows(name: str, values: Any) -> list[list[Any]]:  # noqa: ANN401
    """A list of lists, from an array or from lists of different lengths."""
    plain = values.tolist() if isinstance(values, Tensor | np.ndarray) else values
    if isinstance(plain, str) or not isinstance(plain, Sequence) or not len(plain):
        raise LedgerError(f"`{name}` must be a table, a row per sample, got {values!r}")
    for sample, row in enumerate(plain):
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            raise LedgerError(
                f"`{name}` must have a row per sample and a value per stage, got {row!r} for "
                f"sample {sample}"
            )
    return [list(row) for row in plain]


def _check_lengths(name: str, rows: list[list[Any]], others: list[list[Any]]) -> None:
    if len(rows) != len(others):
        raise LedgerError(
            f"`{name}` has {len(rows)} samples, and the confidences have {len(others)}"
        )
    for sample, (row, other) in enumerate(zip(rows, others, strict=True)):
        if len(row) != len(other):
            raise LedgerError(
                f"`{name}` has {len(row)} stages for sample {sample}, and the confidences have "
                f"{len(other)}"
            )


def _length(row: list[Any]) -> int:
    """How many stages there are up to the last that is there."""
    return max(stage for stage, value in enumerate(row) if value is not None) + 1


def _carried(row: list[Any], stages: int) -> list[Any]:
    """A missing stage says what the one before said."""
    found: list[Any] = []
    for value in [*row[:stages], *[None] * (stages - len(row))]:
        found.append(found[-1] if value is None else value)
    return found


def _first_stages(
    answers: list[list[Any]] | None,
    rows: list[list[float | None]],
    stages: int,
    normalise: Normalise | None,
) -> Tensor:
    """`[N, M]`: the first stage that gave each stage's answer; itself where nobody knows."""
    if answers is None:
        return torch.arange(stages).expand(len(rows), -1)
    table = []
    for row, odds in zip(answers, rows, strict=True):
        seen: list[Any] = []
        first: list[int | None] = []
        for stage, (answer, is_there) in enumerate(zip(row, odds, strict=True)):
            if is_there is None:
                first.append(None)
                continue
            plain = same_form(answer, normalise)
            found = next((place for place, other in seen if other == plain), None)
            if found is None:
                found = stage
                seen.append((stage, plain))
            first.append(found)
        table.append(_carried(first, stages))
    return torch.tensor(table)


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


def _right(
    answers: list[list[Any]] | None,
    labels: Sequence[Any] | None,
    correct: Any,  # noqa: ANN401
    rows: list[list[float | None]],
    normalise: Normalise | None,
) -> list[list[bool | None]] | None:
    """Which stages are right; None where a sample does not have a stage."""
    if labels is not None and correct is not None:
        raise LedgerError("give either `labels` or `correct`, not both")
    if correct is not None:
        given = _rows("correct", correct)
        _check_lengths("correct", given, rows)
        wrong = [v for row in given for v in row if v not in (True, False, None)]
        if wrong:
            raise LedgerError(f"`correct` must be True or False, got {wrong[0]!r}")
        hits = [[v is not None and bool(v) for v in row] for row in given]
    elif labels is not None:
        if answers is None:
            raise LedgerError("`labels` need `answers` to compare with; or give `correct`")
        truths = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else list(labels)
        if len(truths) != len(rows):
            raise LedgerError(f"`labels` must be {len(rows)}, one per sample, got {len(truths)}")
        if isinstance(truths[0], list) and not isinstance(answers[0][0], list):
            raise LedgerError(
                f"`labels` is one right answer per sample, got {truths[0]!r} for sample 0; say "
                "which stages are right as `correct`"
            )
        forms = [same_form(truth, normalise) for truth in truths]
        hits = [
            [bool(same_form(answer, normalise) == truth) for answer in row]
            for row, truth in zip(answers, forms, strict=True)
        ]
    else:
        return None
    return [
        [hit if odds is not None else None for hit, odds in zip(row, known, strict=True)]
        for row, known in zip(hits, rows, strict=True)
    ]


def _features(features: Any, rows: list[list[float | None]], stages: int) -> Tensor:  # noqa: ANN401
    """`[N, M, F]` float64; a missing stage has those of the one before."""
    given = [list(row) for row in features]
    if len(given) != len(rows):
        raise LedgerError(f"`features` must have {len(rows)} samples, got {len(given)}")
    _check_lengths("features", given, rows)
    table = [
        _carried(
            [value if odds is not None else None for value, odds in zip(row, known, strict=True)],
            stages,
        )
        for row, known in zip(given, rows, strict=True)
    ]
    try:
        tensor = torch.from_numpy(np.asarray(table, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise LedgerError(f"`features` must be numbers [N, M, F]: {error}") from None
    if tensor.ndim != 3:
        raise LedgerError(f"`features` must have the shape [N, M, F], got {list(tensor.shape)}")
    if not tensor.isfinite().all():
        sample, stage, number = (~tensor.isfinite()).nonzero()[0].tolist()
        raise LedgerError(
            f"`features` must be finite, got {tensor[sample, stage, number]} at sample {sample}, "
            f"stage {stage}, feature {number}"
        )
    return tensor


def padded_costs(costs: Any, stated: Confidences, lengths: Tensor) -> Any:  # noqa: ANN401
    """Cumulative costs as they were given, or, from rows of different lengths, `[N, M]`.

    A stage that is missing has cost nothing more.
    """
    ragged = isinstance(costs, Sequence) and len(costs) and isinstance(costs[0], Sequence)
    if not ragged:
        return costs
    if len(costs) != len(lengths):
        raise LedgerError(f"there must be costs for {len(lengths)} samples, got {len(costs)}")
    stages = int(lengths.max())
    for sample, (row, length) in enumerate(zip(costs, lengths.tolist(), strict=True)):
        if not length <= len(row) <= len(stated.rows[sample]) or row[0] is None:
            raise LedgerError(f"`costs` has {len(row)} stages for sample {sample}, not {length}")
    return [_carried(list(row), stages) for row in costs]
