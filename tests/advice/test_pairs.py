"""The best cascade of two stages."""

import numpy as np

from offramp import Costs, compare
from offramp.advice import Pairs


def test_the_best_pair_on_val_is_taken_at_each_budget(splits):
    costs = Costs.of_members([1.0, 2.0, 3.0, 6.0, 10.0], "dollars")
    parts = {name: ledger.with_costs(costs) for name, ledger in splits.items()}
    (plan,) = Pairs().plans(parts["held_out"], parts["val"], [0.3, 1.0], seeds=1)
    for budget, policy in plan.items():
        assert len(policy.exits) == 2
        assert policy.points.budgets[policy.selected] <= budget
        assert f"stages {policy.exits[0]} and {policy.exits[1]}" in plan.why[budget]
    table = compare(**parts, methods=["pairs"], budgets=[0.3, 1.0], resamples=10)
    replay = plan[1.0].replay(parts["test"])
    assert np.isclose(table["pairs"].accuracy(1.0), replay.curve.at(1.0).accuracy)
    assert table["pairs"].settings["chosen"] == {"0.3": "pairs", "1": "pairs"}
