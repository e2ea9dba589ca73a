"""Multiply-accumulate operations per exit, counted by running the real stages.

Counted are convolutions, matrix products and attention; one MAC is two FLOPs. Element-wise
operations, normalization, pooling and copies count as nothing, as is usual in the field. An
operation that is neither counted nor known to count as nothing is an error, never a silent zero.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from offramp.costs import Costs
from offramp.errors import NetworkError
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import State, batch_size, evaluating, move_beside

_TAGS = {torch.Tag.pointwise, torch.Tag.reduction, torch.Tag.view_copy}

# Operations that torch does not tag: norms, activations, pooling, resizing, lookups, copies, new
# tensors, sums; one group per paragraph.
_UNTAGGED = """
_batch_norm_no_update _batch_norm_with_update _fused_rms_norm _native_batch_norm_legit
_native_batch_norm_legit_functional _native_batch_norm_legit_no_training cudnn_batch_norm
miopen_batch_norm native_batch_norm native_group_norm native_layer_norm

_log_softmax _prelu_kernel _safe_softmax _softmax glu hardswish log_sigmoid_forward
native_dropout rrelu_with_noise

_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_max_pool2d avg_pool1d
avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices

_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact2d constant_pad_nd
grid_sampler_2d im2col reflection_pad1d reflection_pad2d replication_pad2d upsample_bicubic2d
upsample_bilinear2d upsample_nearest1d upsample_nearest2d

_embedding_bag _local_scalar_dense _unsafe_index embedding gather index index_put index_select
masked_fill masked_select nonzero scatter select_scatter slice_scatter

_reshape_alias _to_copy _unsafe_view cat channel_shuffle copy cumsum detach flip
native_channel_shuffle pixel_shuffle pixel_unshuffle repeat repeat_interleave roll stack tril
triu

arange bernoulli empty empty_like empty_strided eye fill full full_like linspace new_empty
new_empty_strided new_full new_ones new_zeros normal ones ones_like rand randn scalar_tensor
uniform zero zeros zeros_like

all any sum
"""
_UNCOUNTED = frozenset(_UNTAGGED.split())


def is_uncounted(operation: Any) -> bool:  # noqa: ANN401 - a torch OpOverload, which has no public type
    """Whether an operation counts as nothing next to convolutions and matrix products."""
    namespace, _, name = operation._schema.name.partition("::")
    if namespace != "aten":
        return False
    # An in-place operation has the name of the one that makes a copy plus an underscore, and
    # only the latter is tagged.
    plain = name.rstrip("_") if not name.startswith("__") else name
    packet = getattr(torch.ops.aten, plain, operation._overloadpacket)
    forms = [operation, *(getattr(packet, each) for each in packet.overloads())]
    return plain in _UNCOUNTED or any(form.is_view or _TAGS & set(form.tags) for form in forms)


_aten = torch.ops.aten


# What FlopCounterMode silently counts as zero: FLOPs from the arguments' shapes.
_CORRECTED: dict[Any, Callable[..., int]] = {
    **dict.fromkeys(
        (
            _aten._scaled_dot_product_flash_attention_for_cpu,
            _aten._scaled_dot_product_fused_attention_overrideable,
            _aten._scaled_dot_product_attention_math_for_mps,
        ),
        lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value),
    ),
    _aten.mv: lambda matrix, *_, **__: 2 * prod(matrix),
    _aten.dot: lambda vector, *_, **__: 2 * prod(vector),
    _aten.addmv: lambda added, matrix, *_, **__: 2 * prod(matrix),
}


class _CostCheck(TorchDispatchMode):
    """Refuses operations of unknown cost."""

    def __init__(self, counted: Mapping[Any, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted = counted

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func._overloadpacket not in self.counted and not is_uncounted(func):
            raise NetworkError(
                f"the cost of the operation `{func}` is not known; pass its FLOPs as "
                f"count_macs(..., formulas={{torch.ops.{func._overloadpacket}: function}}), a "
                "function of the arguments' shapes"
            )
        return func(*args, **(kwargs or {}))


@contextmanager
def counting(
    formulas: Mapping[Any, Callable[..., int]] | None = None,
) -> Iterator[FlopCounterMode]:
    """Count the FLOPs of what runs inside; unknown operations raise, unless in `formulas`."""
    counter = FlopCounterMode(display=False, custom_mapping={**_CORRECTED, **(formulas or {})})
    fast = torch.backends.mha.get_fastpath_enabled()
    # The fused path of nn.MultiheadAttention is one operation without a formula; the usual
    # path computes the same from matrix products.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with _CostCheck(counter.flop_registry), counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def count_macs(
    network: EarlyExitNetwork,
    example: Any = None,  # noqa: ANN401 - a batch as the network takes it
    formulas: Mapping[Any, Callable[..., int]] | None = None,
) -> Costs:
    """MACs per sample of every stage and every head; FLOPs are twice as many.

    The stages are really run, once, in eval mode and without gradients.

    Args:
        network: The network.
        example: A batch; a made-up one of the network's input size by default. For text the
            cost depends on its length.
        formulas: FLOPs of operations that the counter does not know, as functions of the
            arguments' shapes: `{torch.ops.my.operator: lambda a, b, out_shape, **_: ...}`.

    Returns:
        Costs with `.stages`, `.heads` and `.cumulative`, unit `macs`.

    Raises:
        NetworkError: An operation of unknown cost, named; or a stage without any cost.

    Example:
        >>> from offramp.networks import build
        >>> network = build("convnet", num_classes=10, image_size=16)
        >>> costs = count_macs(network)
        >>> costs.unit, len(costs.stages), int(costs.cumulative.argmax())
        ('macs', 4, 3)
    """
    stages: list[float] = []
    heads: list[float] = []
    with torch.no_grad(), evaluating(network):
        state = first_state(network, example)
        rows = batch_size(state)
        logits = torch.zeros(rows, 0, network.num_classes)
        for exit_index, name in enumerate(network.exit_names):
            with counting(formulas) as stage:
                state = network.advance(exit_index, state)
            with counting(formulas) as head:
                new = network.head(exit_index, state, logits)
            logits = torch.cat([logits.to(new), new.unsqueeze(1)], dim=1)
            stages.append(_macs(stage, rows))
            heads.append(_macs(head, rows))
            if not stages[-1]:
                raise NetworkError(
                    f"the stage before exit {exit_index} ({name}) has no operation that costs "
                    "anything; put that exit after a later module"
                )
    return Costs(tuple(stages), tuple(heads), unit="macs", starts=network.starts)


def first_state(network: EarlyExitNetwork, example: Any) -> State:  # noqa: ANN401
    """The state in which an example enters a network; a made-up one, if there is none."""
    if example is not None:
        return network.begin(example)
    return move_beside([network], network.begin(network.example()))


def stage_macs(stages: list[nn.Module], state: State) -> list[float]:
    """MACs per sample of modules that are run one after the other from `state`."""
    rows = batch_size(state)
    result = []
    with torch.no_grad():
        for stage in stages:
            with counting() as counter:
                state = stage(state)
            result.append(_macs(counter, rows))
    return result


def _macs(counter: FlopCounterMode, rows: int) -> float:
    return counter.get_total_flops() / 2 / rows
