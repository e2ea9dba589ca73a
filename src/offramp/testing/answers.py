"""The promises of answers."""

import torch
from torch import Tensor

from offramp.answers import Answer
from offramp.errors import SplitError
from offramp.targets import correctness
from offramp.testing.components import SHARED, close, largest_change
from offramp.testing.promises import Promises, check_promises, expect
from offramp.testing.under_test import AnswerUnderTest

OWN = Promises()


def check_answer(answer: Answer) -> None:
    """Check an answer against every promise that the library relies on.

    The answer itself does not change: copies of it are fitted on synthetic ledgers.

    Args:
        answer: An instance of your class, with the settings to check.

    Raises:
        PromiseError: With each broken promise, what was expected and what happened.

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
        offramp.errors.PromiseError: Centred breaks the promise 'samples are independent':
        expected the result of a sample not to depend on the other samples; alone, there is ...
    """
    check_promises(type(answer).__name__, [*SHARED, *OWN], AnswerUnderTest(answer))


@OWN.add("an answer returns logits for every class", basic=True)
def _answers_are_logits(tested: AnswerUnderTest) -> None:
    logits = tested.logits
    for exit_index in tested.exits:
        answered = tested.run(logits, exit_index)
        expect(isinstance(answered, Tensor), "a torch tensor", f"got {type(answered).__name__}")
        shape = [len(logits), logits.shape[2]]
        found = list(answered.shape)
        expect(
            found == shape,
            f"answer_at to return [n, K] = {shape}",
            f"got {found} at exit {exit_index}",
        )
        kept = answered.is_floating_point() and bool(answered.isfinite().all())
        expect(
            kept, "finite floating-point logits", f"got {answered.dtype}, or some are not finite"
        )
        sums = answered.double().sum(dim=1)
        likely = bool((answered >= 0).all()) and close(sums, torch.ones_like(sums))
        text = "logits, whose softmax is taken; of probabilities, return the logarithm"
        expect(not likely, text, f"got probabilities at exit {exit_index}")
    empty = tested.run(logits[:0], 0)
    expect(len(empty) == 0, "an empty result for no samples", f"got {list(empty.shape)}")


@OWN.add("answers are fitted on held_out")
def _fits_on_held_out_only(tested: AnswerUnderTest) -> None:
    val = tested.ledgers["val"]
    try:
        tested.component.clone().fit(val)
    except SplitError:
        tested.component.clone().fit(val, allow_split="val")  # allowed if requested
    else:
        text = "fit to refuse the split 'val' (override _fit, so that fit checks the split)"
        expect(False, text, "it accepted it")


@OWN.add("answers() agrees with answer_at()")
def _both_methods_agree(tested: AnswerUnderTest) -> None:
    logits, fitted = tested.logits, tested.fitted
    with torch.inference_mode():
        whole = fitted.answers(logits)
    for exit_index in tested.exits:
        alone = tested.run(logits[:, : exit_index + 1].clone(), exit_index)
        expect(
            close(whole[:, exit_index], alone),
            "answers(logits) to return what answer_at returns, exit by exit",
            f"they differ at exit {exit_index}: {largest_change(whole[:, exit_index], alone)}",
        )


@OWN.add("an answer keeps what the exits know")
def _answers_are_right(tested: AnswerUnderTest) -> None:
    test = tested.ledgers["test"]
    for exit_index in tested.exits:
        own = correctness(test.logits[:, exit_index : exit_index + 1].argmax(dim=2), test.labels)
        answered = tested.run(test.logits, exit_index).argmax(dim=1, keepdim=True)
        right, known = (
            float(hits.double().mean()) for hits in (correctness(answered, test.labels), own)
        )
        expect(
            right > known / 2,
            "the most probable class to have the largest logit, and most right predictions kept",
            f"{right:.0%} are right at exit {exit_index}, and {known:.0%} of the exit's own: is "
            "the sign wrong?",
        )
