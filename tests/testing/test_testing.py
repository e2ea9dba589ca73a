"""The library's own classes keep the promises, and every check notices what breaks it."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from offramp import Answer, Corrector, Scorer
from offramp import answers as answer_room
from offramp import scorers as scorer_room
from offramp.component import current_exit_only
from offramp.errors import PromiseError
from offramp.registry import THRESHOLDS
from offramp.scorers import CalibratedConfidence
from offramp.testing import check_answer, check_scorer, check_threshold_method
from offramp.testing.kinds import AnswerUnderTest, MethodUnderTest, ScorerUnderTest
from offramp.testing.promises import Promise, UnderTest

from ..registered import ANSWERS, SCORERS
from .broken_answers import BROKEN_ANSWERS, Mean, NegativeMacs, OnlyArrays
from .broken_scorers import BROKEN_SCORERS, Scaled
from .broken_thresholds import BROKEN_METHODS


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_the_librarys_answers_keep_every_promise(answer):
    check_answer(answer)


@pytest.mark.parametrize("scorer", SCORERS, ids=str)
def test_the_librarys_scorers_keep_every_promise(scorer):
    check_scorer(scorer)


@pytest.mark.parametrize("name", THRESHOLDS)
def test_the_librarys_threshold_methods_keep_every_promise(name):
    check_threshold_method(THRESHOLDS[name])


@pytest.mark.parametrize(
    ("room", "parent", "registered"),
    [(answer_room, Answer, ANSWERS), (scorer_room, Scorer, SCORERS)],
)
def test_every_public_class_belongs_to_a_registered_method(room, parent, registered):
    public = {getattr(room, name) for name in room.__all__}
    classes = {each for each in public if isinstance(each, type) and issubclass(each, parent)}
    of_sub_chains = {CalibratedConfidence}  # a method that is no scorer and answer; see below
    assert classes - {parent} - of_sub_chains == {type(each) for each in registered}


def test_calibrated_chances_keep_all_promises_but_that_none_are_equal():
    """Samples surer than all of held_out share the highest chance that was learned."""
    with pytest.raises(PromiseError, match="have 1 different scores") as error:
        check_scorer(CalibratedConfidence())
    assert error.value.promises == ("scores do not saturate",)


def test_to_the_letter_of_the_paper_very_sure_samples_share_a_score():
    with pytest.raises(PromiseError, match="have 1 different scores") as error:
        check_scorer(Corrector(log_odds=False))
    assert error.value.promises == ("scores do not saturate",)


def test_the_classes_that_others_break_are_sound():
    check_answer(Mean())
    check_answer(OnlyArrays())
    check_scorer(Scaled())


CASES = [
    *((check_answer, *case) for case in BROKEN_ANSWERS),
    *((check_scorer, *case) for case in BROKEN_SCORERS),
    *((check_threshold_method, *case) for case in BROKEN_METHODS),
]


def name_of(value):
    return getattr(value, "__name__", type(value).__name__)


@pytest.mark.parametrize(
    ("check", "broken", "promise", "happened"), CASES, ids=[name_of(case[1]) for case in CASES]
)
def test_a_broken_class_fails_exactly_the_check_of_its_promise(check, broken, promise, happened):
    with pytest.raises(PromiseError, match=f"(?s)breaks the promise '{promise}'.*{happened}") as e:
        check(broken)
    assert len(e.value.promises) == 1


@pytest.mark.parametrize(
    ("kinds", "cases"),
    [
        ([AnswerUnderTest, ScorerUnderTest], [*BROKEN_ANSWERS, *BROKEN_SCORERS]),
        ([MethodUnderTest], BROKEN_METHODS),
    ],
)
def test_every_promise_has_a_class_that_breaks_it(kinds, cases):
    promised = {promise.text for kind in kinds for promise in kind.promises()}
    assert promised == {case[1].replace("\\", "") for case in cases}


def test_several_broken_promises_are_all_named():
    @dataclass
    class ManyFaults(NegativeMacs):
        @current_exit_only
        def answer_at(self, logits):
            return logits.sum(axis=1)

    with pytest.raises(PromiseError, match=r"ManyFaults breaks 2 promises:\n- ManyF") as error:
        check_answer(ManyFaults())
    assert error.value.promises == ("macs are counts", "current_exit_only is true where it is set")


def test_a_broken_basic_promise_ends_the_checks():
    asked = []

    class Thing(UnderTest):
        name = "Thing"
        second = Promise("second")(asked.append)

        @Promise("first", basic=True)
        def fails(self):
            raise ValueError("no")

    with pytest.raises(PromiseError, match="Thing breaks the promise 'first': ValueError was rai"):
        Thing().check()
    assert asked == []


def test_a_check_leaves_no_trace():
    scorer, states = Scaled(), (torch.get_rng_state(), np.random.get_state()[1])
    check_scorer(scorer)
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert not scorer.is_fitted
