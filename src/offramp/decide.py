"""`Decider`: a policy at an operating point, prepared to decide. Whatever stops, stops here.

Replays call it on whole ledgers; runners, sessions and cascades on the samples that are under way.
From the same outputs all of them get the same scores, and so the same decisions.
"""

import math
from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np

from offramp.answers import Answer, CurrentExit, MajorityVote
from offramp.arrays import (
    AnyArray,
    Array,
    as_numpy,
    float32,
    is_array,
    log_softmax,
    namespace,
)
from offramp.errors import LedgerError
from offramp.ledger import History
from offramp.scorers import Scorer
from offramp.scorers.base import Scoring
from offramp.thresholds.rule import SURE, rounded_up, stops


class ExitOutput(NamedTuple):
    """What one exit comes to for n samples."""

    answer: AnyArray  # `[n, K]` float32, what they are answered with if they stop
    scores: AnyArray | None = None  # `[n]` float32, the stop scores; None where none was computed

    def take(self, index: AnyArray) -> "ExitOutput":
        """Keep some of the samples."""
        return ExitOutput(*(None if part is None else part[index] for part in self))


class HistoryBuffer(NamedTuple):
    """What the exits so far have put out, as far as anything reads it, up to the current exit.

    What nothing reads is None.
    """

    outputs: AnyArray | None = None  # `[n, M, K]`
    answers: AnyArray | None = None  # `[n, M, K]`; None as well if they are the outputs
    log_probs: AnyArray | None = None  # `[n, M, K]`, of the answers
    predictions: AnyArray | None = None  # `[n, M]`, of the answers

    def take(self, index: AnyArray) -> "HistoryBuffer":
        """Keep some of the samples."""
        return HistoryBuffer(*(None if part is None else part[index] for part in self))

    @classmethod
    def joined(cls, buffers: Sequence["HistoryBuffer"]) -> "HistoryBuffer":
        """The samples of several, in order."""
        return cls(*map(_joined, *buffers))


