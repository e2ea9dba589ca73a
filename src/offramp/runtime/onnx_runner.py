"""`OnnxRunner`: an export at work in ONNX Runtime, with the decisions of `Runner`."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offramp.errors import NetworkError
from offramp.networks.inputs import ImageInput, Inputs, TensorInput, TextInput
from offramp.networks.state import leaf_at
from offramp.runtime.flight import unbroken
from offramp.runtime.graphs import open_graph, run_graph
from offramp.runtime.manifest import Manifest
from offramp.runtime.output import Answered, RunOutput
from offramp.runtime.runner import checked_deadline
from offramp.thresholds.rule import rounded_up, stops

__all__ = ["OnnxRunner"]


class OnnxRunner:
    """Runs the graphs of an export stage by stage, and takes out the samples that stop.

    It needs neither the network nor the policy, and decides as `Runner` does: up to rounding,
    so that a sample can leave at another exit where its score is within rounding of a threshold.
    Unlike there, heads of closed exits run along, since they are part of the graphs.

    Args:
        folder: What `export` wrote.
        threads: Of ONNX Runtime; 0 for one per core.
        clock: Seconds, for deadlines.

    Attributes:
        manifest: What the export says about itself.

    Raises:
        FileFormatError: The folder is foreign, damaged, or asks for files that are not its own.
        MissingExtraError: The extra `onnx` is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        threads: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.manifest = Manifest.read(folder)
        self._sessions = [
            open_graph(Path(folder), stage, self.manifest.output_names(m), threads)
            for m, stage in enumerate(self.manifest.stages)
        ]
        self._clock = clock
        self._choose(self.manifest.selected)

    @property
    def thresholds(self) -> Tensor:
        """`[M]` float64, of the present operating point."""
        return self.manifest.points.thresholds[self._selected]

    def set_budget(self, budget: float) -> None:
        """Move to another of the policy's operating points.

        Args:
            budget: Mean cost as a share of the network without exits, in (0, 1].

        Raises:
            BudgetError: No operating point is that cheap; the message says what is possible.
        """
        self._choose(self.manifest.points.for_budget(budget))

    def _choose(self, point: int) -> None:
        self._selected = point
        self._limits = rounded_up(self.thresholds, torch.float32)

    def __call__(self, x: Any, deadline: float | None = None) -> RunOutput:  # noqa: ANN401
        """Answer a batch.

        Args:
            x: A batch as the network takes it: a tensor or an array, or a mapping of them.
            deadline: Seconds after which everything is answered with the exit it has reached;
                it can be overrun by one stage.

        Returns:
            One row per sample, in order. A sample with NaN or infinite inputs fails alone.

        Raises:
            NetworkError: The batch is not what the network takes.
        """
        until, limits = self._clock() + checked_deadline(deadline), self._limits
        leaves = self._begin(x)
        answered = Answered(len(leaves[0]), self.manifest.num_classes)
        confidence = torch.full((len(leaves[0]),), torch.nan)
        group = _Group(torch.arange(len(leaves[0])), leaves, self._no_history(len(leaves[0])))
        healthy = unbroken(leaves)
        group = self._trimmed(group if healthy is None else group.take(healthy), 0)
        for m in range(len(self._sessions)):
            if not len(group):
                break
            group, said = self._run(m, group)
            chosen = _chosen(said, limits[m])
            stop = torch.ones_like(chosen) if self._clock() >= until else chosen
            answered.forced[group.rows[stop & ~chosen]] = True
            if stop.any():
                rows, last = group.rows[stop], said.take(stop)
                score = math.inf if last.score is None else last.score
                answered.write(rows, last.answer, m, score)
                if last.confidence is not None:
                    confidence[rows] = last.confidence
                group = self._trimmed(group.take((~stop).nonzero().squeeze(1)), m + 1)
        return answered.finished(self.manifest.costs, confidence)

    def _begin(self, x: Any) -> list[Tensor]:  # noqa: ANN401
        """The tensors that the first graph takes."""
        inputs = self.manifest.inputs
        state = inputs.begin(_as_tensors(x))
        _check_shape(inputs, state)
        leaves = [leaf_at(state, path) for path in self.manifest.stages[0].state]
        return [leaf.detach().cpu().contiguous() for leaf in leaves]

    def _no_history(self, samples: int) -> list[Tensor]:
        """Room for logits and answers `[n, M, K]`, as far as any graph reads them."""
        stages = self.manifest.stages
        shape = (samples, len(stages), self.manifest.num_classes)
        kept = any(s.reads_logits for s in stages) + any(s.reads_answers for s in stages)
        return [torch.full(shape, torch.nan) for _ in range(kept)]

    def _run(self, m: int, group: "_Group") -> tuple["_Group", "_Said"]:
        """The same samples a stage further, and what was said about them."""
        stage = self.manifest.stages[m]
        wanted = [stage.reads_logits, stage.reads_answers]
        # Answers are only ever kept beside logits.
        history = [part[:, :m].contiguous() for part in group.history]
        read = [part for part, reads in zip(history, wanted, strict=False) if reads]
        outputs = run_graph(self._sessions[m], [*group.leaves, *read])
        names = self.manifest.output_names(m)
        by_name = dict(zip(names, outputs, strict=True))
        said = _Said(by_name["answer"], by_name.get("score"), by_name.get("confidence"))
        for kept, new in zip(group.history, (by_name["logits"], said.answer), strict=False):
            kept[:, m] = new
        carried = [out for name, out in by_name.items() if name.startswith("next_")]
        return replace(group, leaves=carried), said

    def _trimmed(self, group: "_Group", m: int) -> "_Group":
        """Without columns that are padding for all who stay."""
        inputs = self.manifest.inputs
        if not len(group) or not isinstance(inputs, TextInput) or m == len(self._sessions):
            return group
        names = [str(path[0]) for path in self.manifest.stages[m].state]
        state: Any = inputs.trim(dict(zip(names, group.leaves, strict=True)))
        return replace(group, leaves=[state[name].contiguous() for name in names])


