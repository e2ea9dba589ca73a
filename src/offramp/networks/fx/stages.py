"""A traced module as stages, one graph from each cut to the next: its layout.

What skips over a cut, such as a long residual connection, is carried in the state. It may belong
to samples or to all of them; the number of samples is not carried, but read again after the cut.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, fx, nn

from offramp.errors import NetworkError
from offramp.networks.fx.trace import TracedModule, needed_for, scopes_of
from offramp.networks.inputs import inputs_like
from offramp.networks.layout import Layout
from offramp.networks.state import Path, Shared, State, evaluating, move_beside

Kind: TypeAlias = Literal["samples", "shared", "rows"]

# Sizes of the batches that a module is probed with.
_ROWS = (2, 3)


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
    traced = TracedModule(backbone, training=False)
    wanted = traced.cuts_found() if names is None else traced.cuts_after(names)
    cuts = [name for name in wanted if traced.is_early(name)]
    classifier = traced.classifier()
    stages = _split(traced, cuts, example)
    if names is None and not cuts:
        raise NetworkError(
            f"no block of {type(backbone).__name__} was found that an exit could come after; "
            "name some with at=[...]"
        )
    rest = stages.pop() if classifier is not None else nn.Identity()
    linear = None if classifier is None else traced.module_of(classifier)
    known = {name: traced.channels_after(name) for name in cuts}
    leaves: dict[str, Path] = {
        name: (0,)
        for name, stage in zip(cuts, stages, strict=False)
        if len(stage.in_eval.shared) > 1
    }
    return Layout(
        units=dict(zip([*cuts, "last"], stages, strict=True)),
        blocks=[*cuts, "last"],
        classifier=rest,
        num_classes=linear.out_features if isinstance(linear, nn.Linear) else None,
        inputs=inputs_like(example),
        leaves=leaves,
        channels={name: channels for name, channels in known.items() if channels},
        at_end=[name for name in wanted if name not in cuts],
    )


def _default_example(backbone: nn.Module) -> Tensor | None:
    """What models of timm say that they take; the classifiers of torchvision take 224 px."""
    config = getattr(backbone, "default_cfg", None) or {}
    if "input_size" in config:
        return torch.rand(2, *config["input_size"])
    if type(backbone).__module__.startswith("torchvision.models"):
        return torch.rand(2, 3, 224, 224)
    return None


class TracedPart(nn.Module):
    """A part of a graph: from the state before it to the state after it.

    `shared` says of each outgoing value whether it is the same for all samples.
    """

    def __init__(self, graph: fx.GraphModule, shared: Sequence[bool]) -> None:
        super().__init__()
        self.graph = graph
        self.shared = shared

    def forward(self, state: State) -> State:
        """One tensor alone, or a tuple whose first member a head reads."""
        values = state if isinstance(state, tuple) else (state,)
        plain = [each.value if isinstance(each, Shared) else each for each in values]
        packed = [
            Shared(value) if shared else value
            for value, shared in zip(self.graph(*plain), self.shared, strict=True)
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


def _split(traced: TracedModule, cuts: Sequence[str], example: Tensor) -> list[TracedStage]:
    """The module as stages that end after the named submodules, and at the classifier."""
    in_eval = _parts(traced, cuts, example)
    in_training = _parts(TracedModule(traced.root, training=True), cuts, example)
    if len(in_eval) != len(in_training):
        raise NetworkError(
            f"{type(traced.root).__name__} ends differently in training and in eval mode; "
            "give the network as a list of stages"
        )
    return [
        TracedStage(one, None if one.graph.code == other.graph.code else other)
        for one, other in zip(in_eval, in_training, strict=True)
    ]


def _parts(traced: TracedModule, cuts: Sequence[str], example: Tensor) -> list[TracedPart]:
    classifier = traced.classifier()
    ends = [traced.live(traced.node_after(name)) for name in cuts]
    if classifier is not None:
        ends.append(traced.live(classifier.args[0]))  # type: ignore[arg-type]
    kinds = _kinds_of_values(traced, ends, [*cuts, "the classifier"], example)
    rows = {node for node, kind in kinds.items() if kind == "rows"}
    states = [[node for node in state if node not in rows] for state in ends]
    return [
        TracedPart(_copied(traced, begin, end, rows), [kinds.get(n) == "shared" for n in end])
        for begin, end in pairwise([[traced.nodes[0]], *states, [traced.output]])
    ]


def _copied(
    traced: TracedModule, begin: Sequence[fx.Node], end: Sequence[fx.Node], rows: set[fx.Node]
) -> fx.GraphModule:
    """The graph between two states, as a module that shares the parameters."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in begin}
    start = traced.position[begin[0]]
    before = {node for node in rows if traced.position[node] <= start}
    needed = needed_for(end, {*begin, *before})
    for node in before:
        if any(user in needed for user in node.users):
            copies[node] = graph.call_method("size", (copies[begin[0]], 0))
    for node in traced.nodes:
        is_constant = node.op == "get_attr" and node in needed
        if is_constant or (traced.position[node] > start and node in needed):
            copies[node] = graph.node_copy(node, lambda each: copies[each])
    graph.output(tuple(copies[node] for node in end))
    return fx.GraphModule(traced.root, graph, type(traced.root).__name__)


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
    # A module says more to the user than the operation on what it returned.
    modules = [each for each in (node, *node.all_input_nodes) if each.op == "call_module"]
    maker = str((modules or [node])[0].target)
    readers = sorted({_reader(user) for user in node.users}) or ["nothing"]
    kind = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    return (
        f"`{node.name}`, {kind} made by `{maker}` and read by {', '.join(readers)}, cannot be "
        f"carried over the exit after `{place}`: it has neither one row per sample nor the same "
        "value for all batches, and a batch may shrink there. Compute it again after the exit, "
        "or put the exit elsewhere"
    )


def _reader(node: fx.Node) -> str:
    innermost = scopes_of(node)[-1:]
    return f"`{innermost[0] if innermost and innermost[0] else node.name}`"
