"""The registered scorers and answers, in the settings that are worth a test.

Whatever a registered method is made of is here, so that a new scorer or answer is tested wherever
these lists are used: against every promise, on ledgers, in the runtime and in ONNX.
"""

from itertools import cycle, islice

import offramp
from offramp.answers import CurrentExit
from offramp.registry import METHODS
from offramp.scorers import BreakEven, Corrector, LogisticCorrector

FURTHER = [  # settings that no method has
    Corrector(history=False, k="all", target="correctness", seed=3),
    BreakEven(history=False, classes=False),
    LogisticCorrector(history=False),
]
QUICK = {Corrector: {"hidden": 8, "epochs": 1}}
"""Settings with which fits are quick, where how good they are does not matter."""

METHODS_OF_PARTS = [
    each for each in map(METHODS.__getitem__, METHODS) if type(each) is offramp.Method
]


def distinct(components):
    """Each once, by class and settings."""
    return list({repr(each): each for each in components}.values())


SCORERS = distinct([*(method.scorer for method in METHODS_OF_PARTS), *FURTHER])
ANSWERS = distinct(method.answer for method in METHODS_OF_PARTS)


def quick(component):
    """A copy whose fit is quick."""
    return component.clone(**QUICK.get(type(component), {}))


def without_logits(components):
    """Those that can be used on ledgers of answers."""
    return [each for each in components if each.needs != "logits"]


def each_once(scorers, answers):
    """Pairs of scorers and answers in which each is at least once."""
    count = max(len(scorers), len(answers))
    paired = zip(cycle(scorers or [offramp.MaxProbability()]), cycle(answers or [CurrentExit()]))
    return list(islice(paired, count))
