"""Correctors that look at the top 1, 2, 5, 10 and all classes.

At small scale, the shipped EfficientNet-Lite0 stands for ResNet-34 on Tiny-ImageNet.
"""

from dataclasses import replace

from offramp_paper.experiments.efficientnet_b2_imagenet import LITE0
from offramp_paper.experiments.page import report
from offramp_paper.experiments.resnet34_tinyimagenet import RESNET34
from offramp_paper.experiments.run import Run

TABLE = "tab:topk_ablation"
METHODS = (
    *("baseline", "temperature"),
    *(f"eefp-top-{k}" for k in (1, 2, 5, 10, "all")),
)
NETWORKS = {"small": [replace(LITE0, heading=RESNET34.heading)], "paper": [RESNET34]}


def main(run: Run) -> None:
    """Record and compare."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    report(run, "How many classes the corrector looks at", __doc__, results, TABLE)
