"""Steps on the arrays of a ledger: names as bytes, stages that are left."""

import hashlib
import json

import numpy as np

from offramp.arrays import Array


def digest(content: str | bytes) -> str:
    """A fingerprint."""
    raw = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def ids_to_bytes(ids: list[str] | list[int]) -> Array:
    """Names as an array, for a file."""
    return np.frombuffer(json.dumps(ids).encode(), dtype=np.uint8)


def bytes_to_ids(raw: Array | None) -> list[str] | list[int] | None:
    """The names of which `ids_to_bytes` made an array."""
    return None if raw is None else list(json.loads(raw.tobytes()))


def renumbered(outputs: Array) -> Array:
    """Outputs of answers where only some stages are left: the first of those with each answer."""
    said = outputs[..., 1]
    first = (said[:, :, None] == said[:, None, :]).argmax(axis=2)
    parts = [outputs[..., :1], first[..., None], outputs[..., 2:]]
    return np.concatenate(parts, axis=2, dtype=outputs.dtype)
