"""Every method with geometric and with smooth thresholds, the peers, and what auto chooses.

Not the paper's: how much each gains over the baseline on every network, and which part brings it.
"""

from collections.abc import Callable, Sequence

import numpy as np

from offramp.evaluation import Comparison, Interval
from offramp.report import Cell, ResultTable
from offramp_paper.experiments.domain_shift import NETWORKS as DOMAINS
from offramp_paper.experiments.efficientnet_b2_imagenet import EFFICIENTNET_B2, LITE0
from offramp_paper.experiments.msdnet_cifar100 import MSDNET, SMALL_MSDNET
from offramp_paper.experiments.other_methods import NETWORKS as OTHERS
from offramp_paper.experiments.page import report
from offramp_paper.experiments.resnet34_tinyimagenet import RESNET34, THIN_RESNET
from offramp_paper.experiments.run import BUDGETS, Analysis, Result, Run
from offramp_paper.experiments.vit_small_imagenet import VIT_SMALL
from offramp_paper.experiments.vit_tiny_tinyimagenet import VIT, VIT_TINY

METHODS = ("beyond", "auto")
NETWORKS = {
    "paper": [
        *(MSDNET, *OTHERS["paper"], RESNET34, VIT_TINY, VIT_SMALL, EFFICIENTNET_B2),
        *DOMAINS["paper"],
    ],
    "small": [SMALL_MSDNET, *OTHERS["small"], THIN_RESNET, VIT, LITE0, *DOMAINS["small"]],
}

SHOWN = {"eefp": "paper", "auto": "auto"}
# From single components of a method to all of them together.
COMPONENTS = {
    "baseline:smooth": "thresholds alone",
    "eefp": "the paper's score alone",
    "eefp:smooth": "the paper's score, thresholds",
    "eefp-no-history:smooth": "the score without history, thresholds",
    "class-ensemble": "answers from all exits alone",
    "class-ensemble:smooth": "answers from all exits, thresholds",
    "eefp-no-history-class-ensemble:smooth": "all three",
    "eefp-logistic": "ridge logistic corrector, smooth thresholds",
    "break-even": "break-even prices",
    "eenet": "EENet, post hoc",
    "auto": "what auto chooses",
}


def main(run: Run) -> None:
    """Train, record, compare, and take gains apart."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    report(run, "Beyond the paper", __doc__, results, analysis=run.analyse(results, gains))


def gains(results: Sequence[Result]) -> Analysis:
    """The paper's method and `auto` on every network, then single components over all networks."""
    return Analysis(
        "Gains over the baseline",
        "Accuracy in points over max probability with geometric thresholds, at the same cost. "
        "The paper's method is the corrector with history and geometric thresholds.",
        [_gained(results), _reachable(results), _components(results), _choices(results)],
    )


def _gained(results: Sequence[Result]) -> ResultTable:
    def cell(comparison: Comparison, name: str, budget: float) -> Cell:
        gap = comparison[name].differences["baseline"].get(f"accuracy@{budget:g}")
        return Cell("-") if gap is None else _points(gap)

    title = "Gain of the paper's method and of auto, with 95 % intervals"
    caption = "Bold: the paired interval excludes zero."
    return _per_network("gains", title, results, cell, caption)


def _points(gap: Interval) -> Cell:
    # Adding zero takes the sign of a rounded zero away.
    value, low, high = (round(100 * each, 2) + 0.0 for each in (gap.value, gap.low, gap.high))
    return Cell(f"{value:+.2f} [{low:+.2f}, {high:+.2f}]", bold=gap.is_clear)


def _reachable(results: Sequence[Result]) -> ResultTable:
    def cell(comparison: Comparison, name: str, budget: float) -> Cell:
        share = comparison.reachable_share(name, budget)
        return Cell("-" if np.isnan(share) else f"{share:+.1%}")

    title = "Share of the reachable gap that is closed"
    caption = (
        "From the baseline to a rule that sees the logits of all exits, but no label; - where "
        "that is less than half a point."
    )
    return _per_network("gains-reachable", title, results, cell, caption)


def _per_network(
    name: str,
    title: str,
    results: Sequence[Result],
    cell: Callable[[Comparison, str, float], Cell],
    caption: str,
) -> ResultTable:
    """The paper's method and `auto` side by side, budget by budget; a row for each network."""
    columns = [(budget, method) for budget in BUDGETS for method in SHOWN]
    rows = [
        [Cell(each.title), *(cell(each.comparison, method, budget) for budget, method in columns)]
        for each in results
    ]
    heads = [f"{SHOWN[method]}, {budget:.0%}" for budget, method in columns]
    return ResultTable(name, title, ["network", *heads], rows, caption)


def _components(results: Sequence[Result]) -> ResultTable:
    known = {method.name for method in results[0].comparison.methods}
    rows = []
    for name, component in COMPONENTS.items():
        if name in known:
            gained = (_mean_gain(results, name, budget) for budget in BUDGETS)
            rows.append([Cell(component), Cell(name), *map(Cell, gained)])
    count = f"{len(results)} network{'s' * (len(results) > 1)}"
    return ResultTable(
        "gains-parts",
        f"What each component gains: mean over {count} (smallest to largest)",
        ["component", "method", *(f"{budget:.0%}" for budget in BUDGETS)],
        rows,
    )


def _mean_gain(results: Sequence[Result], name: str, budget: float) -> str:
    found = [
        100
        * (each.comparison[name].accuracy(budget) - each.comparison["baseline"].accuracy(budget))
        for each in results
    ]
    return f"{np.mean(found):+.2f} ({min(found):+.2f} to {max(found):+.2f})"


def _choices(results: Sequence[Result]) -> ResultTable:
    rows = []
    for each in results:
        chosen = each.comparison["auto"].settings["chosen"]
        rows.append([Cell(each.title), *(Cell(chosen[f"{budget:g}"]) for budget in BUDGETS)])
    return ResultTable(
        "gains-chosen",
        "What auto chose, from held_out and val alone",
        ["network", *(f"{budget:.0%}" for budget in BUDGETS)],
        rows,
    )
