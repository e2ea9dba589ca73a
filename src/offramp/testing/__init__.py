"""Checks of the library's promises, for your own answers, scorers and threshold methods.

In a test of your own package:

    def test_my_scorer_keeps_the_promises():
        offramp.testing.check_scorer(MyScorer())
"""

from offramp.answers import Answer
from offramp.scorers import Scorer
from offramp.testing.kinds import AnswerUnderTest, MethodUnderTest, ScorerUnderTest
from offramp.thresholds.tuning import ThresholdMethod

__all__ = ["check_answer", "check_scorer", "check_threshold_method"]


def check_answer(answer: Answer) -> None:
    """Check an answer against every promise that the library relies on.

    The answer itself does not change: copies of it are fitted on synthetic ledgers.

    Args:
        answer: An instance of your class, with the settings to check.

    Raises:
        PromiseError: With each broken promise, and what happened.

    Example:
        >>> from dataclasses import dataclass
        >>> from offramp import TemperatureScaling
        >>> check_answer(TemperatureScaling())
        >>> @dataclass
        ... class Centred(Answer):
        ...     def answer_at(self, logits):
        ...         return logits[:, -1] - logits[:, -1].mean(axis=0)  # over the batch
        >>> check_answer(Centred())
        Traceback (most recent call last):
        offramp.errors.PromiseError: Centred breaks the promise 'samples are independent': alone,
        there is a change of up to ...
    """
    AnswerUnderTest(answer).check()


def check_scorer(scorer: Scorer) -> None:
    """Check a scorer against every promise that the library relies on.

    The scorer itself does not change: copies of it are fitted on synthetic ledgers.

    Args:
        scorer: An instance of your class, with the settings to check.

    Raises:
        PromiseError: With each broken promise, and what happened.

    Example:
        >>> from dataclasses import dataclass
        >>> from offramp import MaxProbability
        >>> check_scorer(MaxProbability())
        >>> @dataclass
        ... class Ranked(Scorer):
        ...     def score_at(self, history):
        ...         return 1.0 * history.log_odds.argsort().argsort()
        >>> check_scorer(Ranked())
        Traceback (most recent call last):
        offramp.errors.PromiseError: Ranked breaks the promise 'samples are independent': alone,
        there is a change of up to ...
    """
    ScorerUnderTest(scorer).check()


def check_threshold_method(method: ThresholdMethod) -> None:
    """Check a threshold method against every promise that the library relies on.

    Args:
        method: Takes scores `[N, M]`, correct `[N, M]`, costs `[M]` and a number of points, and
            returns thresholds `[P, M]`. To use it by name, add it:
            `offramp.registry.THRESHOLDS.add(name, method)`.

    Raises:
        PromiseError: With each broken promise, and what happened.

    Example:
        >>> import numpy as np
        >>> from offramp.registry import THRESHOLDS
        >>> check_threshold_method(THRESHOLDS["geometric"])
        >>> def one_size_fits_all(scores, correct, costs, points):
        ...     return np.zeros((1, len(costs)))
        >>> check_threshold_method(one_size_fits_all)
        Traceback (most recent call last):
        offramp.errors.PromiseError: one_size_fits_all breaks the promise 'the cost on val stays
        within the budget': the cheapest point costs ..., exit 0 alone 0.200, with distinct scores
    """
    MethodUnderTest(method).check()
