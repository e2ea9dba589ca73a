"""What an objective is: a callable on the exits' logits, and the phases that it trains in."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from offramp.errors import ConfigError
from offramp.networks.network import EarlyExitNetwork

__all__ = ["LossFunction", "Objective", "Part", "Phase", "PlainObjective", "exit_losses"]

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Part: TypeAlias = Literal["network", "backbone", "heads", "cascade"]


@dataclass(frozen=True)
class Phase:
    """One stretch of training, with an optimiser and a schedule of its own.

    Args:
        name: For progress and the history.
        objective: What is minimised.
        trains: `network` trains everything; `backbone` the stages and the last head; `heads`
            every head but the backbone's own classifier; `cascade` the heads that read logits.
            What is not trained is frozen and in eval mode.
    """

    name: str
    objective: "Objective"
    trains: Part = "network"


class Objective:
    """Parent of the training methods: `objective(logits, targets)` is a loss.

    Subclasses are dataclasses of plain values. Most need only the outputs, so they also serve
    in a loop of your own; those that change how gradients flow override `logits` too.

    Attributes:
        name: What `train(..., objective=name)` calls it.
    """

    name: ClassVar[str] = "objective"

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss.

        Args:
            logits: `[N, M, K]`, of all exits.
            targets: Classes `[N]`, or probabilities `[N, K]` as Mixup gives them.

        Returns:
            A scalar.
        """
        raise NotImplementedError

    def logits(self, network: EarlyExitNetwork, inputs: Any) -> Tensor:  # noqa: ANN401
        """Run the network; `[N, M, K]`."""
        logits: Tensor = network(inputs)
        return logits

    def phases(self, network: EarlyExitNetwork) -> tuple[Phase, ...]:
        """The phases of training; one that trains everything, unless overridden."""
        return (Phase("network", self),)

    def state(self) -> dict[str, float]:
        """What changes while training, for a checkpoint."""
        return {}

    def load_state(self, state: dict[str, float]) -> None:
        """Go on from what `state` returned."""

    def describe(self) -> dict[str, Any]:
        """Name and settings, as JSON values."""
        settings: dict[str, Any] = {}
        if is_dataclass(self) and not isinstance(self, type):
            settings = asdict(self)
        return {"name": self.name, **settings}


class PlainObjective(Objective):
    """Any function of `(logits, targets)` as an objective."""

    def __init__(self, function: LossFunction) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)  # type: ignore[misc]

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """What the function returns."""
        return self.function(logits, targets)


def exit_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every exit, mean over the samples, in float32.

    Every exit is held to the same targets: soft ones, as Mixup and CutMix make them, are right
    for all exits, since all of them see the same mixed input.

    Args:
        logits: `[N, M, K]`.
        targets: Classes `[N]`, or probabilities `[N, K]`.

    Returns:
        `[M]`.

    Example:
        >>> logits = torch.zeros(2, 3, 4)
        >>> exit_losses(logits, torch.tensor([0, 3]))
        tensor([1.3863, 1.3863, 1.3863])
        >>> exit_losses(logits, torch.full((2, 4), 0.25))
        tensor([1.3863, 1.3863, 1.3863])
    """
    log_probs = logits.float().log_softmax(-1)  # [N, M, K]
    if targets.ndim == 1 and not targets.is_floating_point():
        picked = log_probs.gather(2, targets.view(-1, 1, 1).expand(-1, logits.shape[1], 1))
        return -picked.squeeze(2).mean(0)
    if targets.shape != (logits.shape[0], logits.shape[2]):
        raise ConfigError(
            f"targets must be classes of the shape [N] or probabilities of the shape [N, K], here "
            f"[{logits.shape[0]}] or {[logits.shape[0], logits.shape[2]]}, got {targets.dtype} of "
            f"the shape {list(targets.shape)}"
        )
    return -(log_probs * targets.unsqueeze(1)).sum(2).mean(0)


def weighted_sum(losses: Tensor, weights: tuple[float, ...] | None) -> Tensor:
    """Sum of the exits' losses, each times its weight.

    Args:
        losses: `[M]`.
        weights: `[M]`, or None for ones.

    Raises:
        ConfigError: The number of weights is not that of the exits.
    """
    if weights is None:
        return losses.sum()
    if len(weights) != len(losses):
        raise ConfigError(
            f"`weights` must have one number for each of the {len(losses)} exits, got "
            f"{len(weights)}"
        )
    return (losses * torch.tensor(weights, device=losses.device)).sum()


def checked_weights(weights: object) -> tuple[float, ...] | None:
    """Weights as a tuple of floats that are not negative and not all zero.

    Raises:
        ConfigError: They are not.
    """
    if weights is None:
        return None
    try:
        values = tuple(float(weight) for weight in weights)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise ConfigError(f"`weights` must be numbers, one per exit, got {weights!r}") from None
    if not values or min(values) < 0 or not 0 < sum(values) < float("inf"):
        raise ConfigError(f"`weights` must be at least 0 and not all 0, got {list(values)}")
    return values
