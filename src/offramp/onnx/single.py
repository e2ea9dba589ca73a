"""One ONNX graph for a single sample: the graphs of all stages, nested in `If` nodes.

Each stage's graph is the branch that runs if the sample has not stopped before, so a program that
knows nothing of exits skips what need not run. It is built from the graphs that an export has
already written, and therefore returns what they return.
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
    """Nest the graphs of an export, given their bytes.

    The result takes `state_0`, ... of one sample as the first graph does, and `thresholds` `[M]`,
    whose default are `limits` (float32, rounded up). It returns `answer` `[1, K]`, `exit` `[1]`,
    `score` `[1]` (infinite at the last exit) and, if there is one, `confidence` `[1]`.
    """
    onnx = require("onnx", extra="onnx")
    models = [onnx.load_model_from_string(content) for content in contents]
    nested = _NestedStages(onnx, models, stages, OUTPUTS if has_confidence else OUTPUTS[:-1])
    numpy = require("onnx.numpy_helper", extra="onnx")
    constants = [numpy.from_array(limits.numpy(), "thresholds")]
    if any(stage.reads_logits or stage.reads_answers for stage in stages):
        constants.append(numpy.from_array(limits.new_tensor([1]).long().numpy(), "second_axis"))
    first = models[0].graph.input
    default = onnx.helper.make_tensor_value_info(
        "thresholds", onnx.TensorProto.FLOAT, list(limits.shape)
    )
    graph = onnx.helper.make_graph(
        nested.nodes(0),
        "single",
        [*first, default],
        nested.typed(0),
        initializer=[*constants, *nested.initializers],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=models[0].opset_import, ir_version=models[0].ir_version
    )
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


class _NestedStages:
    """Stages inside stages. A value `x` of stage m is named `m/x`, and its result `out.m/x`."""

    def __init__(
        self,
        onnx: Any,  # noqa: ANN401 - the module
        models: Sequence[Any],
        stages: Sequence[StageFile],
        outputs: Sequence[str],
    ) -> None:
        self.stages, self.outputs = stages, outputs
        self._onnx, self._node = onnx, onnx.helper.make_node
        prefixed = require("onnx.compose", extra="onnx").add_prefix
        self._graphs = [prefixed(model, f"{number}/").graph for number, model in enumerate(models)]
        # They belong to the outermost graph, where all nested ones see them.
        self.initializers = [each for graph in self._graphs for each in graph.initializer]

    def nodes(self, exit_index: int) -> list[Any]:
        """The nodes of a stage and of all stages after it."""
        inside = [*self._inputs(exit_index), *self._graphs[exit_index].node]
        if exit_index == len(self._graphs) - 1:
            return [*inside, *self._results(exit_index, "out")]
        number, threshold, stop = (f"{exit_index}/{x}" for x in ("number", "threshold", "stop"))
        graph = self._onnx.helper.make_graph
        results, outputs = self._results(exit_index, "stop"), self.typed(exit_index, "stop")
        stopping = graph(results, f"stop.{exit_index}", [], outputs)
        deeper, outputs = self.nodes(exit_index + 1), self.typed(exit_index + 1)
        going_on = graph(deeper, f"stage.{exit_index + 1}", [], outputs)
        return [
            *inside,
            self._node("Constant", [], [number], value_int=exit_index),
            self._node("Gather", ["thresholds", number], [threshold]),
            self._node("GreaterOrEqual", [f"{exit_index}/score", threshold], [stop]),
            self._node(
                "If",
                [stop],
                [self._name(exit_index, "out", output) for output in self.outputs],
                then_branch=stopping,
                else_branch=going_on,
            ),
        ]

    def typed(self, exit_index: int, where: str = "out") -> list[Any]:
        """Names and types of the outputs of a stage and of those nested in it."""
        kinds, make = self._onnx.TensorProto, self._onnx.helper.make_tensor_value_info
        return [
            make(
                self._name(exit_index, where, output),
                kinds.INT64 if output == "exit" else kinds.FLOAT,
                [1, None] if output == "answer" else [1],
            )
            for output in self.outputs
        ]

    def _name(self, exit_index: int, where: str, output: str) -> str:
        return output if (exit_index, where) == (0, "out") else f"{where}.{exit_index}/{output}"

    def _inputs(self, exit_index: int) -> list[Any]:
        """Connect the inputs of a stage to the stages around it."""
        stage = self.stages[exit_index]
        before = "state_{}" if exit_index == 0 else f"{exit_index - 1}/next_{{}}"
        nodes = [
            self._node("Identity", [before.format(number)], [f"{exit_index}/state_{number}"])
            for number in range(len(stage.state))
        ]
        if stage.reads_logits:
            nodes += self._history(exit_index, "logits", "logits_so_far")
        if stage.reads_answers:
            nodes += self._history(exit_index, "answer", "answers_so_far")
        return nodes

    def _history(self, exit_index: int, output: str, name: str) -> list[Any]:
        """Collect an output `[1, K]` of all earlier exits in one tensor `[1, m, K]`."""
        rows = [f"{exit_index}/{output}.{earlier}" for earlier in range(exit_index)]
        widen = [
            self._node("Unsqueeze", [f"{earlier}/{output}", "second_axis"], [row])
            for earlier, row in enumerate(rows)
        ]
        return [*widen, self._node("Concat", rows, [f"{exit_index}/{name}"], axis=1)]

    def _results(self, exit_index: int, where: str) -> list[Any]:
        """The outputs for a sample that stops after a stage."""
        named = {output: self._name(exit_index, where, output) for output in self.outputs}
        nodes = [self._node("Constant", [], [named.pop("exit")], value_ints=[exit_index])]
        if exit_index == len(self._graphs) - 1:  # which needs no score
            infinite = [float("inf")]
            nodes.append(self._node("Constant", [], [named.pop("score")], value_floats=infinite))
        own = f"{exit_index}/"
        return nodes + [self._node("Identity", [own + name], [to]) for name, to in named.items()]
