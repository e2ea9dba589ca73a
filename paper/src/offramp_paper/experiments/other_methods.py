"""Three other ways to train a network with exits, each with and without correction.

Gradient equilibrium, zero time waste and distillation, also on the ensemble of the exits so far,
which is part of zero time waste. At small scale, a thin ResNet-20 on CIFAR-100 stands for
ResNet-34 on Tiny-ImageNet.
"""

from dataclasses import replace

from offramp import TrainConfig
from offramp_paper.experiments.network import Network
from offramp_paper.experiments.page import report
from offramp_paper.experiments.resnet34_tinyimagenet import RESNET34, THIN_RESNET
from offramp_paper.experiments.run import Run

TABLE = "tab:other_ee_methods"
METHODS = ("baseline", "temperature", "eefp", "ensemble", "eefp-ensemble")
NOTE = (
    "An inconsistency in the paper: it gives its method an ECE of 0.07 or 0.08 here "
    "(tab:other_ee_methods), but of 0.26 in tab:history_ablation_with_stds and "
    "tab:topk_ablation_full, on the same architecture and data at like accuracy. Only 0.26 fits "
    "ECE against correctness: a corrector is high for samples that are wrong from here to the "
    "end, too, and its ECE is about their share."
)
ZERO_TIME_WASTE = (
    "Zero time waste answers with a geometric ensemble of the exits so far: the rows Geometric "
    "ensemble and EEFP on ensemble. The paper does not say whether its figures include it."
)


def trained_by_others(joint: Network, cascade: str) -> list[Network]:
    """A network, trained in three other ways; `cascade` is the head that also reads logits."""
    plain = replace(joint, note="")
    return [
        replace(
            plain,
            name="gradient-equilibrium",
            title="Gradient equilibrium",
            heading="Gradient Equilibrium",
            objective="gradient-equilibrium",
        ),
        replace(
            plain,
            name="zero-time-waste",
            title="Zero time waste",
            heading="Zero Time Waste",
            objective="zero-time-waste",
            head=cascade,
            note=ZERO_TIME_WASTE,
        ),
        replace(
            plain,
            name="distillation",
            title="Distillation",
            heading="Early-Exit Distillation",
            objective="distillation",
        ),
    ]


SHORT = replace(THIN_RESNET, config=TrainConfig(epochs=5, learning_rate=0.003, patience=None))
NETWORKS = {
    "paper": trained_by_others(RESNET34, cascade="mixed-cascade"),
    "small": trained_by_others(SHORT, cascade="cascade"),
}


def main(run: Run) -> None:
    """Train, record and compare."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    report(run, "Other ways to train", __doc__, results, TABLE, note=NOTE)
