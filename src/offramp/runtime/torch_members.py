"""Models of a cascade that are modules of torch: how they are called, and what they count."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offramp.arrays import Array, as_numpy, as_tensor
from offramp.costs import Costs
from offramp.networks.macs import count_macs, counting
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import State, evaluating, take
from offramp.runtime.members import Member, ModelRun, Response, responses_from_logits


def called(model: nn.Module, inputs: Any) -> Any:  # noqa: ANN401 - whatever it takes and returns
    """What a module returns for a batch, in eval mode; it is given tensors for arrays."""
    with torch.inference_mode(), evaluating(model):
        return model(_with_tensors(inputs))


def _with_tensors(inputs: Any) -> Any:  # noqa: ANN401
    """Tensors for the arrays of a batch, also inside of a mapping."""
    if isinstance(inputs, Mapping):
        return {name: _with_tensors(values) for name, values in inputs.items()}
    return as_tensor(inputs) if isinstance(inputs, np.ndarray) else inputs


def counted(model: nn.Module, inputs: Any) -> Costs:  # noqa: ANN401
    """The multiply-accumulates of a module; a plain one is run on a batch of inputs for that."""
    if isinstance(model, EarlyExitNetwork):
        return count_macs(model)
    with counting() as counter:
        samples = len(called(model, inputs))
    return Costs((counter.get_total_flops() / 2 / samples,), (0.0,))


class NetworkRun(ModelRun):
    """An `EarlyExitNetwork`, whose state shrinks with the batch."""

    def __init__(self, member: Member, inputs: Any, rows: Array) -> None:  # noqa: ANN401
        super().__init__(member, inputs, rows)
        self._state: State | None = None
        self._logits: Tensor | None = None
        self._next = 0

    def batch(self, stage: int, rows: Array) -> list[Response]:
        """Run up to a stage for these items; some of those before may be gone."""
        network = self.member.model
        with torch.inference_mode(), evaluating(network):
            if self._state is None:
                self._state = network.begin(self.inputs)
            if len(rows) < len(self.rows):
                kept = np.searchsorted(self.rows, rows)
                self._state, self.rows = take(self._state, kept), rows
                self._logits = None if self._logits is None else take(self._logits, kept)
            while self._next <= stage:
                self._state = network.advance(self._next, self._state)
                logits = network.head(self._next, self._state, self._logits)[:, None]
                earlier = [] if self._logits is None else [self._logits]
                self._logits = torch.cat([*earlier, logits], dim=1)
                self._next += 1
            assert self._logits is not None
            return responses_from_logits(as_numpy(self._logits[:, -1]))
