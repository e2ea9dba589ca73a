"""What this machine has: devices, the precisions they are fast in, cores and memory.

torch is imported where it is needed: exports run without it, on these same cores.
"""

import ctypes
import math
import os
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from offramp import check
from offramp.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
AutoPrecision = Literal["auto", "float32", "bfloat16", "float16"]

# Instructions that multiply in bfloat16: Intel and AMD, Intel's tiles, ARM.
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
SHOWN = ("avx2", "avx512_f", "sve", *BFLOAT16)


def devices() -> list[str]:
    """The devices that torch can use here, best first.

    Example:
        >>> devices()[-1]
        'cpu'
    """
    import torch

    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [*gpus, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def find_device(name: "str | torch.device" = "auto") -> "torch.device":
    """A device by name; `auto` is the first CUDA GPU, else Apple's GPU, else the CPU.

    Raises:
        ConfigError: It is not there.

    Example:
        >>> find_device("cpu")
        device(type='cpu')
    """
    import torch

    if name == "auto":
        name = devices()[0]
    try:
        device = torch.device(name)
        if device.type == "cpu":
            return torch.device("cpu")
        module: Any = torch.get_device_module(device)
        count = module.device_count() if module.is_available() else 0
    except (RuntimeError, AttributeError):  # a word that is no device, or one without arithmetic
        device, module, count = torch.device("cpu"), None, 0
    if (device.index or 0) >= count:
        raise ConfigError(
            f"`device` must be auto or one of {', '.join(devices())} on this machine, got "
            f"{str(name)!r}; offramp doctor says which GPUs torch can use"
        )
    if device.index is None:  # tensors have the number of their GPU, and devices are compared
        device = torch.device(device.type, getattr(module, "current_device", lambda: 0)())
    return device


def device_of(module: "nn.Module") -> "torch.device":
    """Where a module is: its first parameter's or buffer's device, the CPU without any.

    Example:
        >>> import torch
        >>> device_of(torch.nn.Linear(2, 2))
        device(type='cpu')
    """
    import torch

    tensors = (*module.parameters(), *module.buffers())
    return tensors[0].device if tensors else torch.device("cpu")


def device_for(module: "nn.Module", name: "str | torch.device | None") -> "torch.device":
    """Where a module shall compute; it is not moved.

    Args:
        module: The module.
        name: Of a device. None: where the module is. `auto`: where it is if that is a GPU, and
            `find_device("auto")` otherwise.

    Raises:
        ConfigError: There is no such device.

    Example:
        >>> import torch
        >>> device_for(torch.nn.Linear(2, 2), None)
        device(type='cpu')
    """
    present = device_of(module)
    if name is None or (name == "auto" and present.type != "cpu"):
        return present
    return find_device(name)


def describe_device(device: "torch.device") -> str:
    """A device and the name of its hardware, such as `cuda:0 (NVIDIA A100)`.

    Example:
        >>> import torch
        >>> describe_device(torch.device("cpu"))
        'cpu'
    """
    import torch

    if device.type == "cpu":
        return "cpu"
    name = getattr(torch.get_device_module(device), "get_device_name", lambda _: "")(device)
    return f"{device} ({name})" if name else str(device)


def synchronize(device: "torch.device") -> None:
    """Wait until a device has done all its work: calls return before it has, except on a CPU."""
    if device.type != "cpu":
        import torch

        torch.accelerator.synchronize(device)


def cpu_features() -> dict[str, bool]:
    """The processor's instructions that matter for speed, and whether it has them."""
    known = _capabilities()
    return {name: bool(known.get(name, False)) for name in SHOWN}


def _capabilities() -> Mapping[str, Any]:
    import torch

    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    return {  # all that older versions of torch know
        "avx2": torch.cpu._is_avx2_supported(),
        "avx512_f": torch.cpu._is_avx512_supported(),
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
        "amx_bf16": torch.cpu._is_amx_tile_supported(),
    }


def fast_precision(device: "torch.device") -> Precision:
    """The precision that a device is fastest in, without loss of range where that is possible.

    bfloat16 where the hardware has it, since elsewhere it is emulated, ten times slower than
    float32 on a processor. Otherwise float16 on GPUs with fast instructions for it (from Volta on,
    and Apple's), and else float32.
    """
    import torch

    if device.type == "cuda":
        with torch.cuda.device(device):
            if torch.cuda.is_bf16_supported(including_emulation=False):
                return "bfloat16"
        return "float16" if torch.cuda.get_device_capability(device) >= (7, 0) else "float32"
    if device.type == "mps":
        return "float16"
    features = cpu_features()
    is_fast = device.type == "cpu" and any(features[name] for name in BFLOAT16)
    return "bfloat16" if is_fast else "float32"


def to_precision(name: str, device: "torch.device") -> Precision:
    """A precision by name; `auto` is the one that the device is fastest in.

    Raises:
        ConfigError: An unknown name.
    """
    check.one_of("precision", name, ("auto", *PRECISIONS))
    return fast_precision(device) if name == "auto" else cast(Precision, name)


def autocast(device: "torch.device", precision: Precision) -> AbstractContextManager[Any]:
    """Run in a precision what keeps its accuracy in it, such as matrix products.

    Example:
        >>> import torch
        >>> with autocast(torch.device("cpu"), "bfloat16"):
        ...     torch.nn.Linear(2, 2)(torch.rand(1, 2)).dtype
        torch.bfloat16
    """
    import torch

    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))


def keep_memory() -> bool:
    """Keep up to a GiB of freed memory for the next batch, instead of giving it back each time.

    The GNU allocator gives the buffers of large batches back when they are freed, and the system
    has to fill them with zeros when they are asked for again: a quarter of the time of a batch of
    256 images in a small network. This concerns the whole process, so no runner does it by itself;
    the commands do. The same, before a process starts: `MALLOC_TRIM_THRESHOLD_=1073741824
    MALLOC_MMAP_THRESHOLD_=1073741824`.

    Returns:
        Whether the allocator can do that; only the GNU C library's can.

    Example:
        >>> keep_memory() in (True, False)
        True
    """
    trim_threshold, mmap_threshold = -1, -3  # of <malloc.h>
    if platform.libc_ver()[0] != "glibc":
        return False
    allocator = ctypes.CDLL(None)
    return all(allocator.mallopt(each, 2**30) for each in (trim_threshold, mmap_threshold))


def machine_name() -> str:
    """The processor's name, or what the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def physical_cores() -> int:
    """Cores that this process may use: physical ones, in its affinity and its container's quota.

    Two threads of one physical core share its arithmetic units, so more threads than these make
    matrix products no faster.
    """
    if not hasattr(os, "sched_getaffinity"):  # macOS and Windows
        return os.cpu_count() or 1
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, math.ceil(min(len(cores), _quota())))


def _siblings(cpu: int) -> str:
    """The logical processors on the same physical core, as the kernel lists them."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text()
    except OSError:  # unknown: every processor counts as a core
        return str(cpu)


def _quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Processors that the container's control group grants; infinite without a limit.

    Example:
        >>> _quota(Path("/nowhere"))
        inf
    """
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((root / name).read_text() for name in files).split()
            return int(quota) / int(period) if int(quota) > 0 else math.inf
        except (OSError, ValueError, ZeroDivisionError):  # not there, or "max"
            continue
    return math.inf
