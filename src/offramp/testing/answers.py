"""The promises of an answer."""

from typing import Any

import torch
from torch import Tensor

from offramp.answers import Answer
from offramp.errors import SplitError
from offramp.testing.components import (
    BASICS,
    FITTING,
    KEEPING,
    SAYING,
    largest_change,
    same,
)
from offramp.testing.promises import Promise, expect, hold
from offramp.testing.specimen import AnswerSpecimen

__all__ = ["ANSWER_PROMISES", "check_answer"]


def check_answer(answer: Answer) -> None:
    """Hold an answer against every promise that the library builds on.

    The answer itself is not changed: copies of it are fitted on made-up ledgers.

    Args:
        answer: An instance of your class, with the settings to examine.

    Raises:
        PromiseError: With each broken promise, what was expected, and what happened.

    Example:
        >>> from dataclasses import dataclass
        >>> from offramp import Answer, TemperatureScaling
        >>> check_answer(TemperatureScaling())
        >>> @dataclass
        ... class Centred(Answer):
        ...     def answer_at(self, logits):
        ...         return logits[:, -1] - logits[:, -1].mean(dim=0)  # over the batch
        >>> check_answer(Centred())
        Traceback (most recent call last):
        offramp.errors.PromiseError: Centred breaks the promise 'samples are judged one by one':
        expected every sample to be judged by itself; without the others there is a change of ...
    """
    hold(type(answer).__name__, ANSWER_PROMISES, AnswerSpecimen(answer))


def _answers_are_logits(specimen: AnswerSpecimen) -> None:
    logits = specimen.logits
    for m in specimen.exits(logits):
        said = specimen.ask_at(specimen.fitted, logits, m)
        expect(isinstance(said, Tensor), "a torch tensor", f"got {type(said).__name__}")
        shape = [len(logits), logits.shape[2]]
        found = list(said.shape)
        expect(found == shape, f"answer_at to give [n, K] = {shape}", f"got {found} at exit {m}")
        kept = said.is_floating_point() and bool(said.isfinite().all())
        expect(kept, "finite floating-point logits", f"got {said.dtype}, or some not finite")
    empty = specimen.ask_at(specimen.fitted, logits[:0], 0)
    expect(len(empty) == 0, "nothing for no samples", f"got {list(empty.shape)}")


def _all_at_once_is_one_by_one(specimen: AnswerSpecimen) -> None:
    logits, fitted = specimen.logits, specimen.fitted
    with torch.inference_mode():
        whole = fitted.answers(logits)
    for m in specimen.exits(logits):
        alone = specimen.ask(fitted, logits[:, : m + 1].clone())
        expect(
            same(whole[:, m], alone),
            "answers(logits) to be what answer_at gives, exit by exit",
            f"they differ at exit {m}: {largest_change(whole[:, m], alone)}",
        )


def _fits_on_held_out_only(specimen: AnswerSpecimen) -> None:
    val = specimen.ledgers["val"]
    try:
        specimen.component.clone().fit(val)
    except SplitError:
        specimen.component.clone().fit(val, allow_split="val")  # knowingly, it is taken
    else:
        text = "fit to refuse the split 'val' (override _fit, and fit asks for held_out)"
        expect(False, text, "it took it")


ANSWER_PROMISES: list[Promise[Any]] = [
    *BASICS,
    Promise("an answer is logits for every class", _answers_are_logits, basic=True),
    *FITTING,
    Promise("answers are fitted on held_out", _fits_on_held_out_only),
    *SAYING,
    Promise("offline and at work it says the same", _all_at_once_is_one_by_one),
    *KEEPING,
]
