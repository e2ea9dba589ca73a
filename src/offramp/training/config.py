"""`TrainConfig`: how to train, apart from the network, the data and the objective."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from offramp.errors import ConfigError
from offramp.machine import AutoPrecision, to_precision

# What may differ between the two halves of an interrupted run without changing its result.
HARMLESS = ("checkpoint_seconds", "device", "tensorboard", "workers")


@dataclass(frozen=True)
class TrainConfig:
    """Settings of `train`; the defaults follow the paper's Appendix C where it states something.

    AdamW, linear warm-up, cosine annealing with warm restarts, and early stopping with at most
    1000 epochs are the paper's. The values are ours, since it states none.

    Args:
        epochs: The most epochs in each phase of the objective.
        batch_size: Over all processes together.
        learning_rate: At the top of the schedule.
        head_rate: Factor on the learning rate for the heads, which are new where the backbone is
            pretrained. The backbone's own classifier is part of the backbone.
        weight_decay: Of AdamW, on tensors with two dimensions or more; not on biases and norms.
        warmup_epochs: Over which the learning rate rises linearly; at most a fifth of `epochs`.
        restart_epochs: Length of the first cosine cycle; each next one is twice as long. All are
            stretched so that training ends with the end of a cycle.
        clip_norm: Gradients are scaled down to this norm; None for no clipping.
        averaging: Decay per step of an exponential moving average of the weights, such as 0.999.
            The average is evaluated and returned. 0: no average.
        label_smoothing: Share of a target that is spread over all classes. It often raises the
            accuracy, but confidences then separate right from wrong answers less well.
        image_sizes: Training images are resized to these sizes in turn, each for an equal share
            of the epochs; small images cost less. The last should be the size of the data, at
            which the network is evaluated. Empty: images are not resized.
        patience: Stop after this many epochs without a better accuracy (mean over the exits) on
            the stopping slice, and take the best epoch's weights. Where there are restarts, this
            is asked at the end of each cycle only, since accuracy falls after a restart and
            recovers late in the cycle. None: no slice is held back, all epochs are run, and the
            last weights are taken.
        stopping_share: The share of the training data that is held back to decide on stopping.
        device: Where to train: `cpu`, `cuda`, `cuda:1`, `mps`, ... `auto`: where the network is if
            that is a GPU; else on the first CUDA GPU, Apple's GPU or the CPU, whichever is there.
            The network is moved and stays there. Under `torchrun`, each process has a GPU of its
            own.
        precision: `bfloat16` and `float16` run the network under autocast; weights and losses stay
            float32. With `float16`, losses are scaled so that small gradients do not vanish.
            `auto`: what the device is fastest in.
        channels_last: Whether images are stored with the channels last; faster on many CPUs and
            GPUs.
        workers: Processes that read the data ahead of the network; 0 reads them in this one. The
            weights do not depend on it.
        seed: Of the data's order, the augmentation, dropout and the stopping slice.
        checkpoint_seconds: The time between checkpoints: the most work lost if a run is killed.
        tensorboard: Whether metrics go to TensorBoard too; None: if it is installed.

    Example:
        >>> TrainConfig(epochs=8, precision="bfloat16", channels_last=True).batch_size
        128
        >>> TrainConfig(epochs=0)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `epochs` must be a whole number of at least 1, got 0
    """

    epochs: int = 1000
    batch_size: int = 128
    learning_rate: float = 1e-3
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
    precision: AutoPrecision = "float32"
    channels_last: bool = False
    workers: int = 0
    seed: int = 0
    checkpoint_seconds: float = 30.0
    tensorboard: bool | None = None

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("workers", 0), ("seed", 0)):
            self._check_whole(name, least)
        if self.patience is not None:
            self._check_whole("patience", 1)
        self._check_numbers()
        if any(size < 1 for size in self.image_sizes):
            raise ConfigError(
                f"`image_sizes` must be numbers of pixels, at least 1, got {self.image_sizes}"
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"`clip_norm` must be above 0, or None, got {self.clip_norm}")
        to_precision(self.precision, torch.device("cpu"))  # raises if it is unknown

    def _check_numbers(self) -> None:
        for name in ("learning_rate", "head_rate", "restart_epochs"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"`{name}` must be above 0, got {getattr(self, name)}")
        for name in ("weight_decay", "warmup_epochs", "checkpoint_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"`{name}` must be at least 0, got {getattr(self, name)}")
        for name in ("averaging", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must lie in [0, 1), got {getattr(self, name)}")
        if not 0 < self.stopping_share < 1:
            raise ConfigError(
                f"`stopping_share` must lie in (0, 1), got {self.stopping_share}; to train on all "
                "data, without early stopping, say patience=None"
            )

    def _check_whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(
                f"`{name}` must be a whole number of at least {least}, got {value!r}"
            )

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
