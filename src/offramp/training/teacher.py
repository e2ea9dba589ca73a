"""`Teacher`: the answers of a stronger network to the training data, as part of the targets."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from offramp import check
from offramp.data.augmentation import as_probabilities
from offramp.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Teacher:
    """A stronger network's answers to the training data, to learn from besides the labels.

    `offramp.record.as_teacher` makes one of a ledger.

    Args:
        logits: `[N, K]`, in the order of the data.
        labels: `[N]`, the classes of these samples. Training stops if the data say otherwise:
            then the answers are to other samples, or in another order.
        share: How much of a target is the teacher's answer; the rest is the label.
        temperature: By which the logits are divided. Above 1, a teacher that is sure of the
            samples that it was trained on says more about the other classes.
        name: Of the network, for what is written down of a run.

    Raises:
        ConfigError: Arrays that do not go together, or settings out of range.

    Example:
        >>> teacher = Teacher([[2.0, 0.0], [0.0, 2.0]], [0, 0], share=0.5, temperature=2.0)
        >>> teacher.targets(torch.tensor([1]), torch.tensor([0]))
        tensor([[0.6345, 0.3655]])
    """

    logits: Tensor
    labels: Tensor
    share: float = 0.5
    temperature: float = 1.0
    name: str | None = None

    def __post_init__(self) -> None:
        check.within("share", self.share, 0, 1)
        check.positive("temperature", self.temperature)
        logits = torch.as_tensor(self.logits).detach().float().cpu()
        labels = torch.as_tensor(self.labels).cpu().long()
        if logits.ndim != 2 or labels.shape != logits.shape[:1]:
            raise ConfigError(
                "a teacher needs logits of the shape [N, K] and labels of the shape [N], got "
                f"{list(logits.shape)} and {list(labels.shape)}"
            )
        if not torch.isfinite(logits).all():
            raise ConfigError("the logits of a teacher must be finite")
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "labels", labels)

    def check(self, samples: int, num_classes: int) -> None:
        """Raise unless it has answers to as many samples, for as many classes.

        Raises:
            ConfigError: It has not.
        """
        if self.logits.shape[1] != num_classes:
            raise ConfigError(
                f"the teacher knows {self.logits.shape[1]} classes, and the network {num_classes}"
            )
        if len(self.logits) != samples:
            raise ConfigError(
                f"the teacher answered {len(self.logits):,} samples, and there are {samples:,} to "
                "train on"
            )

    def targets(self, index: Tensor, labels: Tensor) -> Tensor:
        """Targets `[n, K]` of a batch of the data, from the positions `[n]` of its samples.

        Raises:
            ConfigError: The teacher knows other labels.
        """
        if not labels.is_floating_point() and not torch.equal(
            self.labels[index], labels.cpu().long()
        ):
            raise ConfigError(
                "the teacher's samples have other labels than these data: it must have been "
                "recorded on the same data, in the same order if they have no ids"
            )
        theirs = (self.logits[index] / self.temperature).softmax(-1)
        own = as_probabilities(labels.cpu(), theirs.shape[1])
        return torch.lerp(own, theirs, self.share)

    def describe(self) -> dict[str, Any]:
        """What a run depends on, as JSON values."""
        return {
            "network": self.name,
            "answers": f"{float(self.logits.double().sum()):.9g}",
            "share": self.share,
            "temperature": self.temperature,
        }
