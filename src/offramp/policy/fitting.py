"""Fitting an answer, and a scorer on cross-fitted answers."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

from offramp.answers import Answer, crossfit_answers
from offramp.errors import FewSamplesWarning
from offramp.ledger import History, Ledger
from offramp.scorers import Scorer


class FittedParts(NamedTuple):
    """What a fit gives."""

    answer: Answer
    scorers: Sequence[Scorer]  # one per seed, or one in all
    history: History | None  # what the scorers have learned from; None where they learn nothing


def fit_parts(
    answer: Answer, scorer: Scorer, ledger: Ledger, seeds: Sequence[int] | None = None
) -> FittedParts:
    """Copies of an answer and a scorer, fitted on a held_out ledger.

    Without seeds there is one scorer, fitted with its own seed.
    """
    fitted = answer.on(ledger.history_type).fit(ledger)
    fresh, costs = scorer.on(answer.gives(ledger.history_type)), ledger.cumulative_costs
    history = training_history(answer, scorer, ledger)
    if history is None:
        scorers = [fresh]
    elif not ledger.has_labels:
        scorers = [fresh.fit_unlabelled(history, costs)]
    elif seeds is None:
        scorers = [fresh.fit(history, ledger.labels, costs)]
    else:
        scorers = fresh.fit_seeds(history, ledger.labels, costs, seeds)
    return FittedParts(fitted, scorers, history)


def training_history(answer: Answer, scorer: Scorer, ledger: Ledger) -> History | None:
    """What a scorer learns from: all exits with cross-fitted answers; None if it does not."""
    if not scorer.learns:
        return None
    return ledger.history(crossfit_answers(answer.on(ledger.history_type), ledger))


def check_fit(scorer: Scorer, held_out: Ledger) -> None:
    """Raise where a scorer cannot be fitted, and warn where it is likely to overfit.

    It is called by what a user calls.
    """
    scorer.check_can_fit()
    Ledger.require("held_out", held_out)
    wanted = scorer.samples_wanted(held_out.num_exits, held_out.num_classes)
    if len(held_out) >= wanted:
        return
    warnings.warn(
        f"{type(scorer).__name__} is fitted to {len(held_out):,} samples, and with fewer than "
        f"{wanted:,} it is likely to overfit: use scorers.LogisticCorrector() or "
        "scorers.BreakEven() (methods `eefp-logistic`, `break-even`), which need a few hundred, "
        "or more samples",
        FewSamplesWarning,
        stacklevel=4,
    )
