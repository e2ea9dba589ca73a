"""The paper's claims on networks that are trained well, or as well as two CPU cores can.

Calibration, decalibration, correction and this library's own methods, on ledgers that `offramp
record` left below `OFFRAMP_DATA`. How the networks were trained: paper/docs/claims.md.
"""

from offramp_paper.experiments.metric_validity import metric_validity
from offramp_paper.experiments.network import Network
from offramp_paper.experiments.page import report
from offramp_paper.experiments.run import Run

METHODS = (
    *("baseline", "temperature", "vector", "matrix", "overconfident", "underconfident"),
    *("ccct", "eefp-no-history", "eefp", "eefp-top-1", "eefp-top-2", "eefp-top-all"),
    *("baseline:smooth", "eefp-logistic", "break-even"),
)
FOLDERS = {
    "lite0": ("cifar100-lite0", "EfficientNet-Lite0 on CIFAR-100, all layers fine-tuned"),
    "msdnet": ("msdnet", "MSDNet of five blocks on CIFAR-100"),
    "minilm": ("minilm", "MiniLM on SST-2, all layers fine-tuned"),
    "resnet20": ("resnet20", "ResNet-20 on CIFAR-100, 64 epochs"),
    "vit": ("vit", "A small ViT on CIFAR-100"),
    "tiny-imagenet": ("lite0-tiny", "EfficientNet-Lite0 on Tiny-ImageNet, all layers fine-tuned"),
    "gradient-equilibrium": (
        "gradient-equilibrium",
        "ResNet-20 on CIFAR-100, trained on with gradient equilibrium",
    ),
    "distillation": ("distillation", "ResNet-20 on CIFAR-100, trained on with distillation"),
    "zero-time-waste": (
        "zero-time-waste",
        "ResNet-20 on CIFAR-100, trained on with zero time waste",
    ),
}
STRONG = [
    Network(name, title, ledgers=f"{folder}/ledgers") for name, (folder, title) in FOLDERS.items()
]
NETWORKS = {"small": STRONG}


def main(run: Run) -> None:
    """Compare, and correlate."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    analysis = run.analyse(results, metric_validity)
    report(run, "The paper's claims on strong networks", __doc__, results, analysis=analysis)
