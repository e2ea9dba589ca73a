"""What an answer is: a map from the exits' logits so far to the logits that are answered with."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from offramp.arrays import AnyArray, Array, namespace
from offramp.component import Component, current_exit_only
from offramp.errors import LedgerError
from offramp.ledger import History, Ledger
from offramp.ledger.chunks import folds


class Answer(Component):
    """What does the network say if it stops here?

    An own answer is a dataclass that overrides `answer_at`, and `_fit` with `learned` if there
    is something to learn. It is fitted on held_out and sees only the exits so far.

    Attributes:
        folds: Into how many folds held_out is cut for cross-fitting.
    """

    folds: ClassVar[int] = 5

    @property
    def reads_history(self) -> bool:
        """Whether earlier exits are read: unless `answer_at` is marked `current_exit_only`."""
        return getattr(type(self).answer_at, "reads_history", True)

    def fit(self, ledger: Ledger, allow_split: str | None = None) -> Self:
        """Learn from a held_out ledger; an answer with nothing to learn does nothing.

        Args:
            ledger: The held_out ledger.
            allow_split: Another split's name, to fit on that one knowingly.
        """
        ledger.require_split("held_out", allow_split)
        self._fit(ledger)
        return self

    def gives(self, history_type: type[History]) -> type[History]:
        """How a scorer reads the answers, on ledgers that are read in this way."""
        return history_type

    def _fit(self, ledger: Ledger) -> None:
        """Set the attributes named in `learned`."""

    def answer_at(self, logits: AnyArray) -> AnyArray:
        """The logits to answer with, `[n, K]`, at the last of the exits so far, `[n, m+1, K]`."""
        raise NotImplementedError(f"{type(self).__name__} must define answer_at")

    def answers(self, logits: AnyArray) -> AnyArray:
        """What would be answered at every exit, `[n, M, K]` from `[n, M, K]`."""
        self.check_fitted()
        exits = range(1, logits.shape[1] + 1)
        answers = [self.answer_at(logits[:, :count]) for count in exits]
        return namespace(logits).stack(answers, axis=1)

    def macs(self, exit_index: int, num_classes: int) -> int:
        """Multiply-accumulates that the answer takes at one exit."""
        return 0


@dataclass
class CurrentExit(Answer):
    """Answer with the current exit's own logits.

    Example:
        >>> CurrentExit().answer_at(np.array([[[1.0, 0.0], [0.0, 3.0]]]))
        array([[0., 3.]])
    """

    needs = "nothing"

    @current_exit_only
    def answer_at(self, logits: AnyArray) -> AnyArray:
        """The last of the exits so far, `[n, m+1, K]` -> `[n, K]`."""
        return logits[:, -1]

    def answers(self, logits: AnyArray) -> AnyArray:
        """The logits themselves: nothing is copied."""
        return logits if type(self) is CurrentExit else super().answers(logits)


def crossfit_answers(answer: Answer, ledger: Ledger) -> Array:
    """Answers of every sample by a copy of `answer` that was fitted without it, `[N, M, K]`.

    An answer with nothing to learn has not seen any label, and is not refitted.
    """
    if type(answer) is CurrentExit:
        return ledger.outputs  # as they are, without a second copy
    if not answer.learns:
        return np.concatenate([answer.answers(logits) for _, logits in ledger.chunks()])
    answers = np.empty((len(ledger), ledger.num_exits, ledger.num_classes), np.float32)
    for rows, found in crossfit_chunks(answer, ledger):
        answers[rows] = found
    return answers


def crossfit_chunks(answer: Answer, ledger: Ledger) -> Iterator[tuple[Array | slice, Array]]:
    """The same, a few samples at a time: their positions, and their answers `[n, M, K]`.

    Raises:
        LedgerError: There are fewer samples than folds.
    """
    if not answer.learns:
        yield from ((rows, answer.answers(logits)) for rows, logits in ledger.chunks())
        return
    if ledger.num_units < answer.folds:
        units = "samples" if ledger.groups is None else "groups"
        raise LedgerError(
            f"cross-fitting needs at least {answer.folds} {units}, got {ledger.num_units}"
        )
    for rest, fold in folds(len(ledger), answer.folds, ledger.group_numbers):
        fitted = answer.clone().fit(ledger.take(rest))
        for rows, logits in ledger.take(fold).chunks():
            yield fold[rows], fitted.answers(logits)
