"""The state that is passed from stage to stage: tensors in any nesting, samples first.

In ONNX Runtime they are arrays of numpy.

Every tensor in a state has one row per sample. What does not belong to samples (a position
bias, a size) is wrapped in `Shared`: `take` never has to guess from a shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from offramp.arrays import AnyArray, as_tensor, is_array, is_floating, namespace, positions
from offramp.errors import NetworkError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Shared:
    """A leaf of a state that is the same for all samples, and is kept whole by `take`."""

    value: Any


State: TypeAlias = "AnyArray | Shared | Sequence[State] | Mapping[str, State]"
Path: TypeAlias = tuple[str | int, ...]


def take(state: State, index: AnyArray) -> Any:  # noqa: ANN401 - the structure of `state`
    """Keep some samples of a state, in the order of `index`.

    Args:
        state: A tensor or any nesting of them, `[N, ...]` each.
        index: int64 `[n]`, positions of the samples to keep; or bool `[N]`.

    Returns:
        The same structure with `n` rows; memory formats (channels_last) are kept.

    Example:
        >>> import torch
        >>> state = {"hidden": torch.arange(6.0).view(3, 2), "size": Shared((4, 4))}
        >>> take(state, torch.tensor([2, 0]))
        {'hidden': tensor([[4., 5.], [0., 1.]]), 'size': Shared(value=(4, 4))}
    """
    dtype = str(index.dtype).removeprefix("torch.")
    if index.ndim != 1 or dtype not in ("int64", "int32", "bool"):
        raise NetworkError(
            f"`index` must be int64 positions or a bool mask of shape [n], got {dtype} "
            f"of shape {list(index.shape)}"
        )
    rows = index
    if dtype == "bool":
        if len(index) != batch_size(state):
            raise NetworkError(
                f"a mask must have one entry per sample, got {len(index)} entries for "
                f"{batch_size(state)} samples"
            )
        rows = positions(index)
    return map_leaves(lambda leaf: _take_rows(leaf, rows), state)


def _take_rows(tensor: AnyArray, rows: AnyArray) -> AnyArray:
    if isinstance(tensor, np.ndarray):
        return tensor[rows]
    rows = (as_tensor(rows) if isinstance(rows, np.ndarray) else rows).to(tensor.device)
    if tensor.ndim < 4 or tensor.is_contiguous():
        return tensor.index_select(0, rows)
    # `index_select` loses channels_last. With the channels moved to the end the tensor is
    # contiguous: rows are copied in one piece, and the format is kept.
    last = (0, *range(2, tensor.ndim), 1)
    if not tensor.permute(last).is_contiguous():
        return tensor[rows]
    return tensor.permute(last).index_select(0, rows).movedim(-1, 1)


def map_leaves(function: Callable[[AnyArray], AnyArray], state: State) -> Any:  # noqa: ANN401
    """Apply a function to every tensor that belongs to samples; `Shared` leaves stay."""
    if is_array(state):
        return function(state)
    if isinstance(state, Shared):
        return state
    if isinstance(state, Mapping):
        return {key: map_leaves(function, value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        values = [map_leaves(function, value) for value in state]
        # A named tuple takes its members as separate arguments.
        return type(state)(*values) if hasattr(state, "_fields") else type(state)(values)
    raise _not_a_state(state)


def named_leaves(state: State, path: Path = ()) -> Iterator[tuple[Path, AnyArray | Shared]]:
    """Every leaf of a state with the keys and positions that lead to it.

    Example:
        >>> [path for path, leaf in named_leaves({"scales": [Shared(1), Shared(2)]})]
        [('scales', 0), ('scales', 1)]
    """
    if isinstance(state, Shared) or is_array(state):
        yield path, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from named_leaves(value, (*path, key))
    elif isinstance(state, list | tuple):
        for position, value in enumerate(state):
            yield from named_leaves(value, (*path, position))
    else:
        raise _not_a_state(state)


def _not_a_state(value: object) -> NetworkError:
    return NetworkError(
        "a state holds tensors with one row per sample, lists, tuples and dicts; wrap anything "
        f"else in Shared(...), got {type(value).__name__}"
    )


def join(states: Sequence[State]) -> Any:  # noqa: ANN401 - the structure of the states
    """Put the samples of states with one `join_key` into one, in order; the reverse of `take`."""
    if len(states) == 1:
        return states[0]
    leaves = [tensors(state) for state in states]
    joined = iter([namespace(same[0]).concatenate(same) for same in zip(*leaves, strict=True)])
    return map_leaves(lambda _: next(joined), states[0])


def tensors(state: State) -> list[AnyArray]:
    """Every tensor of a state that belongs to samples.

    Example:
        >>> tensors({"hidden": np.zeros((2, 3)), "size": Shared((4, 4))})
        [array([[0., 0., 0.],
               [0., 0., 0.]])]
    """
    if is_array(state):  # as of most networks
        return [state]
    if type(state) is dict and all(map(is_array, state.values())):  # as before every graph
        return list(state.values())
    return [leaf for _, leaf in named_leaves(state) if not isinstance(leaf, Shared)]


def join_key(state: State) -> tuple[Any, ...]:
    """What two states must have in common to be joined: paths, shapes, types, shared values."""
    return tuple((path, *_kind_of(leaf)) for path, leaf in named_leaves(state))


def _kind_of(leaf: AnyArray | Shared) -> tuple[Any, ...]:
    if not isinstance(leaf, Shared):
        return leaf.shape[1:], leaf.dtype, leaf.device
    value = leaf.value
    # A shared tensor may be computed again for each batch: its values count, not its identity.
    return (value.shape, value.flatten().tolist()) if is_array(value) else (value,)


def leaf_at(state: State, path: Path) -> Any:  # noqa: ANN401
    """The part of a state that `path` leads to; the whole state for an empty path."""
    for key in path:
        state = state[key]  # type: ignore[index]
    return state


def batch_size(state: State) -> int:
    """The number of samples in a state; raises `NetworkError` if no leaf belongs to samples."""
    found = tensors(state)
    if not found:
        raise NetworkError("the state has no tensor that belongs to samples")
    return len(found[0])


def move_beside(modules: Iterable[nn.Module], state: State) -> State:
    """Move a state to the device and the precision of the modules' first parameter."""
    parameter = next((p for module in modules for p in module.parameters()), None)
    if parameter is None:
        return state

    def move(leaf: AnyArray) -> AnyArray:
        return leaf.to(parameter if is_floating(leaf) else parameter.device)

    moved: State = map_leaves(move, state)
    return moved


def check_state(state: State, rows: int, where: str) -> None:
    """Raise unless every tensor has one row per sample; `where` names the stage before it."""
    for path, leaf in named_leaves(state):
        if not isinstance(leaf, Shared) and (leaf.ndim == 0 or len(leaf) != rows):
            spot = "".join(f"[{key!r}]" for key in path)
            raise NetworkError(
                f"the state after {where} must have one row per sample: state{spot} has the "
                f"shape {list(leaf.shape)} for {rows} samples; wrap it in Shared(...) if it is "
                "the same for all of them"
            )


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Put modules into eval mode, and every submodule back into its own mode afterwards."""
    modes = [(child, child.training) for module in modules for child in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for child, mode in modes:
            child.training = mode
