"""A step of training: in which precision the network runs, and what changes.

That is the weights, and their moving average.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils import clip_grad_norm_
from torch.overrides import TorchFunctionMode

from offramp.machine import AutoPrecision, autocast, to_precision
from offramp.networks.heads import BackboneHead
from offramp.networks.network import EarlyExitNetwork
from offramp.training.checkpoint import fill, weights
from offramp.training.config import TrainConfig

_PREFIX = "average."  # in a checkpoint
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW keeps for each parameter
_SCALE = ("scale", "_growth_tracker")  # what changes in a GradScaler's state
_GROUPS = 6  # position of `groups` among the arguments of conv2d


class _SlowInFloat32(TorchFunctionMode):
    """Attention and convolutions with groups in float32, all else as it is.

    On a CPU, the backward pass of depthwise convolutions in half precision is five times slower
    than in float32, and that of attention up to five times. It would take most of the time of a
    network that has them.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func is torch.conv2d and len(args) > _GROUPS and args[_GROUPS] > 1:
            with torch.autocast("cpu", enabled=False):
                return func(args[0].float(), *args[1:], **(kwargs or {}))
        if func is scaled_dot_product_attention:
            with torch.autocast("cpu", enabled=False):
                named = {name: _in_float32(each) for name, each in (kwargs or {}).items()}
                return func(*map(_in_float32, args), **named)
        return func(*args, **(kwargs or {}))


def _in_float32(value: Any) -> Any:  # noqa: ANN401 - an argument of a function
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return value.float() if is_float else value


@contextmanager
def training_autocast(device: torch.device, precision: AutoPrecision) -> Iterator[None]:
    """Autocast to a precision, without what is slow in it.

    Args:
        device: Where the network is.
        precision: `float32` changes nothing.

    Example:
        >>> layer = torch.nn.Conv2d(8, 8, 3, groups=8)
        >>> with training_autocast(torch.device("cpu"), "bfloat16"):
        ...     layer(torch.rand(1, 8, 4, 4)).dtype
        torch.float32
    """
    chosen = to_precision(precision, device)
    with autocast(device, chosen):
        if chosen == "float32" or device.type != "cpu" or not torch.is_grad_enabled():
            yield
        else:
            with _SlowInFloat32():
                yield


class Optimizer:
    """AdamW and, where they are asked for, the moving average and the scale of float16's losses.

    Args:
        network: Whose parameters are trained, where they have gradients.
        config: How to train.
        device: Where the network is.
        tensors: Of a checkpoint, to resume from.
    """

    def __init__(
        self,
        network: EarlyExitNetwork,
        config: TrainConfig,
        device: torch.device,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.config = config
        self.names = {id(p): name for name, p in network.named_parameters()}
        self.adamw = make_optimizer(network, config)
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        # Small gradients would be zero in float16; the scaler finds a factor that prevents it.
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "float16")
        self.average: WeightAverage | None = None
        if config.averaging:
            self.average = WeightAverage(network, config.averaging, tensors)
        if tensors:
            self._restore(tensors)

    def step(self, loss: Tensor, learning_rate: float, number: int) -> None:
        """Change the weights after the loss of a step; steps are counted from 1."""
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate * group["times"]
        self.adamw.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.adamw)
        if self.config.clip_norm is not None:
            clip_grad_norm_(self.parameters, self.config.clip_norm)
        self.scaler.step(self.adamw)
        self.scaler.update()
        if self.average is not None:
            self.average.update(number)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint needs: the moments, the scale and the average."""
        moments = {
            f"optimizer.{key}.{self.names[id(parameter)]}": value
            for parameter, state in self.adamw.state.items()
            for key, value in state.items()
        }
        state = self.scaler.state_dict()
        scale = {f"scaler.{key}": torch.tensor(state[key]) for key in _SCALE if key in state}
        return {**moments, **scale, **(self.average.tensors if self.average is not None else {})}

    def _restore(self, tensors: Mapping[str, Tensor]) -> None:
        for parameter in self.parameters:
            for key in _MOMENTS:
                value = tensors.get(f"optimizer.{key}.{self.names[id(parameter)]}")
                if value is not None:
                    # In the parameter's memory format, as the optimiser itself would make it.
                    like = torch.empty(()) if key == "step" else torch.empty_like(parameter)
                    self.adamw.state[parameter][key] = like.detach().copy_(value)
        names = {key: f"scaler.{key}" for key in _SCALE if f"scaler.{key}" in tensors}
        if names:
            scale = {key: tensors[name].item() for key, name in names.items()}
            self.scaler.load_state_dict({**self.scaler.state_dict(), **scale})


def make_optimizer(network: EarlyExitNetwork, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW for what has gradients, with a group for each learning rate and weight decay.

    Args:
        network: Whose heads learn `head_rate` times as fast.
        config: How to train.

    Returns:
        AdamW, whose learning rate is set in every step, times a group's `times`.
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