class Decider:
    """A policy at an operating point, prepared to decide; it never changes, so threads share it.

    Args:
        answer: Fitted.
        scorer: Fitted.
        thresholds: `[M]` float64, of the operating point; `+inf` closes an exit. None where only
            scores are wanted.
        history_type: How outputs are read: `History` of logits, `AnswerHistory`, ...
        reads_outputs: Which heads `[M]` read the outputs of the exits before them.
        like: An array of the kind that outputs will be, for those that lie on a GPU.

    Attributes:
        limits: `[M]`, thresholds as scores are compared with them: float32, rounded up.
        is_open: `[M]`, whether a sample can stop there; always true at the last exit.
        is_scored: `[M]`, whether a score is needed: at open exits but the last.
        needs_head: `[M]`, whether the head has to run: its exit is open, or something later reads
            its outputs.
        votes: Whether outputs may come without confidences: the answer is a vote, or none were
            there to be fitted to.
        keeps_outputs: Whether anything reads the outputs of earlier exits.
        keeps_answers: Whether anything reads the answers at earlier exits, where these are not the
            outputs themselves.

    Example:
        >>> from offramp import MaxProbability
        >>> decider = Decider(CurrentExit(), MaxProbability(), np.array([1.0, np.inf, -np.inf]))
        >>> decider.is_open, decider.needs_head
        ((True, False, True), (True, False, True))
        >>> buffer = decider.begin(samples=2, width=3)
        >>> found = decider.at_exit(0, buffer, np.float32([[3, 0, 0], [1, 1, 0]]))
        >>> found.scores.round(2), decider.stops(0, found.scores)
        (array([ 2.31, -0.31], dtype=float32), array([ True, False]))
    """

    def __init__(
        self,
        answer: Answer,
        scorer: Scorer,
        thresholds: Array | None = None,
        history_type: type[History] = History,
        reads_outputs: Sequence[bool] = (),
        like: AnyArray | None = None,
    ) -> None:
        self.history_type = history_type
        self._like = like
        self._answer, self._scorer = answer.beside(like), scorer.beside(like)
        self.votes = isinstance(answer, MajorityVote) or "confidences" not in history_type.offers
        self._scorings: dict[int, Scoring] = {}
        self._answers_outputs = type(answer) is CurrentExit
        self._reads_outputs = tuple(reads_outputs)
        reads = scorer.reads_history or answer.reads_history
        self.keeps_outputs = reads or any(reads_outputs)
        self.keeps_answers = reads and not self._answers_outputs
        self._keeps_probs = scorer.reads_history and history_type.has_logits
        if thresholds is not None:
            self._set_thresholds(thresholds)

    def at(self, thresholds: Array) -> Self:
        """The same at another operating point; what is prepared is shared."""
        moved = copy(self)
        moved._set_thresholds(thresholds)
        return moved

    def _set_thresholds(self, thresholds: Array) -> None:
        self.limits: tuple[float, ...] = tuple(rounded_up(thresholds, np.float32).tolist())
        self.last = len(self.limits) - 1
        self.is_open = open_exits(self.limits)
        self.is_scored = (*self.is_open[:-1], False)
        readers = self._scorer.reads_history, self._answer.reads_history
        (needed,) = needed_heads(np.asarray(thresholds)[None], *readers).tolist()
        read = max((m for m, reads in enumerate(self._reads_outputs) if reads), default=0)
        self.needs_head = tuple(is_needed or m < read for m, is_needed in enumerate(needed))

    def begin(self, samples: int, width: int) -> HistoryBuffer:
        """Before the first exit, for outputs of so many numbers each."""
        if not self.keeps_outputs:
            return HistoryBuffer()
        shape = (samples, self.last + 1, width)
        xp, device = (
            (np, None) if self._like is None else (namespace(self._like), self._like.device)
        )
        count = 1 + self.keeps_answers + self._keeps_probs
        kept = xp.empty((count, *shape), dtype=xp.float32, device=device)
        # A head that was skipped by mistake shows up as NaN, not as a plausible answer.
        kept[...] = math.nan
        outputs, answers = kept[0], kept[1] if self.keeps_answers else None
        if not self._keeps_probs:
            return HistoryBuffer(outputs, answers)
        predictions = xp.empty(shape[:2], dtype=xp.int64, device=device)
        return HistoryBuffer(outputs, answers, kept[-1], predictions)

    def at_exit(self, exit_index: int, buffer: HistoryBuffer, outputs: AnyArray) -> ExitOutput:
        """What an exit comes to, from its outputs `[n, K]` float32; they are kept in the buffer.

        Args:
            exit_index: Of the exit.
            buffer: What the exits before it have put out.
            outputs: Of this exit.
        """
        if exit_index == self.last and self._answers_outputs:
            return ExitOutput(outputs)  # where nothing is scored, and nothing comes after it
        history = self._history(exit_index, buffer, outputs)
        scores = self.score(history) if self.is_scored[exit_index] else None
        return ExitOutput(history.answer, scores)

    def so_far(self, outputs: AnyArray) -> History:
        """What is known at the last of the exits `[n, m+1, K]`, where no buffer was kept."""
        answers = outputs if self._answers_outputs else self._answer.answers(outputs)
        return self.history_type(outputs, answers)

    def score(self, history: History) -> AnyArray:
        """Stop scores `[n]` float32 at the last of the exits so far."""
        return float32(self._scoring(history)(history))

    def _scoring(self, history: History) -> Scoring:
        exit_index = history.exit_index
        scoring = self._scorings.get(exit_index)
        if scoring is None:
            scoring = self._scorer.at_exit(exit_index, history.num_classes)
            self._scorings[exit_index] = scoring
        return scoring

    def scores(self, history: History) -> AnyArray:
        """Scores of all exits `[n, M]`; the last one always stops, so no scorer is run there.

        Raises:
            LedgerError: The scorer gives something else than one finite number per sample.
        """
        found = np.full((len(history), history.exit_index + 1), math.inf, np.float32)
        for exit_index in range(history.exit_index):
            until = history.until(exit_index)
            scores = self._scoring(until)(until)
            found[:, exit_index] = self._checked(scores, len(history), exit_index)
        return found

    def stops(self, exit_index: int, scores: AnyArray) -> AnyArray:
        """Whether each sample stops, bool `[n]`, given its score at an exit before the last."""
        return stops(scores, self.limits[exit_index])

    def why(self, exit_index: int, confidence: float) -> str:
        """Why a sample stops at an exit: `sure`, `hopeless` (probably wrong, for good) or `last`.

        Of logits it is never `hopeless`: of many classes, the most probable one may well be right
        with less than one half.
        """
        if exit_index == self.last:
            return "last"
        return "sure" if confidence >= SURE or self.history_type.has_logits else "hopeless"

    def _history(self, exit_index: int, buffer: HistoryBuffer, outputs: AnyArray) -> History:
        """The exits up to this one, with its outputs and what the answer makes of them."""
        so_far = _appended(buffer.outputs, exit_index, outputs)
        if self._answers_outputs:
            known = _known(buffer, exit_index, outputs)
            return self.history_type(so_far, so_far, outputs, exit_index=exit_index, known=known)
        if buffer.outputs is None and exit_index:  # the answer reads which exit it is at
            xp = namespace(outputs)
            so_far = xp.broadcast_to(so_far, (len(outputs), exit_index + 1, outputs.shape[1]))
        answer = self._answer.answer_at(so_far)
        answers = _appended(buffer.answers, exit_index, answer)
        known = _known(buffer, exit_index, answer)
        return self.history_type(so_far, answers, answer, exit_index=exit_index, known=known)

    def _checked(self, scores: Any, samples: int, exit_index: int) -> AnyArray:  # noqa: ANN401
        name = type(self._scorer).__name__
        if not is_array(scores):
            raise LedgerError(
                f"{name}.score_at must return an array, got {type(scores).__name__} at exit "
                f"{exit_index}"
            )
        if scores.shape != (samples,):
            raise LedgerError(
                f"{name}.score_at must give one score per sample, [{samples}], got "
                f"{list(scores.shape)} at exit {exit_index}"
            )
        finite = np.isfinite(scores)
        if not finite.all():
            raise LedgerError(
                f"{name}.score_at must give finite scores, got {scores[~finite][0]} at exit "
                f"{exit_index}"
            )
        return scores


