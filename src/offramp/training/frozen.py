"""A frozen backbone: the features that the heads read are computed once and trained on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from offramp.errors import ConfigError
from offramp.networks.heads import BackboneHead, Head, stacked_for
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import evaluating
from offramp.training.batches import Batch, Samples, compute_rows, moved
from offramp.training.config import TrainConfig
from offramp.training.objectives import Objective, Phase, TrainedPart
from offramp.training.processes import Processes
from offramp.training.step import training_autocast


def trained_modules(network: EarlyExitNetwork, part: TrainedPart) -> list[nn.Module]:
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
def training_only(network: EarlyExitNetwork, part: TrainedPart) -> Iterator[None]:
    """Let only a part of the network have gradients and be in train mode; the rest is frozen.

    Everything is restored afterwards. Parameters that were frozen before stay frozen.

    Raises:
        ConfigError: Nothing is left to train.
    """
    before = [(parameter, parameter.requires_grad) for parameter in network.parameters()]
    trained = trained_modules(network, part)
    inside = {id(parameter) for module in trained for parameter in module.parameters()}
    for parameter, wanted in before:
        parameter.requires_grad_(wanted and id(parameter) in inside)
    try:
        if not any(parameter.requires_grad for parameter in network.parameters()):
            raise ConfigError(
                f"there is nothing to train: no parameter of the {part} has requires_grad"
            )
        with evaluating(network):
            for module in trained:
                module.train()
            yield
    finally:
        for parameter, wanted in before:
            parameter.requires_grad_(wanted)
            parameter.grad = None


def only_heads(network: EarlyExitNetwork, objective: Objective) -> tuple[Phase, ...]:
    """The phases of an objective for a frozen backbone."""
    phases = objective.phases(network)
    heads = tuple(phase for phase in phases if phase.trains in ("heads", "cascade"))
    return heads or (Phase("heads", objective, "heads"),)


LIMIT = 2 * 1024**3  # bytes; beyond it the backbone is run again in every epoch


class FeatureData(TensorDataset):
    """A data set of the features that the heads read, `[N, ...]` for each exit, and labels."""

    def batch(self, index: Tensor) -> Batch:
        """Features and labels of the samples at positions `[n]`."""
        *features, labels = self[index]
        return features, labels


class CachedHeads(nn.Module):
    """The heads of a network, applied to cached features.

    Args:
        network: Its heads are shared, not copied.
        fixed: For each exit whether its logits are cached, since its head is not trained.
    """

    def __init__(self, network: EarlyExitNetwork, fixed: Sequence[bool]) -> None:
        super().__init__()
        self.heads = network.heads
        self.fixed = list(fixed)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Logits `[n, M, K]` of all exits."""
        logits: list[Tensor] = []
        for head, fixed, cached in zip(self.heads, self.fixed, features, strict=True):
            assert isinstance(head, Head)  # checked by can_split
            if fixed:
                logits.append(cached)
            else:
                logits.append(head.classify(cached, stacked_for(head, logits)))
        # Under autocast, a head's logits may have another type than cached ones.
        return torch.stack([each.float() for each in logits], 1)


def can_split(network: EarlyExitNetwork, phase: Phase) -> bool:
    """Whether the phase trains only heads, and all of them read features without parameters.

    With a head that is not a `Head`, or an objective that runs the network in its own way, the
    backbone is run in every step.
    """
    own_way = type(phase.objective).logits is not Objective.logits
    known = all(isinstance(head, Head) for head in network.heads)
    return phase.trains in ("heads", "cascade") and known and not own_way


def cache_features(
    network: EarlyExitNetwork,
    phase: Phase,
    samples: Samples,
    config: TrainConfig,
    processes: Processes,
    advance: Callable[[int], None],
) -> tuple[CachedHeads, FeatureData] | None:
    """Run the frozen stages once over all data.

    Args:
        network: Its heads are to be trained.
        phase: Which of the heads.
        samples: The training data.
        config: For the batch size, the precision and the memory format.
        processes: Share the work.
        advance: Called with the number of samples that are done.

    Returns:
        The heads and their features; None if the features would take more than 2 GB.
    """
    trained = {id(head) for head in trained_modules(network, phase.trains)}
    fixed = [id(head) not in trained for head in network.heads]

    def compute(batch: Batch) -> list[Tensor]:
        inputs = moved(batch[0], processes.device, config.channels_last)
        with training_autocast(processes.device, config.precision):
            return [*_features(network, fixed, inputs), batch[1]]

    with torch.no_grad(), evaluating(network):
        bytes_each = sum(each.nbytes for each in compute(samples.example()))
        if bytes_each * len(samples) > LIMIT:
            return None
        every, size = torch.arange(len(samples)), config.batch_size
        tensors = compute_rows(samples, every, size, processes, compute, advance)
    return CachedHeads(network, fixed), FeatureData(*tensors)


def _features(network: EarlyExitNetwork, fixed: Sequence[bool], inputs: Any) -> list[Tensor]:  # noqa: ANN401
    state = network.begin(inputs)
    result = []
    for exit_index, head in enumerate(network.heads):
        state = network.advance(exit_index, state)
        assert isinstance(head, Head)  # checked by can_split
        result.append(head(state) if fixed[exit_index] else head.features(state))
    return result
