"""The cores that this process may use."""

import math
import os
from pathlib import Path


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
