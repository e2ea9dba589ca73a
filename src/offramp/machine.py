"""What this machine has: precisions that it computes fast in, and cores for this process."""

import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import torch

from offramp.errors import ConfigError

Precision = Literal["float32", "bfloat16"]
PRECISIONS = ("auto", "float32", "bfloat16")

# Instructions that multiply in bfloat16: Intel and AMD, Intel's tiles, ARM.
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
SHOWN = ("avx2", "avx512_f", "sve", *BFLOAT16)


def cpu_features() -> dict[str, bool]:
    """The processor's instructions that matter for speed, and whether it has them."""
    known = _capabilities()
    return {name: bool(known.get(name, False)) for name in SHOWN}


def _capabilities() -> Mapping[str, Any]:
    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    return {  # all that older versions of torch know
        "avx2": torch.cpu._is_avx2_supported(),
        "avx512_f": torch.cpu._is_avx512_supported(),
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
        "amx_bf16": torch.cpu._is_amx_tile_supported(),
    }


def has_fast_bfloat16() -> bool:
    """Whether the GPU, or without one the processor, has instructions for bfloat16.

    Otherwise bfloat16 is emulated, which is ten times slower than float32 on a processor.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    features = cpu_features()
    return any(features[name] for name in BFLOAT16)


def to_precision(name: str) -> Precision:
    """A precision by name; `auto` is bfloat16 where the machine is fast at it, else float32."""
    if name not in PRECISIONS:
        raise ConfigError(f"--precision must be auto, float32 or bfloat16, got {name!r}")
    if name == "auto":
        name = "bfloat16" if has_fast_bfloat16() else "float32"
    return cast(Precision, name)


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


def machine_name() -> str:
    """The processor's name, or what the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
