"""The precision in which a network runs while it is trained."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from offramp.machine import AutoPrecision, autocast, to_precision

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
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
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
