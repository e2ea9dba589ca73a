"""What experiments report beyond comparisons is computed from the ledgers, and can be checked."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from offramp import Ledger, MaxProbability, Policy
from offramp.advice import Auto
from offramp.errors import ConfigError
from offramp.evaluation import Resamples, evaluate
from offramp.networks import count_macs
from offramp.registry import METHODS
from offramp_paper.experiments.beyond import gains
from offramp_paper.experiments.corrector_cost import corrector_cost, paper_count, paper_network
from offramp_paper.experiments.domain_shift import domain_shift
from offramp_paper.experiments.futile_sample import futile_sample
from offramp_paper.experiments.metric_validity import (
    around,
    metric_validity,
    resampled_augrc,
    spearman,
)
from offramp_paper.experiments.network import Network
from offramp_paper.experiments.printed import beside_paper
from offramp_paper.experiments.run import Options, Recorded, Run

NAMES = ("baseline", "temperature", "overconfident", "eefp", "ccct")
NETWORK = Network("made-up", "Made up")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run("x", Options(out=tmp_path_factory.mktemp("x"), seeds=1, resamples=50))


@pytest.fixture
def result(run, shipped):
    """Five methods on small made-up ledgers; compared once."""
    return run.compare(Recorded(NETWORK, shipped, "made up"), NAMES)


def baseline(ledgers):
    return Policy(MaxProbability()).fit(ledgers["held_out"]).tune(ledgers["val"], "geometric")


def test_spearman_is_that_of_scipy():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 4, size=(2, 3, 7)).astype(float)
    expected = [spearmanr(a, b).statistic for a, b in zip(first, second, strict=True)]
    assert spearman(first, second) == pytest.approx(expected)
    assert np.isnan(spearman(np.zeros((1, 3)), np.ones((1, 3)))).all()


@pytest.mark.parametrize("value", [-1.0, -0.4, 0.0, 0.39, 0.97, 1.0])
def test_an_interval_of_a_correlation_holds_what_was_measured(value):
    """Percentiles once gave +0.39 [+0.42, +0.68]."""
    resampled = np.clip(np.random.default_rng(0).normal(value + 0.15, 0.07, size=1000), -1, 1)
    low, high = around(value, resampled)
    assert -1 <= low <= value <= high <= 1
    assert high - low < 0.5


def test_metric_validity_correlates_the_figures_of_the_comparison(run, result):
    (table,) = run.analyse([result], metric_validity).tables
    assert [row[0].text for row in table.rows] == ["ECE", "EEFP", "NLL", "AUGRC"]
    for row, column, sign in ((table.rows[0], "ece", -1), (table.rows[1], "eefp", 1)):
        methods = result.comparison.methods
        values = [sign * each.figures[column].value for each in methods]
        accuracies = [each.accuracy(0.5) for each in methods]
        expected = spearmanr(values, accuracies).statistic
        assert row[2].text.startswith(f"{expected:+.2f} [")
    first = replace(result.comparison, methods=result.comparison.methods[:2])
    assert metric_validity([replace(result, comparison=first)]).tables[0].rows[0][1].text == "-"


def test_resampled_augrc_lies_around_the_measured_one(shipped):
    policy = baseline(shipped)
    replay = policy.replay(shipped["test"])
    measured = evaluate(policy.at(budget=0.5), shipped["test"]).exits.augrc[:-1].mean()
    draws = Resamples(len(replay.labels), 200)
    assert resampled_augrc(replay, draws).mean() == pytest.approx(measured, abs=3e-3)
    draws.weights = np.full((1, len(replay.labels)), 1 / len(replay.labels), np.float32)
    assert resampled_augrc(replay, draws) == pytest.approx(measured, abs=1e-3)


def test_corrector_cost_is_that_of_the_formula(result):
    totals, exits, paper, correctors = corrector_cost([result]).tables
    extra = sum(640 * m + 128 for m in (1, 2, 3))
    by_name = {row[0].text: [cell.text for cell in row] for row in totals.rows}
    assert by_name["No correctors"][1] == "16,004,000"
    assert by_name["EEFP (paper)"][1:3] == [f"{16_004_000 + extra:,}", f"{extra:,}"]
    assert [row[2].text for row in exits.rows] == ["768", "1,408", "2,048", "0"]
    assert [row[1].text for row in paper.rows[-2:]] == ["4,653,372,423"] * 2
    assert [row[1].text for row in correctors.rows] == ["61,212", "24,064", "18,816"]


def test_the_paper_s_resnet34_has_exactly_the_operations_that_the_paper_counts():
    network = paper_network()
    counted = paper_count(network)
    assert list(counted.values()) == [4_641_583_104, 8_192_000, 1_802_240, 32_768, 1_762_311]
    assert network.num_exits == 8
    assert count_macs(network).cumulative[-1] == 4_641_583_104, "MACs mean what they always do"


def test_corrector_cost_wants_macs(result):
    test = result.recorded.ledgers["test"]
    other = Ledger(test.logits, test.labels, [0.2, 0.4, 0.6, 1.0], split="test")
    recorded = replace(result.recorded, ledgers={"test": other})
    with pytest.raises(ConfigError, match="needs costs in MACs, and made-up has costs in rel"):
        corrector_cost([replace(result, recorded=recorded)])


def test_domain_shift_states_the_drift_of_the_cost(result):
    figures, *drifts = domain_shift([result]).tables
    assert len(figures.rows) == len(NAMES)
    assert [table.name for table in drifts] == ["drift-25", "drift-50", "drift-75"]
    ledgers = result.recorded.ledgers
    cost = float(baseline(ledgers).at(budget=0.5).replay(ledgers["test"]).costs.mean())
    assert drifts[1].rows[0][1].text.startswith(f"{cost:.1%} ({100 * (cost - 0.5):+.1f}), ")


def test_gains_are_those_of_the_comparison(run, shipped, monkeypatch):
    monkeypatch.setitem(METHODS, "auto", Auto(candidates=("baseline", "baseline:smooth")))
    names = ("baseline", "baseline:smooth", "eefp", "auto")
    result = run.compare(Recorded(replace(NETWORK, name="gains"), shipped, "made up"), names)
    table = result.comparison
    per_network, closed, parts, chosen = gains([result, result]).tables
    gap = table["auto"].differences["baseline"]["accuracy@0.75"]
    shown = f"{round(100 * gap.value, 2) + 0.0:+.2f}"  # without the sign of a rounded zero
    assert per_network.rows[1][6].text.startswith(f"{shown} [")
    assert closed.rows[0][4].text == f"{table.reachable_share('auto', 0.5):+.1%}"
    by_method = {row[1].text: row for row in parts.rows}
    assert list(by_method) == ["baseline:smooth", "eefp", "auto"]
    assert by_method["auto"][4].text.startswith(f"{100 * gap.value:+.2f} (")
    assert chosen.rows[0][1].text in ("baseline", "baseline:smooth")


def test_futile_samples_are_wrong_everywhere_and_decided_as_the_policy_does(run, result):
    analysis = run.analyse([result], futile_sample)
    summary, *samples = analysis.tables
    ledgers = result.recorded.ledgers
    test = ledgers["test"]
    exits = baseline(ledgers).at(budget=0.5).decide(test)
    right = test.logits.argmax(axis=2) == test.labels[:, None]
    lost = ~right.any(axis=1)
    assert f"the {int(lost.sum()):,} hopeless samples" in summary.title
    assert summary.rows[0][3].text == f"{exits[lost].mean():.2f}"
    rows = [int(table.title.split("test-")[1].split(",")[0]) for table in samples]
    assert rows == analysis.rows
    for row, table in zip(rows, samples, strict=True):
        assert lost[row]
        stops = [number for number, cells in enumerate(table.rows) if cells[1].bold]
        assert stops == ([] if int(exits[row]) == 3 else [int(exits[row])])


def test_paper_and_here_stand_side_by_side(result):
    label, heading = "tab:other_ee_methods", "Zero Time Waste"
    table = beside_paper(result.comparison, label, heading, "n", "Mine")
    assert table.columns[:5] == ["method", "25% paper", "25% here", "50% paper", "50% here"]
    labels = [row[0].text for row in table.rows]
    assert labels == ["Baseline", "Temperature scaling", "EEFP (paper)"]
    row = [cell.text for cell in table.rows[2]]
    value = result.comparison["eefp"].accuracy(0.5)
    assert (row[1], row[3:5]) == ("48.00 ± 0.05", ["60.03 ± 0.04", f"{100 * value:.2f}"])
    resnet = "ResNet34 - TinyImageNet"
    without = (("fig:teaser", "x"), (label, ""), (None, "x"), ("tab:flops_comparison", resnet))
    for other, name in without:
        assert beside_paper(result.comparison, other, name, "n", "Mine") is None
