"""Zero time waste: the backbone first, then heads that read what the head before them said."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from offramp.errors import ConfigError
from offramp.networks.network import EarlyExitNetwork
from offramp.training.objective import Objective, Phase, exit_losses

__all__ = ["LastExit", "ZeroTimeWaste"]


@dataclass
class LastExit(Objective):
    """The cross-entropy of the last exit alone: how a backbone is trained without exits.

    Example:
        >>> import torch
        >>> LastExit()(torch.zeros(2, 3, 4), torch.tensor([0, 1]))
        tensor(1.3863)
    """

    name: ClassVar[str] = "last-exit"

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The last exit's loss.

        Args:
            logits: `[N, M, K]`.
            targets: Classes `[N]`, or probabilities `[N, K]`.
        """
        return exit_losses(logits[:, -1:], targets).sum()

    def logits(self, network: EarlyExitNetwork, inputs: Any) -> Tensor:  # noqa: ANN401
        """Run the stages and the last head only, `[N, 1, K]`; all heads if the last reads them."""
        if reads_logits(network, network.num_exits - 1):
            logits: Tensor = network(inputs)
            return logits
        state = network.begin(inputs)
        for exit_index in range(network.num_exits):
            state = network.advance(exit_index, state)
        return network.head(network.num_exits - 1, state).unsqueeze(1)


@dataclass
class ZeroTimeWaste(Objective):
    """The backbone is trained and frozen, then cascaded heads (Wołczyk et al., 2021).

    Each head also reads the logits of the head before it, detached, so that what was computed for
    an exit that was not taken is not wasted. The network must have cascade heads:
    `attach(backbone, head="cascade")`. As the loss of a loop of your own it is the sum over the
    exits, for the second phase. The method's geometric ensemble over the exits is an answer,
    `offramp.GeometricEnsemble`, and is fitted on held_out.

    Ours: both phases get the same optimiser, schedule and number of epochs, and the augmentation
    if there is one. The last exit is the backbone's own classifier and stays frozen with it;
    if it is a cascade head instead, it is trained in both phases. The heads are trained at
    the same time, each on what the head before it says at that time.
    """

    name: ClassVar[str] = "zero-time-waste"

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The sum of the exits' losses.

        Args:
            logits: `[N, M, K]`.
            targets: Classes `[N]`, or probabilities `[N, K]`.
        """
        return exit_losses(logits, targets).sum()

    def phases(self, network: EarlyExitNetwork) -> tuple[Phase, ...]:
        """The backbone with its last exit, then the cascade.

        Raises:
            ConfigError: A head before the last one does not read logits.
        """
        for exit_index, name in enumerate(network.exit_names[:-1]):
            if not reads_logits(network, exit_index):
                raise ConfigError(
                    "zero-time-waste trains heads that read the logits of the head before them, "
                    f"and that of exit {exit_index} ({name}) does not: make the network with "
                    'head="cascade"'
                )
        return (Phase("backbone", LastExit(), "backbone"), Phase("heads", self, "cascade"))


def reads_logits(network: EarlyExitNetwork, exit_index: int) -> bool:
    """Whether a head says that it reads the logits of the exits before it."""
    return bool(getattr(network.heads[exit_index], "reads_logits", False))
