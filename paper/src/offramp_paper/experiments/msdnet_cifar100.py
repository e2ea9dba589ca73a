"""Accuracy at three budgets, ECE and EEFP, with standard deviations, of a multi-scale network.

At small scale, MSDNet with five blocks is trained for a few epochs.
"""

from dataclasses import replace

from offramp import TrainConfig
from offramp_paper.experiments.network import Network
from offramp_paper.experiments.page import report
from offramp_paper.experiments.run import Run

TABLE = "tab:additional_results_with_stds"
METHODS = ("baseline", "temperature", "eefp")

MSDNET = Network(
    "msdnet",
    "MSDNet on CIFAR-100",
    data="cifar100",
    build="msdnet",
    settings={"blocks": 5},
    config=TrainConfig(epochs=1000, workers=8),
    augment="paper",
    heading="MSDNet - CIFAR-100",
)
SMALL_MSDNET = replace(
    MSDNET,
    title="MSDNet of five blocks on CIFAR-100",
    config=TrainConfig(epochs=6, learning_rate=0.003, patience=None),
    augment="light",
)
NETWORKS = {"small": [SMALL_MSDNET], "paper": [MSDNET]}


def main(run: Run) -> None:
    """Train, record and compare."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    report(run, "MSDNet on CIFAR-100", __doc__, results, TABLE)
