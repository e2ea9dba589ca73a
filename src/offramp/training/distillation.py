"""Distillation: earlier exits learn from the last one."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offramp.errors import ConfigError
from offramp.training.objective import Objective, exit_losses
from offramp.training.processes import mean_over_processes

__all__ = ["Distillation"]


@dataclass
class Distillation(Objective):
    """Earlier exits learn from labels and from the detached last exit (Phuong & Lampert, 2019).

    An earlier exit's loss is `(1 - share) x CE(labels) + share x T² x CE(teacher / T, exit / T)`;
    the last exit's is the cross-entropy alone. The losses are summed. The temperature T starts at
    `temperature` and grows by the factor `growth` at each step at which the teacher is confident:
    at which the mean of its largest probability at T is above `confidence`. A teacher that is
    sure of itself would tell no more than the labels do.

    Ours: the default values; at most one growth per step; the sum over exits; T never grows for a
    confidence below 1/K + 0.1, which even a teacher that knows nothing would reach with few
    classes; and T only grows while gradients are recorded, so that evaluation leaves it alone.

    Args:
        share: Weight of the teacher in an earlier exit's loss, in [0, 1].
        confidence: Above which the temperature grows, in (0, 1].
        growth: Factor per step, at least 1.
        temperature: To begin with.

    Attributes:
        temperature_: T at present.

    Example:
        >>> objective = Distillation()
        >>> logits = torch.tensor([[[1.0, 0.0, 0.0], [9.0, 0.0, 0.0]]], requires_grad=True)
        >>> objective(logits, torch.tensor([0])).backward()
        >>> objective.temperature_
        1.05
    """

    share: float = 0.5
    confidence: float = 0.5
    growth: float = 1.05
    temperature: float = 1.0
    name: ClassVar[str] = "distillation"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"`share` must lie in [0, 1], got {self.share}")
        if not 0 < self.confidence <= 1:
            raise ConfigError(f"`confidence` must lie in (0, 1], got {self.confidence}")
        if not self.growth >= 1:
            raise ConfigError(f"`growth` must be at least 1, got {self.growth}")
        if not self.temperature > 0:
            raise ConfigError(f"`temperature` must be above 0, got {self.temperature}")
        self.temperature_ = self.temperature

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss; the temperature may grow.

        Args:
            logits: `[N, M, K]`.
            targets: Classes `[N]`, or probabilities `[N, K]`.
        """
        labelled = exit_losses(logits, targets)  # [M]
        teacher = logits[:, -1].detach().float()  # [N, K]
        if torch.is_grad_enabled():
            self._grow(teacher)
        warm = self.temperature_
        taught = exit_losses(logits[:, :-1] / warm, (teacher / warm).softmax(-1))  # [M - 1]
        earlier = (1 - self.share) * labelled[:-1] + self.share * warm**2 * taught
        return earlier.sum() + labelled[-1]

    def _grow(self, teacher: Tensor) -> None:
        surest = (teacher / self.temperature_).softmax(-1).amax(-1).mean()
        limit = max(self.confidence, 1 / teacher.shape[1] + 0.1)
        # The mean over all processes, or they would come to differ in their temperatures.
        if float(mean_over_processes(surest)) > limit:
            self.temperature_ *= self.growth

    def state(self) -> dict[str, float]:
        """The temperature at present."""
        return {"temperature": self.temperature_}

    def load_state(self, state: dict[str, float]) -> None:
        """Go on with this temperature."""
        self.temperature_ = float(state["temperature"])
