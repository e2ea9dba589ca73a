"""Real answers in stages: a cascade of language models, and one that thinks."""

import os
from pathlib import Path

import numpy as np
import pytest

import offramp
from offramp import Ledger
from offramp.costs import Costs

pytestmark = pytest.mark.real


def traces(name):
    path = Path(os.environ.get("OFFRAMP_DATA", "")) / "traces" / name
    if not path.is_file():
        pytest.skip(f"OFFRAMP_DATA has no traces/{name}")
    return np.load(path, allow_pickle=False)


def llamas(name, split):
    arrays = traces(name)
    return Ledger.from_answers(
        log_confidence=arrays["log_confidence"],
        correct=arrays["correct"],
        costs=Costs.of_members(arrays["cost_usd"], "dollars"),
        split=split,
        network="llama",
    )


def test_auto_comes_within_a_point_of_the_best_mix_of_pairs_from_285_questions():
    train = llamas("cascade_mmlu_llama_train.npz", "all")
    test = llamas("cascade_mmlu_llama_test.npz", "test")
    order = np.random.default_rng(0).permutation(len(train))
    held_out = train.take(order[:150]).as_split("held_out")
    val = train.take(order[150:]).as_split("val")
    table = offramp.compare(held_out, val, test, ["auto"], budgets=[0.5], resamples=2)
    assert table["auto"].differences["pair-mix"]["accuracy@0.5"].value > -0.01
    assert table.references.full.accuracy == pytest.approx(0.8517, abs=1e-4)
    assert table.references.full.cost == pytest.approx(1)


def test_half_of_the_thinking_is_enough():
    arrays = traces("gemma4_12b_cot_mmlu_pro.npz")
    ledger = Ledger(
        arrays["logits"],
        arrays["labels"],
        Costs.from_cumulative(arrays["tokens"], "tokens"),
        split="all",
        groups=arrays["groups"],
        network="gemma",
    )
    gains = []
    for seed in range(3):
        parts = ledger.partition(0.35, 0.35, 0.3, seed=seed)
        table = offramp.compare(*parts, ["baseline:smooth"], budgets=[0.5], resamples=2)
        full = table.references.full.accuracy
        gains.append(table["baseline:smooth"].accuracy(0.5) - full)
    assert np.mean(gains) > 0
