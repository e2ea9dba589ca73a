"""Checks of the library's promises, for your own answers, scorers and threshold methods.

In a test of your own package:

    def test_my_scorer_keeps_the_promises():
        offramp.testing.check_scorer(MyScorer())
"""

from offramp.testing.answers import check_answer
from offramp.testing.scorers import check_scorer
from offramp.testing.threshold_methods import check_threshold_method

__all__ = ["check_answer", "check_scorer", "check_threshold_method"]
