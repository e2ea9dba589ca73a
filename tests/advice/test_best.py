"""What keeps the accuracy for the least is named first: exits, an exit alone, or none."""

import numpy as np

import offramp
from offramp import Costs
from offramp.advice.best import Way, best_ways, in_words
from offramp.plan import Plan


def ledgers(early, unit="macs"):
    """Ledgers whose first exit is right for a share of the samples that it is equally sure of."""
    rng, splits = np.random.default_rng(0), {}
    for split in ("held_out", "val", "test"):
        labels = rng.integers(4, size=400)
        logits = np.zeros((400, 2, 4), np.float32)
        for exit_index, share in enumerate((early, 0.9)):
            right = rng.random(400) < share
            answers = np.where(right, labels, (labels + 1) % 4)
            logits[np.arange(400), exit_index, answers] = 3 + 0.1 * rng.random(400)
        costs = Costs((1.0, 1.0), (0.0, 0.0), unit=unit)
        splits[split] = offramp.Ledger(logits, labels, costs, split=split, network="n")
    return splits


def test_a_fixed_exit_that_is_as_accurate_is_named_before_exits():
    splits = ledgers(early=0.95)
    plan = offramp.auto(splits["held_out"], splits["val"], [0.7], ["baseline"])
    assert best_ways(plan, splits["val"])[0].name == "exit 0 alone"
    assert plan.best.startswith("Best on val: exit 0 alone, which saves 50% of the compute at 9")
    assert str(plan).splitlines()[0] == plan.best
    advice = offramp.advise(**splits, budgets=[0.7], methods=["baseline"], resamples=20)
    assert str(advice).splitlines()[0] == plan.best


def test_where_every_exit_loses_accuracy_the_network_without_exits_is_best():
    splits = ledgers(early=0.3)
    plan = offramp.auto(splits["held_out"], splits["val"], [0.7], ["baseline"])
    (only,) = best_ways(plan, splits["val"])
    assert (only.name, only.share) == ("the network without exits", 1.0)
    assert "the network without exits (" in plan.best and "saves" not in plan.best
    assert best_ways(plan, splits["val"], max_drop=1.0)[0].share < 1


def test_exits_that_know_what_they_do_not_know_are_best():
    splits = offramp.synthetic.ledgers(seed=0, exits=4)
    plan = offramp.auto(splits["held_out"], splits["val"], [0.6, 0.8], ["baseline:smooth"])
    ways = best_ways(plan, splits["val"])
    assert ways[0].name.startswith("exits at ") and ways[-1].share == 1.0
    assert [way.share for way in ways] == sorted(way.share for way in ways)


def test_the_best_of_another_kind_comes_next_and_a_file_keeps_the_sentence(tmp_path):
    ways = [Way("exits at 40%", 0.4, 0.9), Way("exits at 50%", 0.5, 0.9)]
    ways += [Way("exit 1 alone", 0.6, 0.91), Way("the network without exits", 1.0, 0.9)]
    text = in_words(ways, "seconds")
    assert "exits at 40%, which saves 60% of the time at 90.00%; next: exit 1 alone, wh" in text
    splits = ledgers(early=0.95)
    plan = offramp.auto(splits["held_out"], splits["val"], [0.7], ["baseline"])
    assert Plan.load(plan.save(tmp_path / "plan")).best == plan.best
