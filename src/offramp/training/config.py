"""`TrainConfig`: how to train; its defaults, the recipes and the learning rate by network.

Without torch: the command line makes its options of these.
"""

from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from math import cos, pi
from typing import TYPE_CHECKING, Any

from offramp import check
from offramp.machine import PRECISIONS, AutoPrecision

if TYPE_CHECKING:
    from offramp.networks.network import EarlyExitNetwork

# What may differ between the two halves of an interrupted run without changing its result.
HARMLESS = ("checkpoint_seconds", "device", "tensorboard", "workers")

_LEAST = 0.01  # of the full learning rate, at the end of a cycle
_GROWTH = 2  # of each cycle over the one before


@dataclass(frozen=True)
class TrainConfig:
    """Settings of `train`; the defaults follow the paper's Appendix C where it states something.

    AdamW, linear warm-up, cosine annealing with warm restarts, and early stopping with at most
    1000 epochs are the paper's. The values are ours, since it states none.

    Args:
        epochs: Largest number of epochs in each phase of the objective.
        batch_size: Samples per step, over all processes together.
        learning_rate: Learning rate at the top of the schedule. Default: 0.01 for convolutional
            networks with new weights, 0.0001 for text encoders, 0.0005 for trained networks whose
            heads have a higher rate, 0.001 for all others.
        head_rate: Factor on the learning rate for the heads, which are new where the backbone is
            pretrained. The backbone's own classifier is part of the backbone.
        weight_decay: Weight decay of AdamW, on tensors with two dimensions or more; not on biases
            and norms.
        warmup_epochs: Epochs over which the learning rate rises linearly; at most a fifth of all.
        restart_epochs: Length of the first cosine cycle; each next one is twice as long. All are
            stretched so that training ends with the end of a cycle.
        clip_norm: Norm to which larger gradients are scaled down. None: no clipping.
        averaging: Decay per step of an exponential moving average of the weights, such as 0.999.
            The average is evaluated and returned. 0: no average.
        label_smoothing: Share of a target that is spread over all classes. The accuracy often
            rises, but confidences then separate right from wrong answers less well.
        image_sizes: Sizes to which images are resized in turn, each for an equal share of the
            epochs; small images cost less. The last should be the size of the data, at which the
            network is evaluated. Default: images are not resized.
        patience: Epochs without a better accuracy (mean over the exits) on the stopping slice
            after which training stops and takes the best epoch's weights. Where there are
            restarts, this is asked at the end of each cycle only, since accuracy falls after a
            restart and recovers late in the cycle. None: no slice is held back, all epochs are
            run, and the last weights are taken.
        stopping_share: Share of the training data that is held back to decide on stopping.
        device: Device to train on: `cpu`, `cuda`, `cuda:1`, `mps`, ...; `auto`: where the network
            is if that is a GPU; else the first CUDA GPU, Apple's GPU or the CPU, whichever is
            there. The network is moved and stays there. Under `torchrun`, each process has a GPU
            of its own.
        precision: Precision of the network: `float32`, or `bfloat16` and `float16` under autocast,
            while weights and losses stay float32. With `float16`, losses are scaled so that small
            gradients do not vanish. `auto`: what the device is fastest in.
        channels_last: Store images with the channels last, which is faster on many CPUs and GPUs.
        workers: Processes that read the data ahead of the network; 0: the process that trains. The
            weights do not depend on their number.
        seed: Random seed of the data's order, the augmentation, dropout and the stopping slice.
        checkpoint_seconds: Time between checkpoints: the most work lost if a run is killed.
        tensorboard: Write metrics for TensorBoard, too. Default: if TensorBoard is installed.

    Example:
        >>> TrainConfig(epochs=8, precision="bfloat16", channels_last=True).batch_size
        128
        >>> TrainConfig(epochs=0)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `epochs` must be a whole number of at least 1, got 0
    """

    epochs: int = 1000
    batch_size: int = 128
    learning_rate: float | None = None
    head_rate: float = 1.0
    weight_decay: float = 0.05
    warmup_epochs: float = 5.0
    restart_epochs: float = 50.0
    clip_norm: float | None = 1.0
    averaging: float = 0.0
    label_smoothing: float = 0.0
    image_sizes: tuple[int, ...] = ()
    patience: int | None = 30
    stopping_share: float = 0.1
    device: str = "auto"
    precision: AutoPrecision = "auto"
    channels_last: bool = True
    workers: int = 0
    seed: int = 0
    checkpoint_seconds: float = 30.0
    tensorboard: bool | None = None

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("workers", 0), ("seed", 0)):
            check.whole(name, getattr(self, name), least)
        for size in self.image_sizes:
            check.whole("image_sizes", size, 1)
        if self.patience is not None:
            check.whole("patience", self.patience, 1)
        for name in ("learning_rate", "clip_norm"):
            if getattr(self, name) is not None:
                check.positive(name, getattr(self, name))
        for name in ("head_rate", "restart_epochs"):
            check.positive(name, getattr(self, name))
        for name in ("weight_decay", "warmup_epochs", "checkpoint_seconds"):
            check.at_least(name, getattr(self, name), 0)
        for name in ("averaging", "label_smoothing"):
            check.within(name, getattr(self, name), 0, 1, ends="[)")
        check.within("stopping_share", self.stopping_share, 0, 1, ends="()")
        check.one_of("precision", self.precision, ("auto", *PRECISIONS))

    def rate_factor(self, epoch: float) -> float:
        """The factor on the learning rate after `epoch` epochs, which need not be whole.

        It is a pure function: nothing has to be restored when a run is resumed.

        Example:
            >>> config = TrainConfig(epochs=10, warmup_epochs=2, restart_epochs=50)
            >>> [round(config.rate_factor(epoch), 3) for epoch in (0, 1, 2, 6, 10)]
            [0.0, 0.5, 1.0, 0.505, 0.01]
        """
        warmup, *_ = ends = self.cycle_ends()
        if epoch < warmup:
            return epoch / warmup
        cycles = list(pairwise(ends))
        begin, end = next((cycle for cycle in cycles if epoch < cycle[1]), cycles[-1])
        share = min((epoch - begin) / (end - begin), 1.0)
        return _LEAST + (1 - _LEAST) * (1 + cos(pi * share)) / 2

    def cycle_ends(self) -> list[float]:
        """The epochs at which the warm-up and each cosine cycle end.

        As many cycles as fit are stretched to end with the last epoch: stopping in the middle of
        one would leave the learning rate high.

        Example:
            >>> TrainConfig(epochs=160).cycle_ends()
            [5.0, 56.666..., 160.0]
        """
        warmup = min(self.warmup_epochs, self.epochs / 5)
        room, lengths = self.epochs - warmup, [self.restart_epochs]
        while sum(lengths) + lengths[-1] * _GROWTH <= room:
            lengths.append(lengths[-1] * _GROWTH)
        return list(accumulate((each * room / sum(lengths) for each in lengths), initial=warmup))

    def restarts(self) -> list[int]:
        """The numbers of whole epochs after which a cycle ends and another one begins.

        Example:
            >>> TrainConfig(epochs=1000).restarts()
            [71, 204, 469]
        """
        # Whole epochs only: an epoch in which a cycle ends goes on with the high rate of the next.
        return [int(end + 1e-9) for end in self.cycle_ends()[1:-1]]

    def image_size(self, epoch: int) -> int | None:
        """The size of images in an epoch, counted from 0; None: as they are.

        Example:
            >>> config = TrainConfig(epochs=4, image_sizes=(64, 96))
            >>> [config.image_size(epoch) for epoch in range(4)]
            [64, 64, 96, 96]
        """
        sizes = self.image_sizes
        return sizes[epoch * len(sizes) // self.epochs] if sizes else None

    def decisive(self) -> dict[str, Any]:
        """The settings that the resulting weights depend on."""
        return {name: value for name, value in asdict(self).items() if name not in HARMLESS}


def default_learning_rate(
    network: "EarlyExitNetwork", config: TrainConfig, freeze_backbone: bool = False
) -> float:
    """The learning rate where none is given.

    Convolutional networks with new weights take a high one, since batch norms keep them stable,
    and the layers of text encoders a low one. Trained networks whose heads have a higher rate of
    their own take half of the usual one, see paper/docs/claims.md.

    Args:
        network: To be trained.
        config: Of which the `head_rate` counts.
        freeze_backbone: Whether only heads are trained.

    Example:
        >>> from offramp.networks import build
        >>> default_learning_rate(build("convnet", num_classes=4, image_size=8), TrainConfig())
        0.01
    """
    from torch.nn import LayerNorm

    from offramp.networks.inputs import TextInput

    if isinstance(network.inputs, TextInput) and not freeze_backbone:
        return 1e-4
    if network.is_new:
        is_transformer = any(isinstance(each, LayerNorm) for each in network.modules())
        return 1e-3 if is_transformer else 1e-2
    return 5e-4 if config.head_rate > 1 else 1e-3


@dataclass(frozen=True)
class Recipe:
    """A set of defaults, which options of the command line override.

    Args:
        config: How to train.
        objective: Name of the objective.
        augment: Name of the augmentation, where the data are images.
    """

    config: TrainConfig
    objective: str = "joint"
    augment: str = "none"


PAPER = Recipe(TrainConfig())

# Pretrained weights need few epochs, in one cycle, and a lower learning rate than new heads;
# what these rates were better than on val is in paper/docs/claims.md.
# Distillation helps the early exits. With averaged weights no epoch has to be chosen, so no
# data are held back.
FINETUNE = Recipe(
    TrainConfig(
        epochs=12,
        batch_size=64,
        head_rate=8.0,
        restart_epochs=1000.0,
        averaging=0.999,
        patience=None,
    ),
    objective="distillation",
    augment="light",
)
