"""The tensors of a network: their fingerprint, stored in 8 bits, and put back."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from offramp.errors import FileFormatError

_SCALE = ".int8_scale"  # follows the name of a weight that is stored as int8


def fingerprint(module: nn.Module) -> str:
    """A hash of all weights and buffers, and of their names, types and shapes."""
    return hash_of(distinct_tensors(module))


def hash_of(tensors: dict[str, Tensor]) -> str:
    """A hash of named tensors, their types and shapes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        plain = tensor.detach().cpu().contiguous().flatten()
        digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def distinct_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The state dict, with only the first name of a tensor that is used in several places."""
    seen: set[int] = set()
    result = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            result[name] = tensor
    return result


def to_int8(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices and kernels as int8 with a scale per row, all else as it is."""
    stored = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or not tensor.is_floating_point():
            stored[name] = tensor
            continue
        rows = tensor.detach().float().flatten(1)
        scale = rows.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
        stored[name] = (rows / scale).round().to(torch.int8).view(tensor.shape)
        stored[name + _SCALE] = scale.squeeze(1)
    return stored


def from_int8(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """What `to_int8` stands for, in float32; other tensors as they are."""
    tensors = {}
    for name, tensor in stored.items():
        scale = stored.get(name + _SCALE)
        if scale is not None:
            tensor = (tensor.flatten(1).float() * scale[:, None]).view(tensor.shape)
        if not name.endswith(_SCALE):
            tensors[name] = tensor
    return tensors


def load_tensors(network: nn.Module, tensors: dict[str, Tensor], folder: str | Path) -> None:
    """Put the file's tensors into the network, in the file's precision."""
    targets = distinct_tensors(network)
    for name in sorted(targets.keys() | tensors.keys()):
        there, here = (_kind(each.get(name)) for each in (tensors, targets))
        if there != here:
            raise FileFormatError(
                f"{folder} does not fit the backbone: {name} is {there} in the file and {here} in "
                "the network"
            )
    for name, tensor in tensors.items():
        # a copy, since the file is only mapped into memory.
        targets[name].data = tensor.to(targets[name].device, copy=True)


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "missing"
    return f"{'floats' if tensor.is_floating_point() else 'whole numbers'} {list(tensor.shape)}"
