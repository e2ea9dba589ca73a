"""The optimiser, and the moving average of the weights that it leaves behind."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from offramp.networks.heads import BackboneHead
from offramp.networks.network import EarlyExitNetwork
from offramp.training.checkpoint import fill, weights
from offramp.training.config import TrainConfig

_PREFIX = "average."  # in a checkpoint


def make_optimizer(network: EarlyExitNetwork, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW for what has gradients, with a group for each learning rate and weight decay.

    Args:
        network: Whose heads learn `head_rate` times as fast.
        config: How to train.

    Returns:
        The optimiser. The loop sets its learning rate in every step, times a group's `times`.
    """
    new = (head for head in network.heads if not isinstance(head, BackboneHead))
    heads = {id(parameter) for head in new for parameter in head.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in network.parameters():
        if parameter.requires_grad:
            times = config.head_rate if id(parameter) in heads else 1.0
            decay = config.weight_decay if parameter.ndim >= 2 else 0.0
            groups.setdefault((times, decay), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "times": times, "weight_decay": decay}
            for (times, decay), parameters in groups.items()
        ]
    )


class WeightAverage:
    """The moving average of all weights and buffers of a network.

    Args:
        network: Whose weights are averaged; it is changed by `put` and `in_place` only.
        decay: Share of the average that stays at each step. In the first steps it is less, so
            that the weights before training are soon forgotten.
        tensors: Of a checkpoint, to resume from.
    """

    def __init__(
        self, network: nn.Module, decay: float, tensors: Mapping[str, Tensor] | None = None
    ) -> None:
        self.network = network
        self.decay = decay
        self.tensors = {name: each.clone() for name, each in weights(network, _PREFIX).items()}
        if tensors:
            for name, each in self.tensors.items():
                each.copy_(tensors[name])

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after `step` steps, counted from 1."""
        decay = min(self.decay, step / (step + 9))
        floats: tuple[list[Tensor], list[Tensor]] = [], []
        for name, now in weights(self.network, _PREFIX).items():
            if now.is_floating_point():
                floats[0].append(self.tensors[name])
                floats[1].append(now)
            else:
                self.tensors[name].copy_(now)  # counters
        torch._foreach_lerp_(*floats, 1 - decay)

    def put(self) -> None:
        """Give the network the averaged weights for good."""
        fill(self.network, self.tensors, _PREFIX)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the network have the averaged weights for a while."""
        own = {name: each.clone() for name, each in weights(self.network, _PREFIX).items()}
        self.put()
        try:
            yield
        finally:
            fill(self.network, own, _PREFIX)
