"""Samples that no exit gets right, exit by exit: raw, calibrated and corrected confidence."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from offramp.ledger import Ledger
from offramp.policy import Policy
from offramp.report import ResultTable, Section
from offramp.report.tables import Cell, cells
from offramp.studies.results import ExperimentResult, class_name, hopeless_rows, sample_strip

BUDGET = 0.5
SHOWN = (("baseline", "raw"), ("temperature", "calibrated"), ("eefp", "corrected"))
QUANTILES = (("well above the middle", 0.9), ("middle", 0.5), ("well below the middle", 0.1))


@dataclass(frozen=True)
class _Run:
    """One method on the hopeless samples: confidences `[n, M-1]`, thresholds `[M-1]`, exits."""

    word: str
    confidences: Tensor
    thresholds: Tensor
    exits: Tensor
    costs: Tensor


def futile_sample(results: Sequence[ExperimentResult]) -> Section:
    """The cost of all hopeless samples, and three of them exit by exit."""
    tables, strip = [], None
    for result in results:
        runs, lost = _runs(result)
        chosen = _chosen(runs)
        tables.append(_summary(result, runs))
        for index, (name, _) in zip(chosen, QUANTILES, strict=True):
            tables.append(_sample(result, runs, lost, index, name))
        if strip is None:
            note = "The samples of the tables, in their order."
            rows, test = lost[chosen].tolist(), result.ledgers["test"]
            strip = sample_strip(result.experiment, test, rows, note, result.context)
    rule = ", ".join(f"{name} ({share:.0%} quantile)" for name, share in QUANTILES)
    return Section(
        "Samples that no exit gets right",
        note="The paper's Figure 1 on real test samples. Three are shown for each network, chosen "
        f"by the number of exits that correction saves on them compared with calibration: {rule}.",
        tables=tables,
        samples=strip,
    )


def _runs(result: ExperimentResult) -> tuple[list[_Run], Tensor]:
    test = result.ledgers["test"]
    lost = hopeless_rows(test)
    found = []
    for name, word in SHOWN:
        policy = next(iter(result.plans(name)[0].values()))  # they share their operating points
        policy = policy.nearest(BUDGET)
        found.append(_run(policy, test, lost, word))
    return found, lost


def _run(policy: Policy, test: Ledger, lost: Tensor, word: str) -> _Run:
    replay = policy.replay(test).take(lost)
    stated = policy.scorer.probability(replay.scores[:, :-1])
    limits = policy.scorer.probability(policy.thresholds[:-1].float())
    assert stated is not None and limits is not None  # all three state probabilities
    return _Run(word, stated, limits, replay.exits, replay.costs)


def _chosen(runs: Sequence[_Run]) -> list[int]:
    saved = runs[1].exits - runs[2].exits
    order = saved.argsort(stable=True)
    return [int(order[round(share * (len(order) - 1))]) for _, share in QUANTILES]


def _summary(result: ExperimentResult, runs: Sequence[_Run]) -> ResultTable:
    last = result.ledgers["test"].num_exits - 1
    rows = [
        cells(
            run.word,
            f"{float(run.costs.mean()):.1%}",
            f"{float((run.exits == last).double().mean()):.1%}",
            f"{float(run.exits.double().mean()):.2f}",
        )
        for run in runs
    ]
    share = len(runs[0].exits) / len(result.ledgers["test"])
    return ResultTable(
        f"{result.experiment.name}-futile",
        f"{result.experiment.title}: what is spent on the {len(runs[0].exits):,} hopeless samples",
        ["confidence", "mean cost", "run to the end", "mean exit"],
        rows,
        f"{share:.1%} of the test samples. Each policy is tuned on val for {BUDGET:.0%} of the "
        "compute over all samples.",
    )


def _sample(
    result: ExperimentResult, runs: Sequence[_Run], lost: Tensor, index: int, name: str
) -> ResultTable:
    test, row = result.ledgers["test"], int(lost[index])
    rows = []
    for exit_index in range(test.num_exits - 1):
        rows.append(cells(exit_index, *(_decision(run, index, exit_index) for run in runs)))
    label = class_name(test.class_names, test.labels[row])
    sample = row if test.sample_ids is None else test.sample_ids[row]
    return ResultTable(
        f"{result.experiment.name}-futile-{name.replace(' ', '-')}",
        f"{result.experiment.title}: sample {sample}, class {label} ({name})",
        ["exit", *(run.word for run in runs)],
        rows,
        "Confidence, threshold (in brackets) and decision: a sample stops where its confidence "
        "reaches the threshold. The last exit, where all others stop, is wrong too.",
    )


def _decision(run: _Run, index: int, exit_index: int) -> Cell:
    left_at = int(run.exits[index])
    if exit_index > left_at:
        return Cell("-")
    value, limit = run.confidences[index, exit_index], run.thresholds[exit_index]
    word = "stop" if exit_index == left_at else "continue"
    return Cell(f"{float(value):.3f} ({float(limit):.3f}) {word}", bold=word == "stop")
