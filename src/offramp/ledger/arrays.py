"""Steps on the arrays of a ledger: names as bytes, samples that end, stages that are left."""

import hashlib
import json

import torch
from torch import Tensor


def digest(content: str | bytes) -> str:
    """A fingerprint."""
    raw = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def ids_to_bytes(ids: list[str] | list[int]) -> Tensor:
    """Names as a tensor, for a file."""
    return torch.frombuffer(bytearray(json.dumps(ids).encode()), dtype=torch.uint8)


def renumbered(outputs: Tensor) -> Tensor:
    """Outputs of answers where only some stages are left: the first of those with each answer."""
    said = outputs[..., 1]
    first = (said[:, :, None] == said[:, None, :]).int().argmax(dim=2)
    return torch.cat([outputs[..., :1], first[..., None].to(outputs.dtype), outputs[..., 2:]], 2)


def bytes_to_ids(raw: Tensor | None) -> list[str] | list[int] | None:
    """The names of which `ids_to_bytes` made a tensor."""
    return None if raw is None else list(json.loads(raw.numpy().tobytes()))
