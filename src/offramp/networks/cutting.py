"""Cutting a traced module into stages; what skips over a cut is carried in the state."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, fx, nn

from offramp.errors import NetworkError
from offramp.networks.inputs import TensorInput
from offramp.networks.layout import Channels, Layout, Unit, is_plain_sequential
from offramp.networks.probing import kinds_of_values
from offramp.networks.state import Path, Shared, State
from offramp.networks.tracing import Trace, dependents, scopes_of, trace

__all__ = ["Cuts", "Segment", "TracedStage"]


class Segment(nn.Module):
    """A part of a graph: from the state before it to the state after it.

    Args:
        graph: Takes the values of the state before, returns a tuple of those after.
        shared: For each value that goes out, whether it is the same for all samples; None for
            the logits, which are not part of a state.
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

    Tracing freezes `self.training` into the graph, so the module is traced in both modes, and
    where the graphs differ each mode has its own. Both share all parameters.

    Args:
        evaluating: The segment in eval mode.
        training: The segment in training mode; None if it is the same.
    """

    def __init__(self, evaluating: Segment, training: Segment | None) -> None:
        super().__init__()
        self.in_eval = evaluating
        self.in_training = training

    def forward(self, state: State) -> State:
        """From the state before to the state after."""
        own = self.in_training if self.training and self.in_training is not None else self.in_eval
        result: State = own(state)
        return result


class Cuts:
    """The places where a traced module can be cut.

    Args:
        traced: The module in eval mode.
    """

    def __init__(self, traced: Trace) -> None:
        self.traced = traced
        self.nodes = traced.nodes
        self.position = {node: index for index, node in enumerate(self.nodes)}
        self.from_input = dependents(self.nodes, self.nodes[0])

    def node_after(self, name: str) -> fx.Node:
        """The value that a submodule returns.

        Raises:
            NetworkError: It is not called, called several times, or returns several values.
        """
        returned = self.traced.returned.get(name, [])
        if len(returned) != 1:
            times = "never" if not returned else f"{len(returned)} times"
            raise NetworkError(
                f"`{name}` is called {times} in forward, so that there is no single place after "
                "it; put the exit after another module"
            )
        if not isinstance(returned[0], fx.Proxy):
            raise NetworkError(
                f"`{name}` returns a {type(returned[0]).__name__} and not one tensor that a head "
                "could read; put the exit after another module"
            )
        return returned[0].node

    def live(self, cut: fx.Node) -> list[fx.Node]:
        """What is needed after a cut: the value itself first, then what skips over it."""
        last = self.position[cut]
        skipping = [
            node
            for node in self.nodes[: last + 1]
            if node is not cut
            and node.op != "get_attr"
            and any(self.position.get(user, last + 1) > last for user in node.users)
        ]
        return [cut, *skipping]

    def check(self, name: str) -> None:
        """Raise if a submodule lies inside a branch.

        It does if something goes round it within one of the modules that it is part of, or if
        layers that run later do not build on it.

        Raises:
            NetworkError: It does; the message names the value, the modules and a better place.
        """
        cut = self.node_after(name)
        for skipping in self.live(cut)[1:]:
            around = self._module_around(name, skipping, cut)
            if around:
                raise NetworkError(
                    f"`{name}` lies inside a branch of `{around}`: `{skipping.name}` goes round "
                    f"it there; put the exit after `{around}`"
                )
        beside = self._work_beside(cut)
        if beside is not None:
            raise NetworkError(
                f"`{name}` lies inside a branch: `{beside.target}` runs beside it, and what "
                "follows needs both; put the exit where the branches have joined"
                + self._better_place(cut)
            )

    def _module_around(self, name: str, skipping: fx.Node, cut: fx.Node) -> str | None:
        """The outermost module, around `name`, inside which a value goes round it."""
        parents = [part for part in scopes_of(cut) if name.startswith(f"{part}.")]
        later = [user for user in skipping.users if self._runs_after(user, cut)]
        for parent in parents:
            # A container runs its children one after the other: nothing goes round inside it.
            if is_plain_sequential(self.traced.root.get_submodule(parent)):
                continue
            if any(parent in scopes_of(user) for user in later):
                return parent
        return None

    def _runs_after(self, node: fx.Node, cut: fx.Node) -> bool:
        return self.position.get(node, len(self.nodes)) > self.position[cut]

    def _work_beside(self, cut: fx.Node) -> fx.Node | None:
        """A node with weights that goes its own way: later, or earlier and still to be joined."""
        below = _needed([cut], set())
        for node in self.live(cut)[1:]:
            own = [each for each in _needed([node], below) if self._is_work(each)]
            if node not in below and own:
                return max(own, key=self.position.__getitem__)
        above = dependents(self.nodes, cut)
        later = self.nodes[self.position[cut] + 1 :]
        return next((node for node in later if node not in above and self._is_work(node)), None)

    def _is_work(self, node: fx.Node) -> bool:
        """Whether a node has weights and sees the input."""
        return self.traced.has_weights(node) and node in self.from_input

    def _better_place(self, cut: fx.Node) -> str:
        for name, returned in self.traced.returned.items():
            node = returned[0].node if isinstance(returned[0], fx.Proxy) else None
            if node in self.position and self._runs_after(node, cut) and self.clean([name]):
                return f", such as after `{name}`"
        return ""

    def clean(self, names: Sequence[str]) -> list[str]:
        """Those of the names after which the module can be cut, in the order they run."""
        good = []
        for name in names:
            try:
                self.check(name)
            except NetworkError:
                continue
            good.append(name)
        return sorted(good, key=lambda name: self.position[self.node_after(name)])

    def ordered(self, names: list[str]) -> list[str]:
        """Check the names that a user gave, and that they are in the order they run.

        Raises:
            NetworkError: One lies inside a branch, or they are in another order.
        """
        for name in names:
            self.check(name)
        positions = [self.position[self.node_after(name)] for name in names]
        for index in range(1, len(names)):
            if positions[index] <= positions[index - 1]:
                raise NetworkError(
                    "exits must be named in the order in which the backbone runs them, but "
                    f"`{names[index]}` comes no later than `{names[index - 1]}`; swap them"
                )
        return names

    def classifier(self) -> fx.Node | None:
        """The last linear layer, if all that follows it are operations without weights."""
        node = self.traced.output
        while isinstance(node, fx.Node) and node.op != "placeholder":
            if node.op == "call_module":
                module = self.traced.root.get_submodule(str(node.target))
                if isinstance(module, nn.Linear):
                    # Only if nothing goes round it can the rest of the graph be a head.
                    before = node.args[0]
                    alone = isinstance(before, fx.Node) and len(self.live(before)) == 1
                    return node if alone else None
            if self.traced.has_weights(node) or len(node.all_input_nodes) != 1:
                return None
            node = node.all_input_nodes[0]
        return None

    def lay_out(self, names: Sequence[str], example: Tensor, modules: list[str]) -> Layout:
        """Cut after these submodules, and before the classifier.

        Args:
            names: In the order they run, checked.
            example: A batch.
            modules: Names of all submodules.
        """
        at_end = [name for name in names if not self._is_early(name)]
        names = [name for name in names if name not in at_end]
        classifier = self.classifier()
        stages = split(self.traced, names, classifier, example)
        rest: nn.Module = stages.pop() if classifier is not None else nn.Identity()
        labels = [*names, "last"]
        linear = self.traced.root.get_submodule(str(classifier.target)) if classifier else None
        carrying = [stage.in_eval.carries_several for stage in stages[: len(names)]]
        leaves: dict[str, Path] = {
            name: (0,) for name, c in zip(names, carrying, strict=True) if c
        }
        known = {name: self._channels(self.node_after(name)) for name in names}
        return Layout(
            units=[Unit(name, stage) for name, stage in zip(labels, stages, strict=True)],
            blocks=labels,
            classifier=rest,
            num_classes=linear.out_features if isinstance(linear, nn.Linear) else None,
            inputs=TensorInput.like(example),
            leaves=leaves,
            channels={name: channels for name, channels in known.items() if channels},
            at_end=at_end,
            modules=modules,
        )

    def _channels(self, cut: fx.Node) -> Channels | None:
        """What the last layer before a cut, that it depends on, says about its channels."""
        below = _needed([cut], set())
        for node in reversed(self.nodes[: self.position[cut] + 1]):
            if node in below and node.op == "call_module":
                found = Channels.of(self.traced.root.get_submodule(str(node.target)))
                if found is not None:
                    return found
        return None

    def _is_early(self, name: str) -> bool:
        """Whether anything with weights but the classifier runs after a submodule."""
        after = self.nodes[self.position[self.node_after(name)] + 1 :]
        own = self.classifier()
        return any(node is not own and self.traced.has_weights(node) for node in after)


def split(
    evaluating: Trace, names: Sequence[str], classifier: fx.Node | None, example: Tensor
) -> list[TracedStage]:
    """The module as stages that end after the named submodules, and at the classifier."""
    training = trace(evaluating.root, training=True)
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
    traced: Trace, names: Sequence[str], classifier: fx.Node | None, example: Tensor
) -> list[Segment]:
    cuts = Cuts(traced)
    ends = [cuts.live(cuts.node_after(name)) for name in names]
    if classifier is not None:
        ends.append(cuts.live(classifier.args[0]))  # type: ignore[arg-type]
    kinds = kinds_of_values(traced, ends, [*names, "the classifier"], example)
    # How many samples there are is not carried, but read again from the state.
    rows = {node for node, kind in kinds.items() if kind == "rows"}
    states = [[node for node in state if node not in rows] for state in ends]
    segments = []
    for begin, end in pairwise([[cuts.nodes[0]], *states, [traced.output]]):
        graph = _copied(cuts, begin, end, rows)
        segments.append(Segment(graph, [kinds.get(node) == "shared" for node in end]))
    if classifier is not None:
        segments[-1].shared = None
    return segments


def _copied(
    cuts: Cuts, begin: Sequence[fx.Node], end: Sequence[fx.Node], rows: set[fx.Node]
) -> fx.GraphModule:
    """The part of a graph between two states, as a module that shares the parameters."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in begin}
    start = cuts.position[begin[0]]
    before = {node for node in rows if cuts.position[node] <= start}
    needed = _needed(end, {*begin, *before})
    for node in before:
        if any(user in needed for user in node.users):
            copies[node] = graph.call_method("size", (copies[begin[0]], 0))
    for node in cuts.nodes:
        is_constant = node.op == "get_attr" and node in needed
        if is_constant or (cuts.position[node] > start and node in needed):
            copies[node] = graph.node_copy(node, lambda each: copies[each])
    graph.output(tuple(copies[node] for node in end))
    return fx.GraphModule(cuts.traced.root, graph, type(cuts.traced.root).__name__)


def _needed(outputs: Sequence[fx.Node], known: set[fx.Node]) -> set[fx.Node]:
    """All nodes that the outputs depend on, back to those that are known."""
    needed: set[fx.Node] = set()
    waiting = [node for node in outputs if node not in known]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += [each for each in node.all_input_nodes if each not in known]
    return needed
