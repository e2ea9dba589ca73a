"""Accuracy at three budgets, ECE and EEFP, with deviations, of a pretrained EfficientNet.

At small scale, there is no stand-in for ImageNet: the shipped EfficientNet-Lite0, with weights of
ImageNet, was fine-tuned on CIFAR-100, and its ledgers come with offramp.
"""

from offramp import TrainConfig
from offramp_paper.experiments.network import SHIPPED, Network
from offramp_paper.experiments.page import report
from offramp_paper.experiments.run import Run

TABLE = "tab:additional_results_with_stds"
METHODS = ("baseline", "temperature", "eefp")
HEADING = "EfficientNet B2 - ImageNet1000"

EFFICIENTNET_B2 = Network(
    "efficientnet-b2",
    "EfficientNet-B2 on ImageNet, pretrained",
    data="imagenet-1k",
    splits={"image_size": 260},
    build="google/efficientnet-b2",
    config=TrainConfig(epochs=1000, learning_rate=1e-4, workers=16),
    augment="paper",
    heading=HEADING,
)
LITE0 = Network(
    "lite0",
    "EfficientNet-Lite0 on CIFAR-100, shipped",
    data="cifar100",
    splits={"image_size": 128},
    ledgers=SHIPPED,
    heading=HEADING,
)
NETWORKS = {"small": [LITE0], "paper": [EFFICIENTNET_B2]}
MISSING = (
    "A stand-in for ImageNet is missing at this scale: the network is the shipped "
    "EfficientNet-Lite0, with ImageNet weights and all layers fine-tuned on CIFAR-100 at 128 px. "
    "Its ledgers hold 1,500 held_out, 1,500 val and 2,000 test samples."
)


def main(run: Run) -> None:
    """Train, record and compare."""
    networks = run.networks(NETWORKS, MISSING if run.is_small else "")
    results = [run.compare(run.record(each), METHODS) for each in networks]
    report(run, "EfficientNet-B2 on ImageNet", __doc__, results, TABLE)
