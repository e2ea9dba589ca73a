"""What is timed, and for how long; without torch, as the command line reads it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from offramp import check
from offramp.registry import RUNTIMES

Clock = Literal["wall", "process"]
CLOCKS: dict[Clock, Callable[[], float]] = {
    "wall": time.perf_counter,
    "process": time.process_time,  # what others do on the machine does not count
}


@dataclass(frozen=True)
class BenchConfig:
    """What is timed.

    Args:
        runtimes: Runtimes, of `torch` and `onnx`.
        batch_sizes: Samples per batch.
        budgets: Operating points of the policy. Default: the one that it is at.
        threads: Threads of the runtimes. Default: as many as they use now.
        seconds: Approximate time per runtime and batch size.
        cuts: Time the network cut at each exit as well.
    """

    runtimes: Sequence[str] = RUNTIMES
    batch_sizes: Sequence[int] = (1, 32, 256)
    budgets: Sequence[float] = ()
    threads: int | None = None
    seconds: float = 5.0
    cuts: bool = True

    def __post_init__(self) -> None:
        check_runs(self.runtimes, self.batch_sizes, self.seconds)
        for budget in self.budgets:
            check.within("budget", budget, 0, 1, ends="(]")


def check_runs(runtimes: Sequence[str], batch_sizes: Sequence[int], seconds: float) -> None:
    """Raise `ConfigError` unless there is something to run, and time for it."""
    for runtime in runtimes or [""]:
        check.one_of("runtime", runtime, RUNTIMES)
    for size in batch_sizes or [0]:
        check.whole("batch_size", size, least=1)
    check.within("seconds", seconds, 0, float("inf"))  # without end: on all samples
