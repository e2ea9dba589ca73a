"""Calibrated temperatures, and the same times 3.0 or 0.3 at the exits before the last.

Higher temperatures make a network underconfident, lower ones overconfident. At small scale, the
shipped EfficientNet-Lite0 is compared as well.
"""

from dataclasses import replace

from offramp_paper.experiments.efficientnet_b2_imagenet import LITE0
from offramp_paper.experiments.msdnet_cifar100 import MSDNET, SMALL_MSDNET
from offramp_paper.experiments.page import report
from offramp_paper.experiments.resnet34_tinyimagenet import RESNET34
from offramp_paper.experiments.run import Run

FIGURE = "fig:temperature_decalibration_1"
METHODS = ("baseline", "temperature", "underconfident", "overconfident")
NETWORKS = {
    "paper": [MSDNET],
    "small": [SMALL_MSDNET, replace(LITE0, heading=RESNET34.heading)],
}


def main(run: Run) -> None:
    """Train, record and compare."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    report(run, "Deliberately decalibrated networks", __doc__, results, FIGURE)
