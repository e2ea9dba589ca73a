"""The precision in which a network runs while it is trained."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_GROUPS = 6  # position of `groups` among the arguments of conv2d


class _GroupsInFloat32(TorchFunctionMode):
    """Convolutions with groups in float32, all else as it is.

    The backward pass of depthwise convolutions in bfloat16 is five times slower than in float32
    on a CPU, and would take most of the time of a network that has them.
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
        return func(*args, **(kwargs or {}))


@contextmanager
def bfloat16_autocast(device: torch.device) -> Iterator[None]:
    """Autocast to bfloat16, without what is slow in it.

    Args:
        device: Where the network is.

    Example:
        >>> layer = torch.nn.Conv2d(8, 8, 3, groups=8)
        >>> with bfloat16_autocast(torch.device("cpu")):
        ...     layer(torch.rand(1, 8, 4, 4)).dtype
        torch.float32
    """
    with torch.autocast(device.type, torch.bfloat16):
        if device.type != "cpu" or not torch.is_grad_enabled():
            yield
        else:
            with _GroupsInFloat32():
                yield
