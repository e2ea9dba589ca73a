"""Correctors that see the current exit alone, and correctors that see all exits so far.

At small scale, the shipped EfficientNet-Lite0 stands for ResNet-34 on Tiny-ImageNet.
"""

from dataclasses import replace

from offramp_paper.experiments.efficientnet_b2_imagenet import LITE0
from offramp_paper.experiments.page import report
from offramp_paper.experiments.resnet34_tinyimagenet import RESNET34
from offramp_paper.experiments.run import Run

TABLE = "tab:history_ablation_with_stds"
METHODS = ("baseline", "temperature", "eefp-no-history", "eefp")
NETWORKS = {"small": [replace(LITE0, heading=RESNET34.heading)], "paper": [RESNET34]}


def main(run: Run) -> None:
    """Record and compare."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    report(run, "With and without history", __doc__, results, TABLE)
