"""Steps on the arrays of a ledger: names as bytes, samples that end, stages that are left."""

import hashlib
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offramp.costs import Costs, SampleCosts


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


def costs_by_sample(
    costs: Any,  # noqa: ANN401 - checked where costs are made
    lengths: Tensor | None,
    samples: int,
) -> SampleCosts | None:
    """Costs sample by sample, or None where they are the same for all."""
    if isinstance(costs, SampleCosts):
        return costs if lengths is None else costs.until(lengths)
    if lengths is None and (isinstance(costs, Costs) or np.ndim(costs) != 2):
        return None
    table = torch.as_tensor(costs.cumulative if isinstance(costs, Costs) else costs).double()
    table = table.expand(samples, -1) if table.ndim == 1 else table
    unit = costs.unit if isinstance(costs, Costs) else "relative"
    return SampleCosts.from_cumulative(carried_on(table, lengths), unit)


def carried_on(values: Tensor, lengths: Tensor | None) -> Tensor:
    """What a sample `[N, M, ...]` had last stands at the exits after its end, too."""
    if lengths is None:
        return values
    place = torch.arange(values.shape[1]).minimum(lengths[:, None] - 1)  # [N, M]
    return values[torch.arange(len(values))[:, None], place]
