"""What becomes a graph: the way from one open exit to the next, and the whole network, as modules.

Each takes and returns flat tensors, samples first, and knows their names.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offramp.decide import Decider
from offramp.errors import NetworkError
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import Path, Shared, State, map_leaves, named_leaves, take, tensors
from offramp.onnx.manifest import LOGITS, SO_FAR, names
from offramp.policy import Policy
from offramp.runtime.runner import reads_outputs

# Needed to export a stage whose state has shared leaves.
torch.export.register_dataclass(Shared, serialized_type_name="offramp.networks.Shared")


class GraphModule(nn.Module):
    """A module with the names of its `inputs` and `outputs`, and `args`: inputs of an example."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    args: tuple[Tensor, ...]


class ExportedNetwork:
    """A network and a policy, of which only the exits in `kept` are left, the last among them."""

    def __init__(self, network: EarlyExitNetwork, policy: Policy, kept: Sequence[int]) -> None:
        self.network, self.kept = network, tuple(kept)
        self.head_reads = reads_outputs(network)
        thresholds = np.full(network.num_exits, np.inf)
        thresholds[list(self.kept)] = 0.0  # open, wherever exactly
        decider = Decider(policy.answer, policy.scorer, thresholds, reads_outputs=self.head_reads)
        self.needs_head = decider.needs_head

    @property
    def last(self) -> int:
        """The last exit."""
        return self.network.num_exits - 1

    def segments(self) -> Iterator[range]:
        """The exits from one that is left to the next, which ends each of the ranges."""
        first = 0
        for exit_index in self.kept:
            yield range(first, exit_index + 1)
            first = exit_index + 1


class SegmentModule(GraphModule):
    """All stages up to an exit, and the heads of that exit and of those on the way.

    The heads of closed exits on the way run only if something reads their logits. `state` is the
    state of an example before the first stage, `after` the one behind the last. What all samples
    share in a state must not depend on the batch.
    """

    def __init__(self, exported: ExportedNetwork, exits: range, state: State) -> None:
        super().__init__()
        self.exported, self.exits, self.template = exported, exits, state
        network, end = exported.network, exits[-1]
        self.stages = nn.ModuleList(network.stages[index] for index in exits)
        self.run = tuple(index for index in exits if index == end or exported.needs_head[index])
        self.heads = nn.ModuleDict({str(index): network.heads[index] for index in self.run})
        self.is_last = end == exported.last
        self.after = self._advanced()
        self.reads_logits = exits[0] > 0 and any(exported.head_reads[index] for index in self.run)
        leaves = tensors(state)
        self.args, self.inputs = (*leaves,), names("state", len(leaves))
        if self.reads_logits:
            so_far = torch.rand(len(leaves[0]), exits[0], network.num_classes)
            self.args, self.inputs = (*self.args, so_far), (*self.inputs, SO_FAR)
        self.outputs = (*names("next", 0 if self.is_last else len(tensors(self.after))), LOGITS)

    def forward(self, *flat: Tensor) -> tuple[Tensor, ...]:
        """The state behind the last stage, but for the end of the network, and the heads' logits.

        These are `[n, e, K]`, of the e heads that run.
        """
        given, found = iter(flat), list[Tensor]()
        state: State = map_leaves(lambda _: next(given), self.template)
        before = [next(given)] if self.reads_logits else []  # `[n, m, K]` each
        for exit_index, stage in zip(self.exits, self.stages, strict=True):
            state = stage(state)
            if str(exit_index) not in self.heads:
                continue
            reads = self.exported.head_reads[exit_index] and before
            logits = self.heads[str(exit_index)](state, torch.cat(before, 1) if reads else None)
            found.append(logits.float())
            before.append(found[-1].unsqueeze(1))
        outputs = [] if self.is_last else tensors(state)
        # Copies: an output of a graph must be neither one of its inputs nor another output.
        return tuple(each.clone() for each in (*outputs, torch.stack(found, 1)))

    @torch.no_grad()
    def _advanced(self) -> State:
        """The example's state after the stages; its shared parts must not depend on the batch."""
        after, fewer = self.template, take(self.template, torch.tensor([1]))
        for stage in self.stages:
            after, fewer = stage(after), stage(fewer)
        pairs = zip(named_leaves(after), named_leaves(fewer), strict=True)
        for (path, one), (_, other) in pairs:
            if isinstance(one, Shared) and not _same(one.value, other.value):
                raise NetworkError(
                    f"the state after stage {self.exits[-1]} cannot be exported: its shared part "
                    f"{list(path)} changes with the batch, and a graph keeps it fixed"
                )
        return after

    def paths(self) -> tuple[Path, ...]:
        """The keys and positions that lead to each tensor of the incoming state."""
        leaves = named_leaves(self.template)
        return tuple(path for path, leaf in leaves if isinstance(leaf, Tensor))


class WholeModule(GraphModule):
    """All stages and all heads, with the state behind every stage: what graphs are cut out of."""

    def __init__(self, network: EarlyExitNetwork, state: State) -> None:
        super().__init__()
        self.network, self.template = network, state
        self.args = tuple(tensors(state))
        self.inputs = names("state", len(self.args))
        found = list[str]()
        with torch.no_grad():
            for exit_index in range(network.num_exits - 1):
                state = network.advance(exit_index, state)
                found += names(f"after_{exit_index}", len(tensors(state)))
        exits = network.num_exits
        self.outputs = (*found, *names(LOGITS, exits), *names("answer", exits))

    def forward(self, *flat: Tensor) -> tuple[Tensor, ...]:
        """Every state but the last; logits of every exit as `[n, 1, K]`, and as `[n, K]`."""
        given, states, logits = iter(flat), list[Tensor](), list[Tensor]()
        answers = list[Tensor]()
        state: State = map_leaves(lambda _: next(given), self.template)
        for exit_index, head in enumerate(self.network.heads):
            state = self.network.advance(exit_index, state)
            if exit_index < self.network.num_exits - 1:
                states += tensors(state)
            reads = logits and getattr(head, "reads_logits", True)
            answers.append(head(state, torch.cat(logits, 1) if reads else None).float())
            logits.append(answers[-1].unsqueeze(1))
        return tuple(each.clone() for each in (*states, *logits, *answers))


class FullModule(GraphModule):
    """The network without exits: all stages that the last exit needs, and its head."""

    outputs = (LOGITS,)

    def __init__(self, exported: ExportedNetwork, state: State) -> None:
        super().__init__()
        self.network, self.template = exported.network, state
        self.reads = any(exported.head_reads)
        self.args = tuple(tensors(state))
        self.inputs = names("state", len(self.args))

    def forward(self, *flat: Tensor) -> tuple[Tensor]:
        """Logits `[n, K]` of the last exit; earlier heads run only if later ones read them."""
        given, logits = iter(flat), list[Tensor]()
        state: State = map_leaves(lambda _: next(given), self.template)
        for exit_index in range(self.network.last_start, self.network.num_exits):
            state = self.network.advance(exit_index, state)
            if self.reads or exit_index == self.network.num_exits - 1:
                so_far = torch.stack(logits, 1) if logits else None
                logits.append(self.network.head(exit_index, state, so_far).float())
        return (logits[-1],)


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - whatever is shared
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)
