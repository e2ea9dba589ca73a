"""Samples that no exit gets right: raw, calibrated and corrected confidence, exit by exit.

The paper's Figure 1 on real samples. At small scale, the shipped EfficientNet-Lite0 stands for
ResNet-34 on Tiny-ImageNet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from offramp import Ledger, Policy
from offramp.arrays import Array
from offramp.report import Cell, ResultTable
from offramp.targets import hopeless
from offramp_paper.experiments.efficientnet_b2_imagenet import LITE0
from offramp_paper.experiments.page import report
from offramp_paper.experiments.resnet34_tinyimagenet import RESNET34
from offramp_paper.experiments.run import Analysis, Result, Run

FIGURE = "fig:teaser"
METHODS = ("baseline", "temperature", "eefp")
NETWORKS = {"small": [replace(LITE0, heading=RESNET34.heading)], "paper": [RESNET34]}

BUDGET = 0.5
WORDS = dict(zip(METHODS, ("raw", "calibrated", "corrected"), strict=True))
QUANTILES = (("well above the middle", 0.9), ("middle", 0.5), ("well below the middle", 0.1))


def main(run: Run) -> None:
    """Record, compare, and look at single samples."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    analysis = run.analyse(results, futile_sample)
    report(run, "Samples that no exit gets right", __doc__, results, FIGURE, analysis)


@dataclass(frozen=True)
class _Decisions:
    """One method on the hopeless samples: confidences `[n, M-1]`, thresholds `[M-1]`, exits."""

    word: str
    confidences: Array
    thresholds: Array
    exits: Array
    costs: Array


def futile_sample(results: Sequence[Result]) -> Analysis:
    """The cost of all hopeless samples, and three of them exit by exit."""
    tables, rows = [], list[int]()
    for result in results:
        test = result.recorded.ledgers["test"]
        lost = np.flatnonzero(hopeless(test.heads_correct))
        methods = [_decisions(result, test, lost, method) for method in METHODS]
        chosen = _chosen(methods)
        rows = rows or lost[chosen].tolist()
        tables.append(_summary(result, test, methods))
        for index, (name, _) in zip(chosen, QUANTILES, strict=True):
            tables.append(_sample(result, test, methods, index, int(lost[index]), name))
    rule = ", ".join(f"{name} ({share:.0%} quantile)" for name, share in QUANTILES)
    return Analysis(
        "Samples that no exit gets right",
        "The paper's Figure 1 on real test samples. Three are shown for each network, chosen by "
        f"the number of exits that correction saves on them compared with calibration: {rule}.",
        tables,
        rows,
    )


def _decisions(result: Result, test: Ledger, lost: Array, method: str) -> _Decisions:
    policy: Policy = result.plans(method)[0][BUDGET]
    replay = policy.replay(test).take(lost)
    stated = policy.scorer.probability(replay.scores[:, :-1])
    limits = policy.scorer.probability(policy.thresholds[:-1].astype(np.float32))
    assert stated is not None and limits is not None  # all three state probabilities
    return _Decisions(WORDS[method], stated, limits, replay.exits, replay.costs)


def _chosen(methods: Sequence[_Decisions]) -> list[int]:
    saved = methods[1].exits - methods[2].exits
    order = saved.argsort(kind="stable")
    return [int(order[round(share * (len(order) - 1))]) for _, share in QUANTILES]


def _summary(result: Result, test: Ledger, methods: Sequence[_Decisions]) -> ResultTable:
    rows = []
    for method in methods:
        texts = (
            method.word,
            f"{method.costs.mean():.1%}",
            f"{(method.exits == test.num_exits - 1).mean():.1%}",
            f"{method.exits.mean():.2f}",
        )
        rows.append([Cell(text) for text in texts])
    count = len(methods[0].exits)
    return ResultTable(
        f"{result.recorded.name}-futile",
        f"{result.title}: what is spent on the {count:,} hopeless samples",
        ["confidence", "mean cost", "run to the end", "mean exit"],
        rows,
        f"{count / len(test):.1%} of the test samples. Each policy is tuned on val for "
        f"{BUDGET:.0%} of the compute over all samples.",
    )


def _sample(
    result: Result, test: Ledger, methods: Sequence[_Decisions], index: int, row: int, name: str
) -> ResultTable:
    exits = range(test.num_exits - 1)
    label = int(test.labels[row])
    shown = label if test.class_names is None else test.class_names[label]
    sample = row if test.sample_ids is None else test.sample_ids[row]
    return ResultTable(
        f"{result.recorded.name}-futile-{name.replace(' ', '-')}",
        f"{result.title}: sample {sample}, class {shown} ({name})",
        ["exit", *(method.word for method in methods)],
        [[Cell(str(at)), *(_decision(each, index, at) for each in methods)] for at in exits],
        "Confidence, threshold (in brackets) and decision: a sample stops where its confidence "
        "reaches the threshold. The last exit, where all others stop, is wrong too.",
    )


def _decision(method: _Decisions, index: int, exit_index: int) -> Cell:
    left_at = int(method.exits[index])
    if exit_index > left_at:
        return Cell("-")
    value, limit = method.confidences[index, exit_index], method.thresholds[exit_index]
    word = "stop" if exit_index == left_at else "continue"
    return Cell(f"{value:.3f} ({limit:.3f}) {word}", bold=word == "stop")
