"""Which part of a network is trained, and the rest of it held still."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from offramp.errors import ConfigError
from offramp.networks.heads import BackboneHead
from offramp.networks.network import EarlyExitNetwork
from offramp.training.objective import Objective, Part, Phase

__all__ = ["only_heads", "trained_modules", "training_mode", "training_only"]


def trained_modules(network: EarlyExitNetwork, part: Part) -> list[nn.Module]:
    """The modules that are trained in a phase, see `Phase`."""
    heads = list(network.heads)
    if part == "network":
        return [network]
    if part == "backbone":
        return [*network.stages, heads[-1]]
    if part == "cascade":
        return [head for head in heads if getattr(head, "reads_logits", False)]
    return [head for head in heads if not isinstance(head, BackboneHead)]


@contextmanager
def training_only(network: EarlyExitNetwork, part: Part) -> Iterator[None]:
    """Let only a part of the network have gradients; everything is as before afterwards.

    Parameters that had no gradient before keep having none.

    Raises:
        ConfigError: Nothing is left to train.
    """
    before = [(parameter, parameter.requires_grad) for parameter in network.parameters()]
    modes = [(module, module.training) for module in network.modules()]
    inside = {id(p) for module in trained_modules(network, part) for p in module.parameters()}
    for parameter, wanted in before:
        parameter.requires_grad_(wanted and id(parameter) in inside)
    try:
        if not any(parameter.requires_grad for parameter in network.parameters()):
            raise ConfigError(
                f"there is nothing to train: no parameter of the {part} has requires_grad"
            )
        yield
    finally:
        for parameter, wanted in before:
            parameter.requires_grad_(wanted)
            parameter.grad = None
        for module, mode in modes:
            module.training = mode


def training_mode(network: EarlyExitNetwork, part: Part) -> None:
    """Put the trained part into train mode and the rest into eval mode."""
    network.eval()
    for module in trained_modules(network, part):
        module.train()


def only_heads(network: EarlyExitNetwork, objective: Objective) -> tuple[Phase, ...]:
    """The phases of an objective for a frozen backbone."""
    phases = objective.phases(network)
    heads = tuple(phase for phase in phases if phase.trains in ("heads", "cascade"))
    return heads or (Phase("heads", objective, "heads"),)
