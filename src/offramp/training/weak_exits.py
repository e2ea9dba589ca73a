"""After the heads were trained: which exits are far below the simplest alternative."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, one_hot

from offramp.networks.heads import GRID, Head, stacked_for
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import State, evaluating, leaf_at
from offramp.training.batches import Batch, Samples, compute_rows, moved
from offramp.training.checkpoint import generator_at
from offramp.training.processes import Processes

SAMPLES = 1000  # of the training data: half to fit the alternative, half to compare on
FEW = 100  # with fewer, nothing can be said
GAP = 0.1  # of accuracy by which an exit is far below


def weak_exits(
    network: EarlyExitNetwork, samples: Samples, processes: Processes, batch_size: int
) -> list[str]:
    """Sentences about exits that a ridge regression on plain features beats by ten points.

    The regression reads means in 4 x 4 cells of feature maps, mean and first tokens, or flat
    features. It is compared on training samples that it has not seen, and the exit has, so the
    exit has the advantage.

    Args:
        network: Whose heads were trained.
        samples: That they were trained on.
        processes: Share the work.
        batch_size: Of each process.
    """
    drawn = torch.randperm(len(samples), generator=generator_at(0, "weak"))[:SAMPLES]
    if len(drawn) < FEW or network.num_exits == 1:
        return []
    with torch.no_grad(), evaluating(network):

        def compute(batch: Batch) -> list[Tensor]:
            inputs = moved(batch[0], processes.device)
            return [batch[1], *_predictions_and_features(network, inputs)]

        labels, predictions, *features = compute_rows(
            samples, drawn, batch_size, processes, compute
        )
    if labels.is_floating_point():
        return []
    right = predictions == labels.unsqueeze(1)  # [n, M - 1]
    later, found = slice(len(labels) // 2, None), []
    chance = labels.bincount().max().item() / len(labels)
    for exit_index, each in enumerate(features):
        own = right[later, exit_index].float().mean().item()
        other = _accuracy_of_regression(each.double(), labels, network.num_classes)
        if other - own > GAP:
            found.append(_sentence(network, exit_index, own, other, chance))
    return found


def _predictions_and_features(network: EarlyExitNetwork, inputs: Any) -> list[Tensor]:  # noqa: ANN401
    """Predictions `[n, M - 1]` of all exits but the last, and features `[n, C]` of each."""
    state, logits, features = network.begin(inputs), list[Tensor](), list[Tensor]()
    for exit_index, head in enumerate(list(network.heads)[:-1]):
        state = network.advance(exit_index, state)
        logits.append(network.head(exit_index, state, stacked_for(head, logits)))
        features.append(_plain_features(state, head, logits[-1]))
    return [torch.stack([each.argmax(1) for each in logits], 1), *features]


def _plain_features(state: State, head: nn.Module, logits: Tensor) -> Tensor:
    """What a simple alternative would read: of an unknown head, no more than its logits."""
    tensor = leaf_at(state, head.pool.leaf) if isinstance(head, Head) else logits
    if tensor.ndim == 4 and min(tensor.shape[2:]) > GRID:
        tensor = adaptive_avg_pool2d(tensor, GRID)
    if tensor.ndim == 3:
        return torch.cat([tensor.mean(1), tensor[:, 0]], 1)
    return tensor.flatten(1)


def _accuracy_of_regression(features: Tensor, labels: Tensor, classes: int) -> float:
    """Fitted to the first half of the samples, and counted on the second."""
    half = len(labels) // 2
    fitted = features[:half]
    scaled = (features - fitted.mean(0)) / fitted.std(0).clamp(min=1e-6)
    kernel = scaled @ scaled[:half].T / features.shape[1]  # [n, half]
    targets = one_hot(labels[:half], classes).double() - 1 / classes
    ridge = 0.1 * torch.eye(half, dtype=torch.float64)
    answers = (kernel[half:] @ torch.linalg.solve(kernel[:half] + ridge, targets)).argmax(1)
    return float((answers == labels[half:]).float().mean())


def _sentence(
    network: EarlyExitNetwork, exit_index: int, own: float, other: float, chance: float
) -> str:
    head = network.heads[exit_index]
    reads_means = isinstance(head, Head) and head.pool.kind == "map"
    hint = (
        "attach it with head='mixed-pool' (--head mixed-pool)"
        if reads_means
        else "train longer or with a higher learning rate (--epochs, --learning-rate), or attach "
        "it with another head (--head)"
    )
    near = f" (chance: {chance:.0%})" if own < chance + GAP else ""
    return (
        f"exit {exit_index} ({network.exit_names[exit_index]}) is right for {own:.0%} of its "
        f"training samples{near}, and a linear regression for {other:.0%}: {hint}"
    )
