"""What studies report beyond a comparison is computed from the ledgers, and can be checked."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from offramp import Costs, Ledger, MaxProbability, Policy, compare
from offramp.advice import Auto
from offramp.errors import ConfigError
from offramp.evaluation.bootstrap import Resamples
from offramp.evaluation.columns import accuracy_key
from offramp.evaluation.outcome import exit_metrics
from offramp.methods import find_methods
from offramp.networks import count_macs
from offramp.report import ResultTable, SampleStrip, Section
from offramp.report.tables import cells
from offramp.studies.analyses import ANALYSES
from offramp.studies.analyses.corrector_cost import corrector_cost, paper_count, paper_network
from offramp.studies.analyses.domain_shift import domain_shift
from offramp.studies.analyses.futile_sample import futile_sample
from offramp.studies.analyses.method_gains import method_gains
from offramp.studies.analyses.metric_validity import _resampled_augrc, metric_validity, spearman
from offramp.studies.cache import Cache
from offramp.studies.context import Context
from offramp.studies.paper import beside_paper
from offramp.studies.pipeline import AnalysisStep
from offramp.studies.results import Experiment, ExperimentResult, hopeless_strip
from offramp.studies.settings import CompareSettings, CorrectorSettings, DataSettings
from offramp.studies.steps import CompareStep, StoredLedger
from offramp.studies.study import NetworkEntry

METHODS = ("baseline", "temperature", "overconfident", "eefp", "ccct")


@pytest.fixture
def result(shipped, tmp_path):
    """An experiment with five methods on small made-up ledgers."""
    settings = CompareSettings(METHODS, (0.5, 0.75), seeds=1, resamples=50)
    step = CompareStep(
        "made-up",
        tuple(StoredLedger(each) for each in shipped.values()),
        settings,
        CorrectorSettings(),
    )
    entry = NetworkEntry("made-up", "Made up")
    experiment = Experiment("made-up", "Made up", None, "", entry, None, step)
    methods = find_methods(METHODS, 20)
    comparison = compare(**shipped, methods=methods, budgets=(0.5, 0.75), seeds=1, resamples=50)
    context = Context(Cache(tmp_path), shown=False)
    return ExperimentResult(experiment, shipped, comparison, methods, context)


def test_spearman_is_that_of_scipy():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 4, size=(2, 3, 7)).astype(float)
    expected = [spearmanr(a, b).statistic for a, b in zip(first, second, strict=True)]
    assert spearman(first, second) == pytest.approx(expected)
    assert np.isnan(spearman(np.zeros((1, 3)), np.ones((1, 3)))).all()


def test_metric_validity_correlates_the_figures_of_the_comparison(result):
    (table,) = metric_validity([result]).tables
    assert [row[0].text for row in table.rows] == ["ECE", "EEFP", "NLL", "AUGRC"]
    for row, column, sign in ((table.rows[0], "ece", -1), (table.rows[1], "eefp", 1)):
        figures = [method.figures for method in result.comparison.methods]
        values = [sign * each[column].value for each in figures]
        accuracies = [each[accuracy_key(0.5)].value for each in figures]
        expected = spearmanr(values, accuracies).statistic
        assert row[1].text.startswith(f"{expected:+.2f} [")


def test_metric_validity_needs_three_methods(result):
    fewer = ExperimentResult(
        result.experiment, result.ledgers, result.comparison, result.methods[:2], result.context
    )
    assert metric_validity([fewer]).tables[0].rows[0][1].text == "-"


def test_resampled_augrc_lies_around_the_measured_one(shipped):
    policy = Policy(MaxProbability()).fit(shipped["held_out"]).tune(shipped["val"])
    trace = policy.replay(shipped["test"])
    measured = exit_metrics(trace, policy.scorer).augrc[:-1].mean()
    draws = Resamples(len(trace.labels), 200)
    assert float(_resampled_augrc(trace, draws).mean()) == pytest.approx(measured, abs=3e-3)
    draws.weights = torch.full((1, len(trace.labels)), 1 / len(trace.labels))
    assert float(_resampled_augrc(trace, draws)) == pytest.approx(measured, abs=1e-3)


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
    assert sum(counted.values()) == 4_653_372_423
    assert network.num_exits == 8
    assert count_macs(network).cumulative[-1] == 4_641_583_104, "MACs mean what they always do"


def test_corrector_cost_wants_macs(result):
    ledgers = {
        split: Ledger(x.logits, x.labels, [0.2, 0.4, 0.6, 1.0], split=split)
        for split, x in result.ledgers.items()
    }
    other = ExperimentResult(
        result.experiment, ledgers, result.comparison, result.methods, result.context
    )
    with pytest.raises(ConfigError, match="needs costs in MACs, and made-up has costs in rel"):
        corrector_cost([other])


def test_domain_shift_states_the_drift_of_the_cost(result):
    figures, *drifts = domain_shift([result]).tables
    assert len(figures.rows) == len(METHODS)
    assert [table.name for table in drifts] == ["drift-50", "drift-75"]
    held_out, val, test = result.ledgers.values()
    policy = Policy(MaxProbability()).fit(held_out).tune(val, "geometric").at(budget=0.5)
    costs = policy.replay(test).costs
    cost = float(costs.mean())
    assert drifts[0].rows[0][1].text.startswith(f"{cost:.1%} ({100 * (cost - 0.5):+.1f}), ")


def test_gains_are_those_of_the_comparison(result, shipped):
    with pytest.raises(ConfigError, match="gains need 'auto' among the methods"):
        method_gains([result])
    entrants = [
        "baseline",
        "baseline:smooth",
        "eefp",
        Auto(candidates=("baseline", "baseline:smooth")),
    ]
    table = compare(**shipped, methods=entrants, budgets=(0.5, 0.75), seeds=1, resamples=50)
    both = replace(result, comparison=table)
    per_network, closed, parts, chosen = method_gains([both, both]).tables
    gap = table["auto"].differences["baseline"][accuracy_key(0.75)]
    shown = f"{round(100 * gap.value, 2) + 0.0:+.2f}"  # without the sign of a rounded zero
    assert per_network.rows[1][4].text.startswith(f"{shown} [")
    assert closed.rows[0][2].text == f"{table.reachable_share('auto', 0.5):+.1%}"
    by_method = {row[1].text: row for row in parts.rows}
    assert list(by_method) == ["baseline:smooth", "eefp", "auto"]
    assert by_method["auto"][3].text.startswith(f"{100 * gap.value:+.2f} (")
    assert chosen.rows[0][1].text in ("baseline", "baseline:smooth")


def test_futile_samples_are_wrong_everywhere_and_decided_as_the_policy_does(result):
    summary, *samples = futile_sample([result]).tables
    test = result.ledgers["test"]
    held_out, val = result.ledgers["held_out"], result.ledgers["val"]
    policy = Policy(MaxProbability()).fit(held_out).tune(val, "geometric").at(budget=0.5)
    exits = policy.decide(test)
    right = test.logits.argmax(dim=2) == test.labels[:, None]
    lost = ~right.any(dim=1)
    assert f"the {int(lost.sum()):,} hopeless samples" in summary.title
    assert summary.rows[0][3].text == f"{float(exits[lost].double().mean()):.2f}"
    for table in samples:
        row = int(table.title.split("test-")[1].split(",")[0])
        assert lost[row]
        raw = [cells[1] for cells in table.rows]
        stops = [number for number, cell in enumerate(raw) if cell.bold]
        assert stops == ([] if int(exits[row]) == 3 else [int(exits[row])])


def test_a_section_of_an_analysis_survives_its_file(result, tmp_path, monkeypatch):
    table = ResultTable("t", "A", ["x", "y"], [cells("a", 1)], "caption")
    strip = SampleStrip(np.zeros((1, 2, 2, 3), np.uint8), ["cat"], "A note.")
    made = Section("T", note="note", tables=[table], samples=strip)
    monkeypatch.setitem(ANALYSES, "made", lambda _: made)
    experiment, compared = result.experiment, result.experiment.comparison
    monkeypatch.setattr(CompareStep, "load", lambda *_: result.comparison)
    step = AnalysisStep("made", (experiment,), compared.compare, compared.corrector)
    step.run(result.context, step.place(result.context.cache))
    read = step.load(result.context)
    assert (read.title, read.note, read.tables) == ("T", "note", [table])
    assert np.array_equal(read.samples.images, strip.images)
    assert (read.samples.captions, read.samples.note) == (["cat"], "A note.")


def test_paper_and_here_stand_side_by_side(result):
    label, group = "tab:other_ee_methods", "Zero Time Waste"
    table = beside_paper(result.comparison, label, group, "n", "Mine")
    assert table.columns[:5] == ["method", "25% paper", "25% here", "50% paper", "50% here"]
    assert [row[0].text for row in table.rows] == [
        "Baseline",
        "Temperature scaling",
        "EEFP (paper)",
    ]
    row = [cell.text for cell in table.rows[2]]
    value = result.comparison["eefp"].figures["accuracy@0.5"].value
    assert row[1:5] == ["48.00 ± 0.05", "-", "60.03 ± 0.04", f"{100 * value:.2f}"]
    assert beside_paper(result.comparison, "fig:teaser", "x", "n", "Mine") is None
    assert beside_paper(result.comparison, label, None, "n", "Mine") is None
    assert beside_paper(result.comparison, "tab:flops_comparison", None, "n", "Mine") is None


def test_hopeless_samples_are_shown_where_images_are_at_hand(tmp_path, result):
    data = DataSettings("cluttered-digits", limit=30)
    context = Context(Cache(tmp_path), shown=False)
    test = context.splits(data).test
    logits = torch.zeros(30, 2, 10)
    logits[torch.arange(30), :, (test.labels + 1) % 10] = 5  # always wrong
    logits[0] = 5 * torch.nn.functional.one_hot(test.labels[:1], 10)
    costs = Costs(stages=(1, 1), heads=(0, 0))
    ledger = Ledger(logits, test.labels, costs, split="test", sample_ids=test.sample_ids)
    experiment = Experiment(
        "a", "A", None, "", NetworkEntry("a", "A", data=data), None, result.experiment.comparison
    )
    strip = hopeless_strip(experiment, ledger, context)
    assert strip.images.shape == (12, 20, 20, 3)
    label = int(test.labels[1])
    assert strip.captions[0] == f"{label}, predicted {(label + 1) % 10}"
    nowhere = Experiment(
        "a", "A", None, "", NetworkEntry("a", "A"), None, result.experiment.comparison
    )
    assert hopeless_strip(nowhere, ledger, context) is None
    others = Ledger(logits, test.labels, costs, split="test", sample_ids=list(range(30)))
    assert hopeless_strip(experiment, others, context) is None
