"""What becomes a graph: stages, an exit, the confidence and the whole network, as modules.

Each takes and returns flat tensors, samples first, and knows their names.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offramp.answer_confidence import Confidence
from offramp.answers import CurrentExit
from offramp.errors import NetworkError
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import Path, Shared, State, map_leaves, named_leaves, take
from offramp.onnx.manifest import SO_FAR, names
from offramp.policy import Policy
from offramp.runtime.operating_point import answer_and_score, needed_heads


class GraphModule(nn.Module):
    """A module with the names of its `inputs` and `outputs`, and `args`: inputs of an example."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    args: tuple[Tensor, ...]


class ExportedNetwork:
    """A network and a policy, of which only the exits in `kept` are left, the last among them."""

    def __init__(self, network: EarlyExitNetwork, policy: Policy, kept: Sequence[int]) -> None:
        self.network, self.policy, self.kept = network, policy, tuple(kept)
        reads = [bool(getattr(head, "reads_logits", True)) for head in network.heads]
        self.head_reads = [False, *reads[1:]]  # there is nothing before the first
        is_open = [exit_index in self.kept for exit_index in range(network.num_exits)]
        self.needs_head = needed_heads(policy, is_open, self.head_reads)
        plain = type(policy.answer) is CurrentExit
        # whether scores read the answers at earlier exits, where these are not the logits
        self.keeps_answers = policy.scorer.reads_history and not plain

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

    def logits_so_far(self, exit_index: int, samples: int) -> Tensor:
        """An example `[n, m, K]` of what the exits before one have returned."""
        return torch.rand(samples, exit_index, self.network.num_classes)


class StagesModule(GraphModule):
    """All stages up to an exit, and the heads of closed exits that something reads later.

    `state` is that of an example before the first stage, `after` the one behind the last. What
    all samples share in a state must not depend on the batch.
    """

    def __init__(self, exported: ExportedNetwork, exits: range, state: State) -> None:
        super().__init__()
        self.exported, self.exits, self.template = exported, exits, state
        self.stages = nn.ModuleList(exported.network.stages[index] for index in exits)
        self.closed = [index for index in exits[:-1] if exported.needs_head[index]]
        self.heads = nn.ModuleDict({str(m): exported.network.heads[m] for m in self.closed})
        self.returns_answers = bool(self.closed) and exported.keeps_answers
        reads = [exported.head_reads[index] for index in self.closed]
        reads.append(self.returns_answers and exported.policy.answer.reads_history)
        self.reads_logits = exits[0] > 0 and any(reads)
        self.after = self._advanced()
        leaves, carried = tensors(state), len(tensors(self.after))
        so_far = [exported.logits_so_far(exits[0], len(leaves[0]))] * self.reads_logits
        self.args = (*leaves, *so_far)
        self.inputs = (*names("state", len(leaves)), *SO_FAR[: self.reads_logits])
        extra = ("logits", "answers")[: bool(self.closed) + self.returns_answers]
        self.outputs = (*names("next", carried), *extra)

    def forward(self, *flat: Tensor) -> tuple[Tensor, ...]:
        """The state behind the last stage, and `[n, c, K]` logits and answers at closed exits."""
        given = iter(flat)
        state: State = map_leaves(lambda _: next(given), self.template)
        before = next(given) if self.reads_logits else None
        logits, answers = list[Tensor](), list[Tensor]()
        for exit_index, stage in zip(self.exits, self.stages, strict=True):
            state = stage(state)
            if exit_index not in self.closed:
                continue
            read = before if self.exported.head_reads[exit_index] else None
            logits.append(self.heads[str(exit_index)](state, read).float())
            before = with_latest(before, logits[-1], exit_index)
            if self.returns_answers:
                answers.append(self.exported.policy.answer.answer_at(before))
        stacked = [torch.stack(part, 1) for part in (logits, answers) if part]
        return distinct([*tensors(state), *stacked])

    @torch.no_grad()
    def _advanced(self) -> State:
        """The example's state after the stages; its shared parts must not depend on the batch."""
        after, fewer = self.template, take(self.template, torch.tensor([1]))
        for stage in self.stages:
            after, fewer = stage(after), stage(fewer)
        pairs = zip(named_leaves(after), named_leaves(fewer), strict=True)
        for (path, one), (_, other) in pairs:
            if isinstance(one, Shared) and not _same(one.value, other.value):  # type: ignore[union-attr]
                raise NetworkError(
                    f"the state after stage {self.exits[-1]} cannot be exported: its shared part "
                    f"{list(path)} changes with the batch, and a graph keeps it fixed"
                )
        return after

    def paths(self) -> tuple[Path, ...]:
        """The keys and positions that lead to each tensor of the incoming state."""
        leaves = named_leaves(self.template)
        return tuple(path for path, leaf in leaves if isinstance(leaf, Tensor))


