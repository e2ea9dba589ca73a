"""Temperature, vector and matrix scaling, and correctors of both targets, for all k.

The targets are the paper's, and plain correctness (CCCT). At small scale, the shipped
EfficientNet-Lite0 stands for ResNet-34 on Tiny-ImageNet.
"""

from dataclasses import replace

from offramp_paper.experiments.efficientnet_b2_imagenet import LITE0
from offramp_paper.experiments.page import report
from offramp_paper.experiments.resnet34_tinyimagenet import RESNET34
from offramp_paper.experiments.run import Run

TABLE = "tab:topk_ablation_full"
METHODS = (
    *("baseline", "temperature", "vector", "matrix"),
    *(f"{target}-top-{k}" for target in ("eefp", "ccct") for k in (1, 2, 5, 10, "all")),
)
NETWORKS = {"small": [replace(LITE0, heading=RESNET34.heading)], "paper": [RESNET34]}


def main(run: Run) -> None:
    """Record and compare."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    report(run, "Calibration methods", __doc__, results, TABLE)
