"""Cost-accuracy curve, ECE and EEFP per exit of a residual network (the paper's Figure 2).

At small scale, a thin ResNet-20 on CIFAR-100 stands for ResNet-34 on Tiny-ImageNet.
"""

from offramp import TrainConfig
from offramp_paper.experiments.network import Network
from offramp_paper.experiments.page import report
from offramp_paper.experiments.run import Run

TABLE = "tab:history_ablation_with_stds"  # the numbers of the network that the figure shows
METHODS = ("baseline", "temperature", "eefp")

# The paper does not say where its exits are and what its heads do. Both are inferred from the
# operations that it counts, see corrector_cost.py.
EXITS = ("1", "3", "5", "6", "9", "11", "12")
RESNET34 = Network(
    "resnet34",
    "ResNet-34 on Tiny-ImageNet",
    data="tiny-imagenet",
    build="resnet34",
    exits=tuple(f"blocks.{block}" for block in EXITS),
    head="mixed-pool",
    config=TrainConfig(epochs=1000, workers=8),
    augment="paper",
    heading="ResNet34 - TinyImageNet",
    note="Where the exits are and what their heads do is inferred from the operations that the "
    "paper counts; see the experiment corrector-cost.",
)
THIN_RESNET = Network(
    "thin-resnet",
    "Thin ResNet on CIFAR-100",
    data="cifar100",
    build="thin-resnet",
    config=TrainConfig(epochs=64, patience=None),
    augment="light",
    heading="ResNet34 - TinyImageNet",
)
NETWORKS = {"small": [THIN_RESNET], "paper": [RESNET34]}


def main(run: Run) -> None:
    """Train, record and compare."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    report(run, "ResNet-34 on Tiny-ImageNet", __doc__, results, TABLE)
