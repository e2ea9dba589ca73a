"""Each kind of mistake has one sentence: the name, what is expected, and what was got."""

import re

import numpy as np
import pytest

from offramp import check
from offramp.errors import ConfigError, LedgerError, NotFittedError

SENTENCES = [
    (check.one_of, ("x", "c", ["a", "b"]), "`x` must be one of a, b, got 'c'"),
    (check.one_of, ("x", "macz", ["macs"]), "got 'macz'; did you mean `macs`?"),
    (check.one_of, ("x", ["a"], ["a", "b"]), "`x` must be one of a, b, got ['a']"),
    (check.whole, ("x", 0, 1), "`x` must be a whole number of at least 1, got 0"),
    (check.whole, ("x", 2.0), "`x` must be a whole number of at least 0, got 2.0"),
    (check.whole, ("x", True), "`x` must be a whole number of at least 0, got True"),
    (check.at_least, ("x", -0.5, 0), "`x` must be at least 0, got -0.5"),
    (check.at_least, ("x", float("inf"), 0), "`x` must be at least 0, got inf"),
    (check.positive, ("x", np.float64(0)), "`x` must be above 0, got 0.0"),
    (check.positive, ("x", "1"), "`x` must be above 0, got '1'"),
    (check.within, ("x", 1.5, 0, 1), "`x` must lie in [0, 1], got 1.5"),
    (check.within, ("x", float("nan"), 0, 1), "`x` must lie in [0, 1], got nan"),
    (check.within, ("x", None, 0.12, 1), "`x` must lie in [0.12, 1], got None"),
    (check.instance, ("x", "five", int), "`x` must be a int, got 'five'"),
    (check.instance, ("x", [5], int, "a number"), "`x` must be a number, got a list"),
    (check.instance, ("x", list, (int, list)), "got the class itself: call it, list(...)"),
    (check.shape, ("x", np.zeros((2, 3)), 2, "M", "K"), "shape [2, M, K], got [2, 3]"),
    (check.same_length, ("x", [1], [1, 2]), "`x` must have 2 entries, one per sample, got 1"),
    (check.same_length, ("x", [1], 3, "exit"), "`x` must have 3 entries, one per exit, got 1"),
]


@pytest.mark.parametrize(("validate", "arguments", "sentence"), SENTENCES)
def test_a_mistake_is_named_with_what_is_expected_and_what_was_got(validate, arguments, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        validate(*arguments)
    with pytest.raises(LedgerError, match=re.escape(sentence)):
        validate(*arguments, error=LedgerError)


@pytest.mark.parametrize(("ends", "fits"), [("[]", [0, 1]), ("[)", [0]), ("(]", [1]), ("()", [])])
def test_round_brackets_leave_an_end_out(ends, fits):
    check.within("x", 0.5, 0, 1, ends=ends)
    for end in (0, 1):
        if end in fits:
            check.within("x", end, 0, 1, ends=ends)
        else:
            with pytest.raises(ConfigError, match=re.escape(f"in {ends[0]}0, 1{ends[1]}")):
                check.within("x", end, 0, 1, ends=ends)


def test_numbers_of_numpy_are_numbers():
    check.whole("x", np.int64(3), least=1)
    check.within("x", np.float32(0.5), 0, 1)
    check.at_least("x", np.int32(3), 3)
    check.shape("x", np.zeros((4, 2)), "N", 2)
    check.same_length("x", np.zeros(3), 3)


def test_calls_in_the_wrong_order_name_the_first_one():
    check.fitted("policy", True, "fit(held_out)")
    with pytest.raises(NotFittedError, match=r"this policy is not fitted; call fit\(held_out\) f"):
        check.fitted("policy", False, "fit(held_out)")
