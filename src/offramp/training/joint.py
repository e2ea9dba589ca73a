"""Joint training: the sum of the exits' losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offramp.training.objective import Objective, checked_weights, exit_losses, weighted_sum

__all__ = ["Joint"]


@dataclass
class Joint(Objective):
    """Sum of the cross-entropies of all exits, as most early-exit networks are trained.

    Args:
        weights: `[M]`, how much each exit counts; all alike by default.

    Example:
        >>> import torch
        >>> Joint()(torch.zeros(2, 3, 4), torch.tensor([0, 1]))
        tensor(4.1589)
        >>> Joint(weights=[0, 0, 1])(torch.zeros(2, 3, 4), torch.tensor([0, 1]))
        tensor(1.3863)
    """

    weights: Sequence[float] | None = None
    name: ClassVar[str] = "joint"

    def __post_init__(self) -> None:
        self.weights = checked_weights(self.weights)

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The weighted sum of the exits' losses.

        Args:
            logits: `[N, M, K]`.
            targets: Classes `[N]`, or probabilities `[N, K]`.
        """
        return weighted_sum(exit_losses(logits, targets), checked_weights(self.weights))
