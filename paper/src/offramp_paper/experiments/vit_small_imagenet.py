"""Accuracy at three budgets, ECE and EEFP, with standard deviations, of a pretrained ViT.

At small scale, no stand-in has pretrained weights: no vision transformer comes as a package.
"""

from dataclasses import replace

from offramp import TrainConfig
from offramp.data import Normalization
from offramp_paper.experiments.network import Network
from offramp_paper.experiments.page import report
from offramp_paper.experiments.run import Run
from offramp_paper.experiments.vit_tiny_tinyimagenet import VIT

TABLE = "tab:additional_results_with_stds"
METHODS = ("baseline", "temperature", "eefp")
HEADING = "ViT Small - ImageNet1000"

VIT_SMALL = Network(
    "vit-small",
    "ViT-Small on ImageNet, pretrained",
    data="imagenet-1k",
    splits={"image_size": 224},
    normalization=Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    build="WinKawaks/vit-small-patch16-224",
    config=TrainConfig(epochs=1000, learning_rate=1e-4, workers=16),
    augment="paper",
    heading=HEADING,
)
NETWORKS = {"small": [replace(VIT, heading=HEADING)], "paper": [VIT_SMALL]}
MISSING = (
    "A stand-in for the pretrained ViT-Small is missing at this scale: no pretrained vision "
    "transformer comes as a package. Instead, the network is the small ViT of "
    "vit-tiny-tinyimagenet, trained from nothing on CIFAR-100."
)


def main(run: Run) -> None:
    """Train, record and compare."""
    networks = run.networks(NETWORKS, MISSING if run.is_small else "")
    results = [run.compare(run.record(each), METHODS) for each in networks]
    report(run, "ViT-Small on ImageNet", __doc__, results, TABLE)
