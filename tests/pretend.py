"""A device that pretends: it computes on the CPU, and refuses tensors that are not on it.

It is registered with PyTorch as `pretend`, in the place for private backends. A tensor on it wraps
one on the CPU, so results are those of the CPU to the last bit, and an operation between the two
devices raises as it would on a GPU. Only copies may cross, and numbers (tensors without
dimensions) may stay on the CPU, as PyTorch allows.
"""

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
CROSSING = (aten.copy_.default, aten._to_copy.default)


class PretendTensor(torch.Tensor):
    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device("pretend", 0),
        )

    def __init__(self, held):
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl

    def tolist(self):  # PyTorch does not ask subclasses for their values
        return self.held.tolist()

    def numpy(self, *, force=False):
        if not force:
            raise TypeError("can't convert a tensor on a device to numpy: copy it to the CPU")
        return self.held.numpy(force=True)

    def __repr__(self):
        return f"PretendTensor({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func not in CROSSING:
            check_devices(func, tree_leaves((args, kwargs)))
        inner, options = tree_map_only(cls, lambda each: each.held, (args, kwargs))
        target = options.get("device")
        if target is not None:
            options["device"] = torch.device("cpu")
        out = func(*inner, **options)
        if func is aten.copy_.default and not isinstance(args[0], cls):
            return args[0]
        if target is not None and torch.device(target).type == "cpu":
            return out
        out = tree_map_only(torch.Tensor, cls, out)
        return return_and_correct_aliasing(func, args, kwargs, out)


def check_devices(func, leaves):
    tensors = [each for each in leaves if isinstance(each, torch.Tensor) and each.ndim]
    strange = [each for each in tensors if not isinstance(each, PretendTensor)]
    if strange:
        raise RuntimeError(f"{func} mixes devices: a tensor {list(strange[0].shape)} on the CPU")


class Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]

    def get_device_name(self, device):
        return "Pretended GPU"


def empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    memory_format = memory_format or torch.contiguous_format
    return PretendTensor(torch.empty(size, dtype=dtype, memory_format=memory_format))


def empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return PretendTensor(torch.empty_strided(size, stride, dtype=dtype))


def copy_from(source, target, non_blocking=False):
    """Copies that PyTorch makes by itself, as for an index that is a list."""
    source, target = (getattr(each, "held", each) for each in (source, target))
    return target.copy_(source)


def halved(name):
    """An operation in the precision of autocast."""
    operation = getattr(aten, name)
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def run(*args):
        dtype = torch.get_autocast_dtype("pretend")
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return operation(*tree_map_only(torch.Tensor, lambda each: each.to(dtype), args))

    return run


LIBRARIES = []  # what keeps the device registered


def register():
    """Register the device for the rest of the process."""
    backend_registration._setup_privateuseone_for_python_backend("pretend", Backend())
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    for name in ("conv2d", "linear", "matmul"):
        library.impl(name, halved(name), "AutocastPrivateUse1")
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    LIBRARIES.extend([library, others])
