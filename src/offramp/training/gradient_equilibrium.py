"""Gradient equilibrium: no stage gets a larger gradient because more exits lie behind it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import State, map_leaves
from offramp.training.joint import Joint

__all__ = ["GradientEquilibrium", "scale_gradient"]


@dataclass
class GradientEquilibrium(Joint):
    """Joint training with gradients that are balanced between the exits (Li et al., 2019).

    At exit i of n, counted from 0, the stage before it receives
    `(head's + (n - i - 1) x deeper's) / (n - i)`, where *head's* is the gradient from this exit's
    head and *deeper's* the one from all that lies behind. A head's own weights get their full
    gradient, and outputs do not change.

    Ours: in a state of several tensors (MSDNet carries one per scale) the rule holds for each of
    them; for those that a head does not read, head's is zero. `Shared` leaves are left alone.

    Args:
        weights: `[M]`, how much each exit's loss counts; all alike by default.

    Example:
        >>> from offramp.networks import build
        >>> objective = GradientEquilibrium()
        >>> network = build("convnet", num_classes=3, image_size=8)
        >>> logits = objective.logits(network, torch.rand(2, 3, 8, 8))
        >>> objective(logits, torch.tensor([0, 2])).backward()
    """

    name: ClassVar[str] = "gradient-equilibrium"

    def logits(self, network: EarlyExitNetwork, inputs: Any) -> Tensor:  # noqa: ANN401
        """Run the network with balanced gradients; `[N, M, K]`, the same as `network(inputs)`."""
        state = network.begin(inputs)
        logits: list[Tensor] = []
        for exit_index in range(network.num_exits):
            state = network.advance(exit_index, state)
            left = network.num_exits - exit_index
            so_far = torch.stack(logits, 1) if logits else None
            logits.append(network.head(exit_index, scale_gradient(state, 1 / left), so_far))
            state = scale_gradient(state, (left - 1) / left)
        return torch.stack(logits, 1)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:  # noqa: ANN401
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None  # type: ignore[attr-defined]


def scale_gradient(state: State, factor: float) -> State:
    """The same state, through which gradients flow back times `factor`.

    Example:
        >>> x = torch.ones(1, requires_grad=True)
        >>> scale_gradient(x, 0.25).sum().backward()
        >>> x.grad
        tensor([0.2500])
    """

    def scale(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        scaled: Tensor = _Scale.apply(leaf, factor)  # type: ignore[no-untyped-call]
        return scaled

    result: State = map_leaves(scale, state)
    return result
