"""Operations that count as nothing: their cost is at most linear in the size of their arguments.

`torch` tags element-wise operations, reductions and views as such. Named here are the others.
"""

from typing import Any

import torch

__all__ = ["is_cheap"]

_TAGS = {torch.Tag.pointwise, torch.Tag.reduction, torch.Tag.view_copy}

_NORMS = {
    "_fused_rms_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "native_batch_norm",
    "native_group_norm",
    "native_layer_norm",
}
_ACTIVATIONS = {
    "_log_softmax",
    "_prelu_kernel",
    "_softmax",
    "glu",
    "hardswish",
    "log_sigmoid_forward",
    "native_dropout",
    "rrelu_with_noise",
}
_POOLS = {
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
}
_RESIZES = {
    "constant_pad_nd",
    "im2col",
    "reflection_pad1d",
    "reflection_pad2d",
    "replication_pad2d",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
}
_LOOKUPS = {
    "_embedding_bag",
    "_local_scalar_dense",
    "_unsafe_index",
    "embedding",
    "gather",
    "index",
    "index_put",
    "index_select",
    "masked_fill",
    "masked_select",
    "nonzero",
    "scatter",
    "select_scatter",
    "slice_scatter",
}
_COPIES = {
    "_reshape_alias",
    "_to_copy",
    "_unsafe_view",
    "cat",
    "copy",
    "cumsum",
    "detach",
    "flip",
    "channel_shuffle",
    "native_channel_shuffle",
    "pixel_shuffle",
    "pixel_unshuffle",
    "repeat",
    "repeat_interleave",
    "roll",
    "stack",
    "tril",
    "triu",
}
_NEW = {
    "arange",
    "bernoulli",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "fill",
    "full",
    "full_like",
    "linspace",
    "new_empty",
    "new_empty_strided",
    "new_full",
    "new_ones",
    "new_zeros",
    "normal",
    "ones",
    "ones_like",
    "rand",
    "randn",
    "scalar_tensor",
    "uniform",
    "zero",
    "zeros",
    "zeros_like",
}
_SUMS = {"all", "any", "sum"}
_CHEAP = _NORMS | _ACTIVATIONS | _POOLS | _RESIZES | _LOOKUPS | _COPIES | _NEW | _SUMS


def is_cheap(operation: Any) -> bool:  # noqa: ANN401 - a torch OpOverload, which has no public type
    """Whether an operation costs next to nothing beside convolutions and matrix products.

    Example:
        >>> is_cheap(torch.ops.aten.relu.default), is_cheap(torch.ops.aten.mm.default)
        (True, False)
    """
    namespace, _, name = operation._schema.name.partition("::")
    if namespace != "aten":
        return False
    # An operation in place has the name of the one that makes a copy, and an underscore; only
    # the latter is tagged.
    plain = name.rstrip("_") if not name.startswith("__") else name
    packet = getattr(torch.ops.aten, plain, operation._overloadpacket)
    forms = [operation, *(getattr(packet, each) for each in packet.overloads())]
    return plain in _CHEAP or any(form.is_view or _TAGS & set(form.tags) for form in forms)
