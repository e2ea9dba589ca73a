"""`OnnxRunner`: an export at work in ONNX Runtime, deciding as `Runner` does."""

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offramp.errors import ConfigError, NetworkError
from offramp.machine import physical_cores
from offramp.networks.inputs import ImageInput, Inputs, TensorInput, TextInput
from offramp.networks.state import State, leaf_at
from offramp.onnx.graphs import open_graph, run_graph
from offramp.onnx.manifest import Manifest
from offramp.runtime.engine import StagedRunner
from offramp.runtime.inflight import InFlightBatch
from offramp.runtime.operating_point import OperatingPoint
from offramp.runtime.output import ExitOutput


class OnnxRunner(StagedRunner):
    """Runs the graphs of an export stage by stage and removes the samples that stop.

    It needs neither the network nor the policy and is used as a `Runner` is: with `stream`,
    `stats`, deadlines and `set_budget`. Its decisions are the same up to rounding: only a sample
    whose score lies within rounding of a threshold can leave at another exit. The heads of
    closed exits run as well, because they are part of the graphs.

    Args:
        folder: Folder that `export` wrote.
        threads: Threads of ONNX Runtime; by default one per physical core that the process may
            use, by its affinity and the quota of its container.
        false_alarm_rate: Probability of a false drift alarm in `stats`, over the whole stream.
        clock: Seconds, for deadlines.

    Attributes:
        manifest: The description of the export.
        threads: Threads of ONNX Runtime.

    Raises:
        ConfigError: `threads` is not positive.
        FileFormatError: The folder is foreign or damaged, or refers to files outside of it.
        MissingExtraError: The extra `onnx` is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        threads: int | None = None,
        *,
        false_alarm_rate: float = 0.01,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if threads is not None and threads < 1:
            raise ConfigError(f"`threads` must be at least 1, got {threads}")
        manifest = Manifest.read(folder)
        self.manifest = manifest
        self.threads = threads or physical_cores()
        super().__init__(
            manifest.operating_point(manifest.selected),
            manifest.num_classes,
            false_alarm_rate=false_alarm_rate,
            clock=clock,
        )
        self._folder = folder = Path(folder)
        names = [manifest.output_names(exit_index) for exit_index in range(len(manifest.stages))]
        self._sessions = [
            open_graph(folder, stage, stage.input_names, outputs, self.threads)
            for stage, outputs in zip(manifest.stages, names, strict=True)
        ]
        self._selected = manifest.selected

    @property
    def thresholds(self) -> Tensor:
        """`[M]` float64, at the present operating point."""
        return self.manifest.points.thresholds[self._selected]

    def full(self, x: Any) -> Tensor:  # noqa: ANN401 - a batch as the network takes it
        """The network without exits in ONNX Runtime, `[N, K]` float32, for comparison.

        Raises:
            ConfigError: The export was made without it, by `export(..., full=False)`.
        """
        carried: Any = leaf_at(self._begin(x), ("carried",))
        leaves = list(carried.values())
        with self._running(len(leaves[0])):
            (logits,) = run_graph(self._full, leaves)
        return logits

    @cached_property
    def _full(self) -> Any:  # noqa: ANN401 - opened when it is first asked for: it has all weights again
        graph = self.manifest.full
        if graph is None:
            raise ConfigError(
                f"{self._folder} was exported without the network without exits: export again "
                "with full=True"
            )
        inputs = self.manifest.stages[0].input_names
        return open_graph(self._folder, graph, inputs, ["logits"], self.threads)

    def _point_at(self, budget: float) -> OperatingPoint:
        self._selected = self.manifest.points.for_budget(budget)
        return self.manifest.operating_point(self._selected)

    def _begin(self, x: Any) -> State:  # noqa: ANN401
        """The tensors that the first graph takes, by name."""
        inputs = self.manifest.inputs
        state = inputs.begin(_as_tensors(x))
        _check_shape(inputs, state)
        leaves = [leaf_at(state, path) for path in self.manifest.stages[0].state]
        return {"carried": self._named(0, [leaf.detach().cpu() for leaf in leaves])}

    def _named(self, exit_index: int, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
        """The state that a graph takes. Texts keep their names, by which padding is found."""
        stage = self.manifest.stages[exit_index]
        is_text = isinstance(self.manifest.inputs, TextInput)
        names = [str(path[0]) for path in stage.state] if is_text else stage.input_names
        return dict(zip(names, leaves, strict=False))

    def _advance(self, exit_index: int, batch: InFlightBatch) -> InFlightBatch:
        """Run a graph. What its exit returns travels with the samples, in their state."""
        stage, history = self.manifest.stages[exit_index], batch.history
        carried = list(leaf_at(batch.state, ("carried",)).values())
        earlier = ((history.logits, stage.reads_logits), (history.answers, stage.reads_answers))
        read = [part[:, :exit_index] for part, reads in earlier if reads and part is not None]
        outputs = run_graph(self._sessions[exit_index], [*carried, *read])
        by_name = dict(zip(self.manifest.output_names(exit_index), outputs, strict=True))
        for kept, name in ((history.logits, "logits"), (history.answers, "answer")):
            if kept is not None:
                kept[:, exit_index] = by_name[name]
        after = [by_name.pop(name) for name in list(by_name) if name.startswith("next_")]
        following = self._named(exit_index + 1, after) if after else {}
        del by_name["logits"]
        return batch.with_state({"carried": following, **by_name})

    def _exit(self, exit_index: int, batch: InFlightBatch, score: bool) -> ExitOutput:
        returned: Any = batch.state
        scores = returned["score"] if score else None
        return ExitOutput(returned["answer"], scores, returned.get("confidence"))

    def _trim(self, state: State) -> State:
        (trimmed,) = self._each([state], lambda carried: [self.manifest.inputs.trim(carried[0])])
        return trimmed

    def _align(self, states: Sequence[State]) -> list[State]:
        return self._each(states, self.manifest.inputs.align)

    def _each(
        self, states: Sequence[Any], change: Callable[[list[State]], list[State]]
    ) -> list[State]:
        """Change what the graphs carry; what their exits returned stays as it is."""
        changed = change([state["carried"] for state in states])
        return [{**state, "carried": new} for state, new in zip(states, changed, strict=True)]


def _as_tensors(x: Any) -> Any:  # noqa: ANN401
    if isinstance(x, dict):
        return {key: torch.as_tensor(value) for key, value in x.items()}
    return torch.as_tensor(x)


def _check_shape(inputs: Inputs, state: Any) -> None:  # noqa: ANN401
    """Raise unless the samples have the size that the graphs were made for."""
    expected: tuple[int, ...] | None = None
    if isinstance(inputs, ImageInput):
        expected = (inputs.channels, inputs.height, inputs.width)
    if isinstance(inputs, TensorInput):
        expected = inputs.shape
    if expected is not None and tuple(state.shape[1:]) != expected:
        raise NetworkError(
            f"this export takes samples of the shape {list(expected)}, got "
            f"{list(state.shape[1:])}: resize them, or export the network for that size"
        )
