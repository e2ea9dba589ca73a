"""The library's promises as checks, for anyone's answer, scorer or threshold method.

In a test of your own package:

    def test_my_scorer_keeps_the_promises():
        offramp.testing.check_scorer(MyScorer())
"""

from offramp.testing.components import check_answer, check_scorer
from offramp.testing.threshold_methods import check_threshold_method

__all__ = ["check_answer", "check_scorer", "check_threshold_method"]
