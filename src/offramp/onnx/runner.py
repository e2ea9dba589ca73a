"""`OnnxRunner`: an export at work in ONNX Runtime, with the decisions of `Runner`."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offramp.errors import NetworkError
from offramp.networks.inputs import ImageInput, Inputs, TensorInput, TextInput
from offramp.networks.state import State, leaf_at
from offramp.onnx.graphs import open_graph, run_graph
from offramp.onnx.manifest import Manifest
from offramp.runtime.engine import StagedRunner, suggesting_batch_size
from offramp.runtime.inflight import Flight
from offramp.runtime.output import Verdict
from offramp.runtime.routes import Route


class OnnxRunner(StagedRunner[Route]):
    """Runs the graphs of an export stage by stage, and takes out the samples that stop.

    It needs neither the network nor the policy, and is used as a `Runner` is: with `stream`,
    `stats`, deadlines and `set_budget`. It decides as that does up to rounding, so that a sample
    can leave at another exit where its score is within rounding of a threshold. Unlike there,
    heads of closed exits run along, since they are part of the graphs.

    Args:
        folder: What `export` wrote.
        threads: Of ONNX Runtime; 0 for one per core.
        false_alarm_rate: Of the drift alarm in `stats`, over the whole stream.
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
        *,
        false_alarm_rate: float = 0.01,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        manifest = Manifest.read(folder)
        self.manifest = manifest
        plan = manifest.route(manifest.selected)
        super().__init__(plan, manifest.num_classes, false_alarm_rate, clock)
        self._sessions = [
            open_graph(Path(folder), stage, manifest.output_names(m), threads)
            for m, stage in enumerate(manifest.stages)
        ]
        self._selected = manifest.selected

    @property
    def thresholds(self) -> Tensor:
        """`[M]` float64, of the present operating point."""
        return self.manifest.points.thresholds[self._selected]

    def running(self, samples: int) -> ExitStack:
        """Inference mode, and an error that helps if memory ends."""
        modes = ExitStack()
        modes.enter_context(suggesting_batch_size(samples))
        modes.enter_context(torch.inference_mode())
        return modes

    def _plan_at(self, budget: float) -> Route:
        self._selected = self.manifest.points.for_budget(budget)
        return self.manifest.route(self._selected)

    def _begin(self, x: Any) -> State:  # noqa: ANN401
        """The tensors that the first graph takes."""
        inputs = self.manifest.inputs
        state = inputs.begin(_as_tensors(x))
        _check_shape(inputs, state)
        leaves = [leaf_at(state, path) for path in self.manifest.stages[0].state]
        return {"carried": self._named(0, [leaf.detach().cpu() for leaf in leaves])}

    def _named(self, m: int, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
        """What a graph takes. Texts keep their names, by which padding is found."""
        stage = self.manifest.stages[m]
        is_text = isinstance(self.manifest.inputs, TextInput)
        names = [str(path[0]) for path in stage.state] if is_text else stage.input_names
        return dict(zip(names, leaves, strict=False))

    def _advance(self, plan: Route, m: int, flight: Flight) -> Flight:
        """Run a graph. What it says about the samples travels with them, in their state."""
        stage, said = self.manifest.stages[m], flight.said
        carried = list(leaf_at(flight.state, ("carried",)).values())
        history = ((said.logits, stage.reads_logits), (said.answers, stage.reads_answers))
        read = [part[:, :m] for part, reads in history if reads and part is not None]
        outputs = run_graph(self._sessions[m], [*carried, *read])
        by_name = dict(zip(self.manifest.output_names(m), outputs, strict=True))
        for kept, name in ((said.logits, "logits"), (said.answers, "answer")):
            if kept is not None:
                kept[:, m] = by_name[name]
        after = [by_name.pop(name) for name in list(by_name) if name.startswith("next_")]
        following = self._named(m + 1, after) if after else {}
        del by_name["logits"]
        return flight.at({"carried": following, **by_name})

    def _verdict(self, plan: Route, m: int, flight: Flight, score: bool) -> Verdict:
        said: Any = flight.state
        return Verdict(said["answer"], said["score"] if score else None, said.get("confidence"))

    def _trim(self, state: State) -> State:
        (trimmed,) = self._each([state], lambda inner: [self.manifest.inputs.trim(inner[0])])
        return trimmed

    def align(self, states: Sequence[State]) -> list[State]:
        """As the network's inputs do it."""
        return self._each(states, self.manifest.inputs.align)

    def _each(
        self, states: Sequence[Any], change: Callable[[list[State]], list[State]]
    ) -> list[State]:
        """Change what the graphs carry; what they said is left as it is."""
        changed = change([state["carried"] for state in states])
        return [{**state, "carried": new} for state, new in zip(states, changed, strict=True)]


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
