"""Graphs that are cut out of one: a network is traced once, however many graphs are made of it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from offramp.imports import require
from offramp.onnx.manifest import names

Values = dict[str, tuple[str, ...]]
"""By name of an input or an output, the values in the whole graph that it consists of."""


class NotCuttableError(Exception):
    """A part of a graph needs something that is not among its inputs."""


class Traced:
    """A graph whose parts become graphs.

    Args:
        content: The graph, as ONNX writes it.
    """

    def __init__(self, content: bytes) -> None:
        self._onnx = require("onnx", extra="onnx")
        self._model = self._onnx.load_model_from_string(content)
        graph = self._model.graph
        self._constants = {each.name: each for each in graph.initializer}
        self._inputs = {each.name for each in graph.input} - set(self._constants)
        self._made_by = {
            name: place for place, node in enumerate(graph.node) for name in node.output if name
        }

    def source(self, name: str) -> str:
        """Where a value comes from, behind operators that only copy."""
        while name in self._made_by:
            node = self._model.graph.node[self._made_by[name]]
            if node.op_type != "Identity":
                break
            name = node.input[0]
        return name

    def part(
        self,
        given: Values,
        wanted: Values,
        examples: Mapping[str, Tensor],
        dynamic: Mapping[str, Mapping[int, str]],
    ) -> bytes:
        """The operators between some values, as a graph of its own.

        Args:
            given: By name of an input of the part, the values that it holds: one, or several that
                lie one after the other in its second dimension, one in each place.
            wanted: By name of an output of the part, the values that it consists of; likewise.
            examples: Tensors of the part's inputs and outputs, for their types and sizes.
            dynamic: By name of an input, names of the dimensions whose size is not fixed.

        Raises:
            NotCuttableError: The part needs other values as well.
        """
        helper = self._onnx.helper
        before, renamed = [], dict[str, str]()
        for name, values in given.items():
            parts = names(name, len(values)) if len(values) > 1 else (name,)
            if len(values) > 1:
                before.append(
                    helper.make_node("Split", [name], parts, axis=1, num_outputs=len(parts))
                )
            for value, new in zip(values, parts, strict=True):
                renamed.setdefault(self.source(value), new)
        first = next(iter(given))
        sources = {name: [*map(self.source, values)] for name, values in wanted.items()}
        ends = [value for values in sources.values() for value in values]
        places, constants = self._needed(ends, renamed, set(dynamic[first]))
        nodes = [self._renamed(place, renamed, first) for place in places]
        after = []
        for name, origins in sources.items():
            found = [renamed.get(value, value) for value in origins]
            several = {"axis": 1} if len(found) > 1 else {}
            kind = "Concat" if several else "Identity"
            after.append(helper.make_node(kind, found, [name], **several))
        graph = helper.make_graph(
            [*before, *nodes, *after],
            "part",
            [self._described(name, examples[name], dynamic[name]) for name in given],
            [self._described(name, examples[name], None) for name in wanted],
            [self._constants[name] for name in sorted(constants)],
        )
        made = helper.make_model(
            graph,
            opset_imports=self._model.opset_import,
            functions=self._model.functions,
            ir_version=self._model.ir_version,
        )
        content: bytes = made.SerializeToString()
        return content

    def _needed(
        self, ends: Iterable[str], given: Mapping[str, str], sized: set[int]
    ) -> tuple[list[int], set[str]]:
        """Places of the operators, and names of the constants, that lead to some values."""
        places, constants, waiting = set[int](), set[str](), list(ends)
        while waiting:
            name = self.source(waiting.pop())
            if not name or name in given:
                continue
            if name in self._constants:
                constants.add(name)
                continue
            place = self._made_by.get(name)
            if place is None:
                raise NotCuttableError(name)
            if place in places:
                continue
            places.add(place)
            node = self._model.graph.node[place]
            if any(each.HasField("g") or each.graphs for each in node.attribute):
                raise NotCuttableError(f"{name}, by a graph within the graph")
            if not self._is_size_of_an_input(node, given, sized):
                waiting += node.input
        return sorted(places), constants

    def _is_size_of_an_input(self, node: Any, given: Mapping[str, str], sized: set[int]) -> bool:  # noqa: ANN401
        """Whether it reads how many samples (or tokens) an input of the whole graph has.

        The first input of the part has as many.
        """
        value = self.source(node.input[0]) if node.op_type == "Shape" else ""
        if value not in self._inputs or value in given:
            return False
        ends = {each.name: each.i for each in node.attribute}
        start = ends.get("start", 0)
        if start not in sized or ends.get("end") != start + 1:
            raise NotCuttableError(f"the shape of {value}")
        return True

    def _renamed(self, place: int, renamed: Mapping[str, str], first: str) -> Any:  # noqa: ANN401
        """An operator with the names that its inputs have in the part."""
        node = self._onnx.NodeProto()
        node.CopyFrom(self._model.graph.node[place])
        sources = [self.source(name) for name in node.input]
        is_size = node.op_type == "Shape" and sources[0] in self._inputs
        for index, source in enumerate(sources):
            node.input[index] = renamed.get(source, first if is_size else source)
        return node

    def _described(self, name: str, example: Tensor, dynamic: Mapping[int, str] | None) -> Any:  # noqa: ANN401 - a value of ONNX
        """Name, type and, of an input, sizes of a value."""
        helper = self._onnx.helper
        kind = helper.np_dtype_to_tensor_dtype(example.detach().numpy().dtype)
        if dynamic is None:
            return helper.make_tensor_value_info(name, kind, None)
        sizes: Sequence[Any] = [dynamic.get(d, size) for d, size in enumerate(example.shape)]
        return helper.make_tensor_value_info(name, kind, sizes)