@dataclass(frozen=True, eq=False)
class _Said:
    """What a graph says about n samples."""

    answer: Tensor
    score: Tensor | None
    confidence: Tensor | None

    def take(self, mask: Tensor) -> "_Said":
        rest = (None if part is None else part[mask] for part in (self.score, self.confidence))
        return _Said(self.answer[mask], *rest)


@dataclass(frozen=True, eq=False)
class _Group:
    """Samples on their way: where their answers go, their state, and what was said so far."""

    rows: Tensor
    leaves: list[Tensor]
    history: list[Tensor]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Tensor) -> "_Group":
        leaves = [leaf.index_select(0, index) for leaf in self.leaves]
        return _Group(self.rows[index], leaves, [part[index] for part in self.history])


def _chosen(said: _Said, limit: Tensor) -> Tensor:
    """Who stops by the policy's own choice, bool `[n]`: all of them at the last exit."""
    if said.score is None:
        return torch.ones(len(said.answer), dtype=torch.bool)
    return stops(said.score, limit)


def _as_tensors(x: Any) -> Any:  # noqa: ANN401
    if isinstance(x, dict):
        return {key: torch.as_tensor(value) for key, value in x.items()}
    return torch.as_tensor(x)


def _check_shape(inputs: Inputs, state: Any) -> None:  # noqa: ANN401
    """A graph keeps the size of the images that it was made with."""
    expected: tuple[int, ...] | None = None
    if isinstance(inputs, ImageInput):
        expected = (inputs.channels, inputs.height, inputs.width)
    if isinstance(inputs, TensorInput):
        expected = inputs.shape
    if expected is not None and tuple(state.shape[1:]) != expected:
        raise NetworkError(
            f"this export takes samples of the shape {list(expected)}, got "
            f"{list(state.shape[1:])}: resize them, or export the network for their size"
        )
