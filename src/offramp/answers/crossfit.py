"""Cross-fitting: answers that have not seen the labels of the samples they are for."""

from collections.abc import Iterator

import torch
from torch import Tensor

from offramp.answers.answer import Answer
from offramp.answers.current import CurrentExit
from offramp.errors import LedgerError
from offramp.ledger import Ledger

__all__ = ["crossfit_answers", "crossfit_chunks"]

FOLDS = 5


def crossfit_answers(answer: Answer, ledger: Ledger, folds: int = FOLDS) -> Tensor:
    """Answers of every sample by a copy of `answer` that was fitted without it, `[N, M, K]`.

    An answer with nothing to learn has not seen any label, and is not refitted.
    """
    if type(answer) is CurrentExit:
        return ledger.logits  # as they are, without a second copy
    if not answer.learns:
        return torch.cat([answer.answers(logits) for _, logits in ledger.chunks()])
    answers = torch.empty(len(ledger), ledger.num_exits, ledger.num_classes)
    for rows, part in crossfit_chunks(answer, ledger, folds):
        answers[rows] = part
    return answers


def crossfit_chunks(
    answer: Answer, ledger: Ledger, folds: int = FOLDS
) -> Iterator[tuple[Tensor | slice, Tensor]]:
    """The same, a few samples at a time: their positions, and their answers `[n, M, K]`.

    Raises:
        LedgerError: There are fewer samples than folds.
    """
    if not answer.learns:
        yield from ((rows, answer.answers(logits)) for rows, logits in ledger.chunks())
        return
    if len(ledger) < folds:
        raise LedgerError(f"cross-fitting needs at least {folds} samples, got {len(ledger)}")
    order = torch.randperm(len(ledger), generator=torch.Generator().manual_seed(0))
    parts = order.tensor_split(folds)
    for number, part in enumerate(parts):
        rest = torch.cat([*parts[:number], *parts[number + 1 :]])
        fitted = answer.clone().fit(ledger.take(rest))
        for rows, logits in ledger.take(part).chunks():
            yield part[rows], fitted.answers(logits)
