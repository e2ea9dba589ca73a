"""Everything about decisions, in a process that cannot import torch; see test_rooms.py."""

import sys
from pathlib import Path

import numpy as np
import pytest

from offramp import (
    Corrector,
    Guarantee,
    Ledger,
    MaxProbability,
    Policy,
    advise,
    auto,
    certify,
    compare,
    evaluate,
    synthetic,
    zoo,
)
from offramp.answers import ClassWiseEnsemble, CurrentExit, GeometricEnsemble, TemperatureScaling
from offramp.errors import MissingExtraError
from offramp.plan import Plan
from offramp.scorers import BreakEven, LogisticCorrector

PAIRS = [
    (BreakEven(), CurrentExit(), "shared"),
    (LogisticCorrector(), GeometricEnsemble(), "smooth"),
    (MaxProbability(), TemperatureScaling(), "geometric"),
    (MaxProbability(), ClassWiseEnsemble(), "geometric"),
]
NEEDS_TORCH = r"needs the extra `torch`: pip install 'offramp\[torch\]'"


def decide(folder: Path) -> None:
    """Fit, tune, save, load, compare, choose, observe and certify."""
    splits = synthetic.ledgers(seed=0, samples=400, exits=4, classes=8)
    for split, ledger in splits.items():
        ledger.save(folder / split)
    held_out, val, test = (Ledger.load(folder / split) for split in splits)
    for scorer, answer, thresholds in PAIRS:
        policy = Policy(scorer, answer).fit(held_out).fit_confidence(held_out)
        policy.tune(val, thresholds).save(folder / "policy")
        loaded, policy = Policy.load(folder / "policy").at(budget=0.5), policy.at(budget=0.5)
        assert np.array_equal(loaded.decide(test), policy.decide(test))
        observe(loaded, test)
    assert 0 < evaluate(policy, test).accuracy < 1
    compare(held_out, val, test, ["baseline", "eefp-logistic"], resamples=20)
    auto(held_out, val, [0.5]).save(folder / "plan")
    assert list(Plan.load(folder / "plan")) == [0.5]
    advise(held_out, val, test, budgets=[0.5], resamples=20)
    tuned = Policy(MaxProbability()).fit(held_out).tune(held_out, allow_split="held_out")
    certify(tuned, val, Guarantee(epsilon=0.3))


def observe(policy: Policy, test: Ledger) -> None:
    """Observe the exits of some samples one by one, alone and as a batch."""
    exits, some = policy.decide(test), test.logits[:5]
    batch = policy.start(items=5)
    for exit_index in range(4):
        if len(batch.left):
            batch.observe(some[batch.left, exit_index])
    for logits, expected in zip(some, exits, strict=False):
        session = policy.start()
        assert any(map(session.observe, logits))
        assert session.stage == expected
    assert np.array_equal(batch.stages, exits[:5])


def need_torch(held_out: Ledger) -> None:
    """Name the extra where torch is needed: to train a corrector, and for networks."""
    with pytest.raises(MissingExtraError, match=NEEDS_TORCH):
        Policy(Corrector()).fit(held_out)
    shipped = zoo.cifar100()
    assert len(shipped["test"]) == 2000
    with pytest.raises(MissingExtraError, match=NEEDS_TORCH):
        shipped["network"]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    decide(folder)
    need_torch(Ledger.load(folder / "held_out"))
    # A corrector that was trained elsewhere scores without torch.
    corrected = Policy.load(folder / "corrected").replay(Ledger.load(folder / "test"))
    np.save(folder / "scores.npy", corrected.scores)
