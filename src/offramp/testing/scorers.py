"""The promises of a scorer."""

from typing import Any

import torch
from torch import Tensor

from offramp.scorers import History, Scorer
from offramp.testing.components import BASICS, FITTING, KEEPING, SAYING
from offramp.testing.promises import Promise, expect, hold
from offramp.testing.specimen import ScorerSpecimen

__all__ = ["SCORER_PROMISES", "check_scorer"]

HUGE = 3e4  # the largest logits that float16 ledgers hold are twice that


def check_scorer(scorer: Scorer) -> None:
    """Hold a scorer against every promise that the library builds on.

    The scorer itself is not changed: copies of it are fitted on made-up ledgers.

    Args:
        scorer: An instance of your class, with the settings to examine.

    Raises:
        PromiseError: With each broken promise, what was expected, and what happened.

    Example:
        >>> from dataclasses import dataclass
        >>> from offramp import MaxProbability, Scorer
        >>> check_scorer(MaxProbability())
        >>> @dataclass
        ... class Ranked(Scorer):
        ...     def score_at(self, history):
        ...         return history.answer.amax(dim=1).argsort().argsort().float()
        >>> check_scorer(Ranked())
        Traceback (most recent call last):
        offramp.errors.PromiseError: Ranked breaks the promise 'samples are judged one by one':
        expected every sample to be judged by itself; without the others there is a change of ...
    """
    hold(type(scorer).__name__, SCORER_PROMISES, ScorerSpecimen(scorer))


def _scores_are_numbers(specimen: ScorerSpecimen) -> None:
    logits = specimen.logits
    for m in specimen.exits(logits):
        scores = specimen.ask_at(specimen.fitted, logits, m)
        expect(isinstance(scores, Tensor), "a torch tensor", f"got {type(scores).__name__}")
        found, wanted = list(scores.shape), [len(logits)]
        expect(found == wanted, f"one score per sample, {wanted}", f"got {found} at exit {m}")
        expect(scores.is_floating_point(), "floating-point scores", f"got {scores.dtype}")
    empty = specimen.ask_at(specimen.fitted, logits[:0], 0)
    expect(len(empty) == 0, "no scores for no samples", f"got {list(empty.shape)}")


def _scores_are_finite(specimen: ScorerSpecimen) -> None:
    logits = specimen.logits
    top = torch.zeros_like(logits)
    top[..., 0] = HUGE
    for what, inputs in (
        ("of ordinary samples", logits),
        ("where all classes are equal", torch.zeros_like(logits)),
        ("where an exit is as sure as float16 can say", top),
    ):
        for m in specimen.exits(inputs):
            scores = specimen.ask_at(specimen.fitted, inputs, m)
            bad = scores[~scores.isfinite()]
            text = "finite scores, since a threshold of +inf closes an exit for all of them"
            expect(not len(bad), text, f"{what} there is {bad[:1].tolist()} at exit {m}")


def _probabilities_are_shares(specimen: ScorerSpecimen) -> None:
    for m in specimen.exits(specimen.logits):
        scores = specimen.ask_at(specimen.fitted, specimen.logits, m)
        probability: Tensor | None = specimen.fitted.probability(scores)
        if probability is None:
            continue
        kept = probability.shape == scores.shape
        kept = kept and bool(((probability >= 0) & (probability <= 1)).all())
        text = "probability(scores) to be None, or to lie in [0, 1] for each score"
        expect(kept, text, f"got values from {probability.min():.4g} to {probability.max():.4g}")


def _prices_give_scorers(specimen: ScorerSpecimen) -> None:
    priced = specimen.fitted.at_price(0.5)
    text = "at_price to give a scorer that is fitted"
    kept = isinstance(priced, Scorer) and priced.is_fitted
    expect(kept, text, f"got {type(priced).__name__}")
    scores = specimen.ask_at(priced, specimen.logits, 0)
    expect(bool(scores.isfinite().all()), "finite scores at a price", "some are not")


def _seeds_give_scorers(specimen: ScorerSpecimen) -> None:
    held_out = specimen.ledgers["held_out"]
    history = History(held_out.logits, held_out.logits)
    made = specimen.component.fit_seeds(history, held_out.labels, held_out.costs, [0, 1])
    wanted = 2 if "seed" in specimen.component.settings() else 1
    expect(
        len(made) == wanted and all(each.is_fitted for each in made),
        f"fit_seeds to give {wanted} fitted scorers for two seeds (one where there is no `seed`)",
        f"got {len(made)}, of which {sum(each.is_fitted for each in made)} are fitted",
    )
    seeds = [each.settings().get("seed") for each in made]
    expect(wanted == 1 or seeds == [0, 1], "scorers that know their seeds", f"got {seeds}")


SCORER_PROMISES: list[Promise[Any]] = [
    *BASICS,
    Promise("there is one score per sample", _scores_are_numbers, basic=True),
    Promise("scores are finite", _scores_are_finite),
    *FITTING,
    Promise("every seed gives a scorer", _seeds_give_scorers),
    *SAYING,
    Promise("a probability is one", _probabilities_are_shares),
    Promise("every price gives a scorer", _prices_give_scorers),
    *KEEPING,
]
