"""What becomes a graph: a segment, the confidence and the whole network, as modules.

Each takes and returns flat tensors, samples first, and knows their names.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offramp.answers import CurrentExit
from offramp.confidence import Confidence
from offramp.errors import NetworkError
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import Path, Shared, State, map_leaves, named_leaves, take, tensors
from offramp.onnx.manifest import SO_FAR, names
from offramp.policy import Policy
from offramp.runtime.runner import heads_to_run
from offramp.scorers import History

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
        self.network, self.policy, self.kept = network, policy, tuple(kept)
        reads = [bool(getattr(head, "reads_logits", True)) for head in network.heads]
        self.head_reads = [False, *reads[1:]]  # there is nothing before the first
        thresholds = torch.full((network.num_exits,), torch.inf)
        thresholds[list(self.kept)] = 0.0  # open, wherever exactly
        self.needs_head = heads_to_run(policy, thresholds, self.head_reads)
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

    def score_reads_earlier(self, exit_index: int) -> bool:
        """Whether the stop score at an exit depends on the exits before it."""
        scored = exit_index in self.kept and exit_index < self.last
        return scored and self.policy.scorer.reads_history

    def reads_earlier(self, exit_index: int) -> bool:
        """Whether anything at an exit reads the logits of those before it."""
        answers = self.policy.answer.reads_history and self.needs_head[exit_index]
        return self.head_reads[exit_index] or answers or self.score_reads_earlier(exit_index)

    def logits_so_far(self, exit_index: int, samples: int) -> Tensor:
        """An example `[n, m, K]` of what the exits before one have returned."""
        return torch.rand(samples, exit_index, self.network.num_classes)


class SegmentModule(GraphModule):
    """All stages up to an exit, and that exit: head, answer and scorer.

    The heads of closed exits on the way run only if something reads their logits. `state` is that
    of an example before the first stage, `after` the one behind the last. What all samples share
    in a state must not depend on the batch.
    """

    def __init__(self, exported: ExportedNetwork, exits: range, state: State) -> None:
        super().__init__()
        self.exported, self.exits, self.template = exported, exits, state
        network, end = exported.network, exits[-1]
        self.stages = nn.ModuleList(network.stages[index] for index in exits)
        run = [index for index in exits if index == end or exported.needs_head[index]]
        self.heads = nn.ModuleDict({str(index): network.heads[index] for index in run})
        self.is_last = end == exported.last
        self.after = self._advanced()
        self.returns_logits = any(map(exported.reads_earlier, range(end + 1, exported.last + 1)))
        self.returns_answers = self.returns_logits and exported.keeps_answers
        earlier = exits[0] > 0
        self.reads_logits = earlier and any(map(exported.reads_earlier, run))
        self.reads_answers = (
            earlier and exported.keeps_answers and exported.score_reads_earlier(end)
        )
        leaves, read = tensors(state), range(self.reads_logits + self.reads_answers)
        # Separate tensors: one given twice would become one input.
        so_far = [exported.logits_so_far(exits[0], len(leaves[0])) for _ in read]
        self.args = (*leaves, *so_far)
        self.inputs = (*names("state", len(leaves)), *SO_FAR[: len(read)])
        carried = 0 if self.is_last else len(tensors(self.after))
        kept = ("logits", "answers")[: self.returns_logits + self.returns_answers]
        exit_outputs = ("answer", "score")[: 2 - self.is_last]
        self.outputs = (*names("next", carried), *kept, *exit_outputs)

    def forward(self, *flat: Tensor) -> tuple[Tensor, ...]:
        """What the outputs' names say.

        That is the state behind the last stage, except at the end of the network; logits and
        answers `[n, c, K]` of all c exits, if something reads them later; the answer `[n, K]`;
        and, except at the end, its stop scores `[n]`.
        """
        given = iter(flat)
        state: State = map_leaves(lambda _: next(given), self.template)
        before = next(given) if self.reads_logits else None
        earlier = next(given) if self.reads_answers else None
        logits, answers, policy = list[Tensor](), list[Tensor](), self.exported.policy
        answer, scores = torch.empty(0), None
        for exit_index, stage in zip(self.exits, self.stages, strict=True):
            state = stage(state)
            if str(exit_index) not in self.heads:
                continue
            read = before if self.exported.head_reads[exit_index] else None
            logits.append(self.heads[str(exit_index)](state, read).float())
            before = with_latest(before, logits[-1], exit_index)
            scored = exit_index == self.exits[-1] and not self.is_last
            answer, scores = answer_and_score(policy, before, earlier, scored)
            answers.append(answer)
            earlier = with_latest(earlier, answer, exit_index)
        outputs = [] if self.is_last else tensors(state)
        outputs += [torch.stack(logits, 1)] if self.returns_logits else []
        outputs += [torch.stack(answers, 1)] if self.returns_answers else []
        outputs += [answer] if scores is None else [answer, scores]
        # Copies: an output of a graph must be neither one of its inputs nor another output.
        return tuple(each.clone() for each in outputs)

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
    """The network without exits: all stages that the last exit needs, and its head."""

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
        for exit_index in range(self.network.last_start, self.network.num_exits):
            state = self.network.advance(exit_index, state)
            if self.reads or exit_index == self.network.num_exits - 1:
                so_far = torch.stack(logits, 1) if logits else None
                logits.append(self.network.head(exit_index, state, so_far).float())
        return (logits[-1],)


def answer_and_score(
    policy: Policy, logits: Tensor, earlier: Tensor | None, score: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Apply a policy's answer and scorer at one exit: tensors in, tensors out.

    Takes the logits `[n, m+1, K]` of the exits so far and the answers `[n, m, K]` before this one,
    which may be anything and None if nothing reads them. Returns the logits to answer with
    `[n, K]`, and the stop scores `[n]` or, at the last exit or if not wanted, None.
    """
    answer = policy.answer.answer_at(logits)
    if not score:
        return answer, None
    answers = logits
    if type(policy.answer) is not CurrentExit:
        now = answer.unsqueeze(1)
        answers = now.expand_as(logits) if earlier is None else torch.cat([earlier, now], dim=1)
    return answer, policy.scorer.score_at(History(logits, answers)).float()


def with_latest(before: Tensor | None, latest: Tensor, exit_index: int) -> Tensor:
    """Logits `[n, m+1, K]`, the latest last; they stand in for earlier ones that nothing reads."""
    now = latest.unsqueeze(1)
    if before is None:
        return now.expand(-1, exit_index + 1, -1)
    return torch.cat([before, now], dim=1)


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - whatever is shared
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)
