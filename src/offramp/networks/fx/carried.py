"""What the values that cross a cut belong to: to samples, to all of them, or to the batch."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, fx

from offramp.errors import NetworkError
from offramp.networks.fx.trace import TracedModule, scopes_of
from offramp.networks.state import evaluating, move_beside

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


def kinds_of_values(
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
