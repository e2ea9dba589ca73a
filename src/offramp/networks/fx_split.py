"""Cutting any module that `torch.fx` can trace into stages.

What skips over a cut, such as a long residual connection, is carried in the state.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, fx, nn

from offramp.errors import NetworkError
from offramp.networks.fx_trace import (
    TracedModule,
    block_names,
    dependents,
    scopes_of,
    trace_module,
)
from offramp.networks.inputs import inputs_like
from offramp.networks.layout import (
    Channels,
    Layout,
    Unit,
    is_plain_sequential,
    module_names,
    no_such_module,
)
from offramp.networks.state import Path, Shared, State, evaluating, move_beside

Kind: TypeAlias = Literal["samples", "shared", "rows"]

# Sizes of the batches that a module is probed with.
_ROWS = (2, 3)


class _Recorder(fx.Interpreter):
    """Runs a graph, and keeps the values of some nodes."""

    def __init__(self, traced: TracedModule, wanted: set[fx.Node]) -> None:
        super().__init__(traced.root, graph=traced.graph)
        self.wanted = wanted
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401
        value = super().run_node(n)
        if n in self.wanted:
            self.values[n] = value.clone() if isinstance(value, Tensor) else value
        return value


def _kinds_of_values(
    traced: TracedModule,
    states: Sequence[Sequence[fx.Node]],
    places: Sequence[str],
    example: Tensor,
) -> dict[fx.Node, Kind]:
    """What the values in `states`, which cross the cuts at `places`, belong to.

    The module is run on batches of two sizes with different content. A value with a row per
    sample grows with the batch; one that is shared is the same in both runs; the number of rows
    can be read off any tensor after the cut. Nothing else can be carried over a cut, since a
    batch may shrink there: it raises `NetworkError`.
    """
    wanted = {node for state in states for node in state}
    small, large = (_run(traced, wanted, example, rows) for rows in _ROWS)
    kinds: dict[fx.Node, Kind] = {}
    for state, place in zip(states, places, strict=False):
        for node in state:
            kind = _kind(small[node], large[node])
            if kind is None or (kind != "samples" and node is state[0]):
                raise NetworkError(_message(node, small[node], place))
            kinds[node] = kind
    return kinds


def _run(
    traced: TracedModule, wanted: set[fx.Node], example: Tensor, rows: int
) -> dict[fx.Node, Any]:
    batch = example[torch.arange(rows) % len(example)]
    if batch.is_floating_point():
        noise = torch.rand(batch.shape, generator=torch.Generator().manual_seed(rows))
        batch = noise.to(batch)
    recorder = _Recorder(traced, wanted)
    # A graph of training mode may update statistics and draw random numbers.
    buffers = [(buffer, buffer.clone()) for buffer in traced.root.buffers()]
    with torch.no_grad(), torch.random.fork_rng(), evaluating(traced.root):
        try:
            recorder.run(move_beside([traced.root], batch))
        except RuntimeError as error:
            raise NetworkError(
                f"the backbone cannot be run on `example`, {list(example.shape)} of "
                f"{str(example.dtype).removeprefix('torch.')}: {str(error).splitlines()[0]}"
            ) from None
        for buffer, before in buffers:
            buffer.copy_(before)
    return recorder.values


def _kind(small: Any, large: Any) -> Kind | None:  # noqa: ANN401
    """What a value belongs to, given what it was for two sizes of batches."""
    if isinstance(small, Tensor) and isinstance(large, Tensor):
        if small.ndim and (len(small), len(large)) == _ROWS and small.shape[1:] == large.shape[1:]:
            return "samples"
        return "shared" if small.shape == large.shape and torch.equal(small, large) else None
    if (small, large) == _ROWS:
        return "rows"
    plain = isinstance(small, bool | int | float | str | tuple | torch.Size)
    return "shared" if plain and type(small) is type(large) and small == large else None


def _message(node: fx.Node, value: Any, place: str) -> str:  # noqa: ANN401
    makers = [str(each.target) for each in node.all_input_nodes if each.op == "call_module"]
    maker = str(node.target) if node.op == "call_module" else (makers or [str(node.target)])[0]
    readers = sorted({_reader(user) for user in node.users}) or ["nothing"]
    kind = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    return (
        f"`{node.name}`, {kind} made by `{maker}` and read by {', '.join(readers)}, cannot be "
        f"carried over the exit after `{place}`: it has neither one row per sample nor the same "
        "value for all batches, and a batch may shrink there. Compute it again after the exit, "
        "or put the exit elsewhere"
    )


def _reader(node: fx.Node) -> str:
    scopes = scopes_of(node)
    return f"`{(scopes and scopes[-1]) or node.name}`"


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


class Cuts:
    """The places where a traced module can be cut."""

    def __init__(self, traced: TracedModule) -> None:
        self.traced = traced
        self.nodes = traced.nodes
        self.position = {node: index for index, node in enumerate(self.nodes)}
        self.from_input = dependents(self.nodes, self.nodes[0])

    def node_after(self, name: str) -> fx.Node:
        """The value that a submodule returns; it must be called once, and return one value."""
        returned = self.traced.returned.get(name, [])
        if len(returned) != 1:
            times = "never" if not returned else f"{len(returned)} times"
            raise NetworkError(
                f"`{name}` is called {times} in forward, so there is no single place after it; "
                "put the exit after another module"
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
        """Raise `NetworkError` if a submodule lies inside a branch.

        It does if a value bypasses it within one of the modules that contain it, or if layers
        that run later do not depend on it.
        """
        cut = self.node_after(name)
        for skipping in self.live(cut)[1:]:
            around = self._module_around(name, skipping, cut)
            if around:
                raise NetworkError(
                    f"`{name}` lies inside a branch of `{around}`: `{skipping.name}` bypasses "
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
        """The outermost module that contains `name` and inside which a value bypasses it."""
        parents = [scope for scope in scopes_of(cut) if name.startswith(f"{scope}.")]
        later = [user for user in skipping.users if self._runs_after(user, cut)]
        for parent in parents:
            # A container runs its children one after the other: nothing bypasses one inside it.
            if is_plain_sequential(self.traced.root.get_submodule(parent)):
                continue
            if any(parent in scopes_of(user) for user in later):
                return parent
        return None

    def _runs_after(self, node: fx.Node, cut: fx.Node) -> bool:
        return self.position.get(node, len(self.nodes)) > self.position[cut]

    def _work_beside(self, cut: fx.Node) -> fx.Node | None:
        """A node with weights on another branch: later, or earlier and still to be joined."""
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
        """Check the names that a user gave, and that they are in the order they run."""
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
                    # Only if nothing bypasses it can the rest of the graph be a head.
                    before = node.args[0]
                    alone = isinstance(before, fx.Node) and len(self.live(before)) == 1
                    return node if alone else None
            if self.traced.has_weights(node) or len(node.all_input_nodes) != 1:
                return None
            node = node.all_input_nodes[0]
        return None

    def layout(self, names: Sequence[str], example: Tensor, modules: list[str]) -> Layout:
        """Cut after the named submodules (checked, in order) and before the classifier."""
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
            inputs=inputs_like(example),
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
    kinds = _kinds_of_values(traced, ends, [*names, "the classifier"], example)
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


def traced_layout(
    backbone: nn.Module,
    names: Sequence[str] | None,
    example: Any = None,  # noqa: ANN401
) -> Layout:
    """The layout of any module that `torch.fx` can trace, cut after `names` or the blocks found.

    What skips over a cut is carried in the state, and running the module on batches of two sizes,
    made from the example, shows what belongs to samples.
    """
    example = _default_example(backbone) if example is None else example
    if not isinstance(example, Tensor):
        raise NetworkError(
            f"{type(backbone).__name__} is cut by tracing, which needs a batch: pass `example=`, "
            "a tensor such as torch.zeros(2, 3, 32, 32)"
        )
    traced = trace_module(backbone, training=False)
    modules = module_names(backbone)
    for name in names or ():
        if name not in modules:
            raise NetworkError(no_such_module(name, modules))
    cuts = Cuts(traced)
    wanted = cuts.clean(block_names(traced)) if names is None else cuts.ordered(list(names))
    layout = cuts.layout(wanted, example, modules)
    if names is None and len(layout.blocks) < 2:
        raise NetworkError(
            f"no block of {type(backbone).__name__} was found that an exit could come after; "
            "name some with at=[...]"
        )
    return layout


def _default_example(backbone: nn.Module) -> Tensor | None:
    """What models of timm say that they take; the classifiers of torchvision take 224 px."""
    config = getattr(backbone, "default_cfg", None) or {}
    if "input_size" in config:
        return torch.rand(2, *config["input_size"])
    if type(backbone).__module__.startswith("torchvision.models"):
        return torch.rand(2, 3, 224, 224)
    return None
