"""One ONNX graph for a single sample: the graphs of all stages, each inside an `If` of the last.

A stage's graph is put into the branch that is run where the sample has not stopped before, so that
a program that knows nothing of exits skips what need not run. It is made of the graphs that an
export has written already, so that it says what they say.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from offramp.extras import require
from offramp.onnx.manifest import StageFile

OUTPUTS = ("answer", "exit", "score", "confidence")


def nested_graph(
    contents: Sequence[bytes], stages: Sequence[StageFile], limits: Tensor, has_confidence: bool
) -> bytes:
    """Put the graphs of an export into one another.

    The result takes `state_0`, ... of one sample as the first graph does, and `thresholds` `[M]`,
    which has a default. It gives `answer` `[1, K]`, `exit` `[1]`, `score` `[1]` (infinite at the
    last exit) and, where there is one, `confidence` `[1]`.

    Args:
        contents: The graph of each stage, as it was written.
        stages: What the description says about them.
        limits: `[M]` float32, the thresholds of the chosen operating point, rounded up.
        has_confidence: Whether the graphs give a confidence.
    """
    onnx = require("onnx", extra="onnx")
    models = [onnx.load_model_from_string(content) for content in contents]
    nest = _Nest(onnx, models, stages, OUTPUTS if has_confidence else OUTPUTS[:-1])
    numpy = require("onnx.numpy_helper", extra="onnx")
    constants = [numpy.from_array(limits.numpy(), "thresholds")]
    if any(stage.reads_logits or stage.reads_answers for stage in stages):
        constants.append(numpy.from_array(limits.new_tensor([1]).long().numpy(), "second_axis"))
    first = models[0].graph.input
    default = onnx.helper.make_tensor_value_info(
        "thresholds", onnx.TensorProto.FLOAT, list(limits.shape)
    )
    graph = onnx.helper.make_graph(
        nest.nodes(0),
        "single",
        [*first, default],
        nest.typed(0),
        initializer=[*constants, *nest.initializers],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=models[0].opset_import, ir_version=models[0].ir_version
    )
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


class _Nest:
    """Stages inside stages. What stage m calls `x` is `m/x`, and what it leads to `out.m/x`."""

    def __init__(
        self,
        onnx: Any,  # noqa: ANN401 - the module
        models: Sequence[Any],
        stages: Sequence[StageFile],
        outputs: Sequence[str],
    ) -> None:
        self.stages, self.outputs = stages, outputs
        self._onnx, self._node = onnx, onnx.helper.make_node
        compose = require("onnx.compose", extra="onnx")
        self._graphs = [compose.add_prefix(model, f"{m}/").graph for m, model in enumerate(models)]
        # In the outermost graph, where all of those inside see them.
        self.initializers = [each for graph in self._graphs for each in graph.initializer]

    def nodes(self, m: int) -> list[Any]:
        """Everything from stage m on."""
        inside = [*self._inputs(m), *self._graphs[m].node]
        if m == len(self._graphs) - 1:
            return [*inside, *self._leaving(m, "out")]
        graph = self._onnx.helper.make_graph
        stay = graph(self._leaving(m, "stop"), f"stop.{m}", [], self.typed(m, "stop"))
        on = graph(self.nodes(m + 1), f"stage.{m + 1}", [], self.typed(m + 1))
        return [
            *inside,
            self._node("Constant", [], [f"{m}/number"], value_int=m),
            self._node("Gather", ["thresholds", f"{m}/number"], [f"{m}/threshold"]),
            self._node("GreaterOrEqual", [f"{m}/score", f"{m}/threshold"], [f"{m}/stop"]),
            self._node(
                "If",
                [f"{m}/stop"],
                [self._name(m, "out", output) for output in self.outputs],
                then_branch=stay,
                else_branch=on,
            ),
        ]

    def typed(self, m: int, where: str = "out") -> list[Any]:
        """Names and types of what comes out of stage m and those inside it."""
        kinds, make = self._onnx.TensorProto, self._onnx.helper.make_tensor_value_info
        shapes = {"answer": [1, None]}
        return [
            make(
                self._name(m, where, output),
                kinds.INT64 if output == "exit" else kinds.FLOAT,
                shapes.get(output, [1]),
            )
            for output in self.outputs
        ]

    def _name(self, m: int, where: str, output: str) -> str:
        return output if (m, where) == (0, "out") else f"{where}.{m}/{output}"

    def _inputs(self, m: int) -> list[Any]:
        """What stage m takes, from the stages around it."""
        stage, count = self.stages[m], len(self.stages[m].state)
        before = "state_{}" if m == 0 else f"{m - 1}/next_{{}}"
        nodes = [
            self._node("Identity", [before.format(number)], [f"{m}/state_{number}"])
            for number in range(count)
        ]
        if stage.reads_logits:
            nodes += self._history(m, "logits", "logits_so_far")
        if stage.reads_answers:
            nodes += self._history(m, "answer", "answers_so_far")
        return nodes

    def _history(self, m: int, said: str, name: str) -> list[Any]:
        """`[1, m, K]` of what was said at the exits before, `[1, K]` each."""
        rows = [f"{m}/{said}.{earlier}" for earlier in range(m)]
        widen = [
            self._node("Unsqueeze", [f"{earlier}/{said}", "second_axis"], [row])
            for earlier, row in enumerate(rows)
        ]
        return [*widen, self._node("Concat", rows, [f"{m}/{name}"], axis=1)]

    def _leaving(self, m: int, where: str) -> list[Any]:
        """What is said about a sample that stops after stage m."""
        said = {name: self._name(m, where, name) for name in self.outputs}
        nodes = [self._node("Constant", [], [said.pop("exit")], value_ints=[m])]
        if m == len(self._graphs) - 1:  # where no score is needed
            endless = [float("inf")]
            nodes.append(self._node("Constant", [], [said.pop("score")], value_floats=endless))
        return nodes + [self._node("Identity", [f"{m}/{name}"], [to]) for name, to in said.items()]
