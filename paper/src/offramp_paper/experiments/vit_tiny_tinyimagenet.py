"""Cost-accuracy curve, ECE and EEFP per exit of a vision transformer (the paper's Figure 3).

At small scale, a ViT of six narrow blocks on CIFAR-100 stands for ViT-Tiny on Tiny-ImageNet.
"""

from offramp import TrainConfig
from offramp_paper.experiments.network import Network
from offramp_paper.experiments.page import report
from offramp_paper.experiments.run import Run

FIGURE = "fig:vitt+tinyimagenet"
METHODS = ("baseline", "temperature", "eefp")

VIT_TINY = Network(
    "vit-tiny",
    "ViT-Tiny on Tiny-ImageNet",
    data="tiny-imagenet",
    build="vit-tiny",
    config=TrainConfig(epochs=1000, workers=8),
    augment="paper",
)
VIT = Network(
    "vit",
    "A small ViT on CIFAR-100",
    data="cifar100",
    build="vit",
    settings={"width": 96, "heads": 3, "depth": 6, "patch_size": 4},
    config=TrainConfig(epochs=8, learning_rate=0.002, patience=None),
    augment="light",
)
NETWORKS = {"small": [VIT], "paper": [VIT_TINY]}


def main(run: Run) -> None:
    """Train, record and compare."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    report(run, "ViT-Tiny on Tiny-ImageNet", __doc__, results, FIGURE)
