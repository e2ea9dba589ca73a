"""A comparison begins with what it comes to, and says where exits are worse than before."""

import json
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from offramp import Ledger, Method, compare, report, synthetic
from offramp.evaluation import Comparison
from offramp.evaluation.bootstrap import Interval, for_all
from offramp.evaluation.verdict import best_methods, verdict
from offramp.evaluation.worse_exits import worse_exits, worse_exits_in_words
from offramp.scorers import MaxProbability, Scorer

BUDGETS = [0.4, 0.7]


@dataclass
class _Worst(Scorer):
    """Stops where it should not."""

    def score_at(self, history):
        return -history.log_odds


def compared(ledgers, methods, **options):
    return compare(**ledgers, methods=methods, budgets=BUDGETS, resamples=200, **options)


@pytest.fixture(scope="module")
def ledgers():
    return synthetic.ledgers(seed=0, samples=800, exits=4)


@pytest.fixture(scope="module")
def table(ledgers):
    return compared(ledgers, ["baseline", "margin"])


def ledger_where(right, samples=600, split="val", groups=None):
    """Exits that are right on shares of the samples, nested."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=samples)
    hit = rng.random((samples, 1)) < np.array(right)
    given = np.where(hit, labels[:, None], (labels[:, None] + 1) % 3)
    costs = np.arange(1, len(right) + 1)
    logits = 4.0 * np.eye(3)[given]
    return Ledger(logits, labels, costs, split=split, network="flat", groups=groups)


def test_the_verdict_comes_first_everywhere(table, tmp_path):
    text = verdict(table)
    assert text.startswith("Early exits are worth it here: at ")
    assert str(table).splitlines()[0] == text
    report.write_comparison(table, tmp_path)
    assert (tmp_path / "comparison.md").read_text().startswith(text)
    page = (tmp_path / "report.html").read_text()
    assert page.index(text[:60]) < page.index("full network accuracy")
    again = Comparison.from_json(json.loads(json.dumps(table.to_json())))
    assert verdict(again) == text


def test_the_best_method_is_named_with_its_thresholds(table):
    (first, *_) = best_methods(table)
    assert first.name.endswith("(geometric thresholds)")
    named = compare(
        **synthetic.ledgers(seed=1, samples=300), methods=["baseline:smooth"], resamples=20
    )
    assert {row.name for row in best_methods(named)} == {"Baseline, smooth"}
    assert report.comparison_tables(named)[0].rows[0][1].text == "Baseline, smooth"


def test_methods_that_all_lose_to_a_random_mix_are_told_so(ledgers):
    worst = [Method(f"worst-{n}", f"Worst {n}", _Worst()) for n in range(2)]
    text = verdict(compared(ledgers, worst))
    assert text.startswith("Early exits are not worth it here: even the best of 2 methods is")
    assert " comes nearest: -" in text


def test_scores_that_say_nothing_gain_nothing_over_the_mix():
    flat = {s: ledger_where([0.4, 0.65, 0.9], split=s) for s in ("held_out", "val", "test")}
    rng = np.random.default_rng(0)
    for name, ledger in flat.items():
        logits = ledger.logits + 0.01 * rng.random(ledger.logits.shape)
        flat[name] = Ledger(
            logits,
            ledger.labels,
            ledger.costs,
            split=name,
            sample_ids=[f"{name}-{n}" for n in range(len(ledger))],
            network="flat",
        )
    text = verdict(compared(flat, ["baseline"]))
    assert text.startswith("No method is clearly better than a random mix of two fixed exits")


def test_differences_to_fixed_exits_are_to_the_references(table):
    for number, budget in enumerate(BUDGETS):
        found, key = table["margin"], f"accuracy@{budget:g}"
        for name, rival in (
            ("fixed-mix", table.references.mixes[number].accuracy),
            ("best-fixed-exit", table.references.best_fixed[number].accuracy),
            ("full-network", table.references.full.accuracy),
        ):
            gap = found.differences[name][key]
            assert gap.value == pytest.approx(found.figures[key].value - rival)
            assert gap.low < gap.value < gap.high


def test_the_best_of_many_needs_a_wider_interval():
    gap = Interval.around(0.03, 0.014)
    assert gap.is_gain
    assert for_all(gap, 1).low == pytest.approx(gap.low)
    assert not for_all(gap, 6).is_clear
    assert for_all(gap, 6).high > gap.high


@pytest.mark.parametrize("error", [0.1, 1.0])
def test_no_interval_leaves_what_is_possible(error):
    for gap in (Interval.around(-0.4, error), for_all(Interval.around(-0.4, error), 9)):
        assert -1 <= gap.low <= gap.high <= 1


def test_the_mix_is_drawn_from_the_first_exit_to_the_full_network(table):
    curve = table.references.mix_curve
    assert curve[0].accuracy == table.references.fixed[0].accuracy
    assert curve[-1].accuracy == pytest.approx(table.references.full.accuracy)
    assert all(a.cost <= b.cost for a, b in pairwise(curve))


def test_older_comparisons_have_no_verdict(table):
    values = json.loads(json.dumps(table.to_json()))
    for method in values["methods"]:
        method["differences"] = {}
    del values["references"]["mix_curve"], values["notes"]
    older = Comparison.from_json(values)
    assert (verdict(older), best_methods(older)) == ("", [])
    assert report.comparison_tables(older)[0].name == "methods"


@pytest.mark.parametrize(
    ("right", "worse"),
    [
        ([0.3, 0.6, 0.9], {}),
        ([0.3, 0.9, 0.6], {2: 1}),
        ([0.9, 0.3, 0.6], {1: 0, 2: 0}),
        ([0.6, 0.6, 0.6], {}),
    ],
)
def test_exits_that_are_worse_than_one_before_are_found(right, worse):
    found = worse_exits(ledger_where(right))
    assert {index: before for index, (before, _) in found.items()} == worse


def test_an_exit_in_the_middle_is_to_be_left_out():
    (text,) = worse_exits_in_words(ledger_where([0.6, 0.3, 0.9]))
    assert text.startswith("On val, exit 1 is less accurate than exit 0 before it by -")
    assert text.endswith(": leave it out.")


def test_groups_are_what_counts_for_what_is_clear():
    """Six samples, each a hundred times, show nothing; 600 samples do."""
    rows = np.repeat(np.arange(6), 100)
    plain = ledger_where([0.9, 0.6])
    few = plain.take(rows)
    grouped = Ledger(few.logits, few.labels, few.costs, split="val", groups=rows.tolist())
    assert worse_exits(plain)
    assert not worse_exits(grouped)


def test_without_labels_nothing_is_said_of_exits():
    ledger = ledger_where([0.9, 0.6])
    assert worse_exits_in_words(Ledger(ledger.logits, None, ledger.costs, split="val")) == []


def test_the_comparison_and_its_page_name_worse_exits(tmp_path):
    splits = synthetic.ledgers(seed=0, samples=600, exits=4)
    rng = np.random.default_rng(0)
    for name, ledger in splits.items():
        logits = ledger.logits.copy()
        logits[:, 3] += 6 * rng.normal(size=logits[:, 3].shape)
        splits[name] = Ledger(logits, ledger.labels, ledger.costs, split=name, network="noisy")
    table = compared(splits, [Method("plain", "Plain", MaxProbability())])
    (note,) = table.notes
    assert "On val, the last exit is less accurate than exit 2 by" in note
    assert str(table).endswith(note)
    report.write_comparison(table, tmp_path)
    assert "cut the network there" in (tmp_path / "report.html").read_text()
    assert note in (tmp_path / "comparison.md").read_text()
