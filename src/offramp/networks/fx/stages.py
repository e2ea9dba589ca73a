"""A traced module as stages, one graph from each cut to the next."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, fx, nn

from offramp.errors import NetworkError
from offramp.networks.fx.carried import kinds_of_values
from offramp.networks.fx.cuts import Cuts, needed_for
from offramp.networks.fx.trace import TracedModule, trace_module
from offramp.networks.state import Shared, State


class TracedPart(nn.Module):
    """A part of a graph: from the state before it to the state after it.

    `shared` says of each outgoing value whether it is the same for all samples; None for the
    logits, which are not part of a state.
    """

    def __init__(self, graph: fx.GraphModule, shared: Sequence[bool] | None) -> None:
        super().__init__()
        self.graph = graph
        self.shared = shared

    @property
    def carries_several(self) -> bool:
        """Whether the state after it is a tuple."""
        return self.shared is not None and len(self.shared) > 1

    def forward(self, state: State) -> State:
        """One tensor alone, or a tuple whose first member a head reads."""
        values = state if isinstance(state, tuple) else (state,)
        plain = [each.value if isinstance(each, Shared) else each for each in values]
        results = self.graph(*plain)
        if self.shared is None:
            logits: State = results[0]
            return logits
        packed = [
            Shared(value) if shared else value
            for value, shared in zip(results, self.shared, strict=True)
        ]
        return packed[0] if len(packed) == 1 else tuple(packed)


class TracedStage(nn.Module):
    """A stage of a traced module, which may do different things in training and in eval mode.

    Tracing freezes `self.training` into the graph, so the module is traced in both modes. Where
    the graphs differ each mode has its own; both share all parameters.
    """

    def __init__(self, in_eval: TracedPart, in_training: TracedPart | None) -> None:
        super().__init__()
        self.in_eval = in_eval
        self.in_training = in_training

    def forward(self, state: State) -> State:
        """From the state before to the state after."""
        own = self.in_training if self.training and self.in_training is not None else self.in_eval
        result: State = own(state)
        return result


def split(
    evaluating: TracedModule, names: Sequence[str], classifier: fx.Node | None, example: Tensor
) -> list[TracedStage]:
    """The module as stages that end after the named submodules, and at the classifier."""
    training = trace_module(evaluating.root, training=True)
    in_eval = _segments(evaluating, names, classifier, example)
    in_training = _segments(training, names, Cuts(training).classifier(), example)
    if len(in_eval) != len(in_training):
        raise NetworkError(
            f"{type(evaluating.root).__name__} ends differently in training and in eval mode; "
            "give the network as a list of stages"
        )
    return [
        TracedStage(one, None if one.graph.code == other.graph.code else other)
        for one, other in zip(in_eval, in_training, strict=True)
    ]


def _segments(
    traced: TracedModule, names: Sequence[str], classifier: fx.Node | None, example: Tensor
) -> list[TracedPart]:
    cuts = Cuts(traced)
    ends = [cuts.live(cuts.node_after(name)) for name in names]
    if classifier is not None:
        ends.append(cuts.live(classifier.args[0]))  # type: ignore[arg-type]
    kinds = kinds_of_values(traced, ends, [*names, "the classifier"], example)
    # The number of samples is not carried, but read from the state again.
    rows = {node for node, kind in kinds.items() if kind == "rows"}
    states = [[node for node in state if node not in rows] for state in ends]
    parts = []
    for begin, end in pairwise([[cuts.nodes[0]], *states, [traced.output]]):
        graph = _copied(cuts, begin, end, rows)
        parts.append(TracedPart(graph, [kinds.get(node) == "shared" for node in end]))
    if classifier is not None:
        parts[-1].shared = None
    return parts


def _copied(
    cuts: Cuts, begin: Sequence[fx.Node], end: Sequence[fx.Node], rows: set[fx.Node]
) -> fx.GraphModule:
    """The graph between two states, as a module that shares the parameters."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in begin}
    start = cuts.position[begin[0]]
    before = {node for node in rows if cuts.position[node] <= start}
    needed = needed_for(end, {*begin, *before})
    for node in before:
        if any(user in needed for user in node.users):
            copies[node] = graph.call_method("size", (copies[begin[0]], 0))
    for node in cuts.nodes:
        is_constant = node.op == "get_attr" and node in needed
        if is_constant or (cuts.position[node] > start and node in needed):
            copies[node] = graph.node_copy(node, lambda each: copies[each])
    graph.output(tuple(copies[node] for node in end))
    return fx.GraphModule(cuts.traced.root, graph, type(cuts.traced.root).__name__)