class ExitModule(GraphModule):
    """The head, the answer and the scorer of one exit, given the state of an example there."""

    def __init__(self, exported: ExportedNetwork, exit_index: int, state: State) -> None:
        super().__init__()
        self.exported, self.exit_index, self.template = exported, exit_index, state
        self.head = exported.network.heads[exit_index]
        policy, self.scores = exported.policy, exit_index < exported.last
        looks_back = policy.scorer.reads_history and self.scores
        reads = exported.head_reads[exit_index], policy.answer.reads_history, looks_back
        self.reads_logits = exit_index > 0 and any(reads)
        self.reads_answers = exit_index > 0 and looks_back and exported.keeps_answers
        leaves = tensors(state)
        # Separate tensors: one given twice would become one input.
        read = range(self.reads_logits + self.reads_answers)
        self.args = (*leaves, *(exported.logits_so_far(exit_index, len(leaves[0])) for _ in read))
        self.inputs = (*names("state", len(leaves)), *SO_FAR[: len(read)])
        self.outputs = ("logits", "answer", "score")[: 2 + self.scores]

    def forward(self, *flat: Tensor) -> tuple[Tensor, ...]:
        """Logits and answer `[n, K]` and, except at the last exit, scores `[n]`."""
        given = iter(flat)
        state: State = map_leaves(lambda _: next(given), self.template)
        before = next(given) if self.reads_logits else None
        earlier = next(given) if self.reads_answers else None
        read = before if self.exported.head_reads[self.exit_index] else None
        logits = self.head(state, read).float()
        so_far = with_latest(before, logits, self.exit_index)
        answer, scores = answer_and_score(self.exported.policy, so_far, earlier, self.scores)
        return distinct([logits, answer] + ([] if scores is None else [scores]))


class ConfidenceModule(GraphModule):
    """The probability `[n]` that answers `[n, K]` at exits `[n]`, scored `[n]`, are right."""

    inputs, outputs = ("answer", "exit", "score"), ("confidence",)

    def __init__(self, confidence: Confidence, num_classes: int) -> None:
        super().__init__()
        self.confidence = confidence
        self.args = torch.rand(3, num_classes), torch.zeros(3, dtype=torch.long), torch.rand(3)

    def forward(self, *flat: Tensor) -> tuple[Tensor]:
        """Where there was no stop score, it is not finite."""
        return (self.confidence.probability(*flat),)


class FullModule(GraphModule):
    """The network without exits: all stages and the last head."""

    outputs = ("logits",)

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
        for exit_index in range(self.network.num_exits):
            state = self.network.advance(exit_index, state)
            if self.reads or exit_index == self.network.num_exits - 1:
                so_far = torch.stack(logits, 1) if logits else None
                logits.append(self.network.head(exit_index, state, so_far).float())
        return (logits[-1],)


def with_latest(before: Tensor | None, latest: Tensor, exit_index: int) -> Tensor:
    """Logits `[n, m+1, K]`, the latest last; they stand in for earlier ones that nobody reads."""
    now = latest.unsqueeze(1)
    if before is None:
        return now.expand(-1, exit_index + 1, -1)
    return torch.cat([before, now], dim=1)


def distinct(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copies: an output of a graph must be neither one of its inputs nor another output."""
    return tuple(each.clone() for each in outputs)


def tensors(state: State) -> list[Tensor]:
    """The tensors of a state, in order."""
    return [leaf for _, leaf in named_leaves(state) if isinstance(leaf, Tensor)]


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - whatever is shared
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)