def needed_heads(thresholds: AnyArray, scorer_reads_back: bool, answer_reads_back: bool) -> Array:
    """Whether each head has to run, bool `[P, M]`: its exit is open, or a later one reads it.

    Example:
        >>> thresholds = np.array([[np.inf, 0.5, np.inf, 0.0]])
        >>> needed_heads(thresholds, False, False), needed_heads(thresholds, True, False)
        (array([[False,  True, False,  True]]), array([[ True,  True, False,  True]]))
    """
    is_open = as_numpy(thresholds) < np.inf
    is_open[:, -1] = True  # the last exit always stops
    if answer_reads_back:
        return np.ones_like(is_open)
    if scorer_reads_back:  # up to the last open exit at which a scorer runs
        is_open[:, :-1] = np.logical_or.accumulate(is_open[:, -2::-1], axis=1)[:, ::-1]
    return is_open


def open_exits(limits: Sequence[float]) -> tuple[bool, ...]:
    """Whether a sample can stop at each exit, `[M]`: the last one always stops.

    Example:
        >>> open_exits([0.5, math.inf, math.inf])
        (True, False, True)
    """
    return (*(limit < math.inf for limit in limits[:-1]), True)


def _joined(*parts: AnyArray | None) -> AnyArray | None:
    """One array of the samples of several; None where none is kept."""
    return None if parts[0] is None else namespace(parts[0]).concat(parts)


def _appended(kept: AnyArray | None, exit_index: int, values: AnyArray) -> AnyArray:
    """`[n, m+1, K]` with new values `[n, K]` last; `[n, 1, K]` where none are kept."""
    if kept is None:
        return values[:, None]
    kept[:, exit_index] = values
    return kept[:, : exit_index + 1]


def _known(
    buffer: HistoryBuffer, exit_index: int, answer: AnyArray
) -> tuple[AnyArray, AnyArray] | None:
    """Log-probabilities and predictions so far, where they are kept; those of an answer added."""
    if buffer.log_probs is None:
        return None
    log_probs = _appended(buffer.log_probs, exit_index, log_softmax(float32(answer)))
    return log_probs, _appended(buffer.predictions, exit_index, answer.argmax(-1))
