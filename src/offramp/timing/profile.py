"""`profile`: the seconds of a network's stages and exits on one machine, as a runner runs them.

`stage_times` says how they are measured.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from offramp.errors import ConfigError
from offramp.machine import describe_device, device_of, machine_name
from offramp.networks.inputs import as_batch
from offramp.networks.network import EarlyExitNetwork, check_has_exits
from offramp.networks.state import batch_size as rows_of
from offramp.networks.state import evaluating, take
from offramp.policy import Policy
from offramp.progress import Progress, showing
from offramp.stopwatch import Stopwatch, Timed, take_turns
from offramp.timing.config import check_runs
from offramp.timing.results import Profile
from offramp.timing.runners import Opener, plain_policy, watched
from offramp.timing.stage_times import StageTimes
from offramp.training.batches import moved

SMALL = 8  # samples that tell how long a large batch would take
ALWAYS = 256  # batches up to this size are always timed


def profile(  # noqa: PLR0913 - all but the first two by name
    network: EarlyExitNetwork,
    policy: Policy | None = None,
    runtime: str = "torch",
    batch_size: int | Sequence[int] = (1, 32, 256),
    threads: int | None = None,
    inputs: Any = None,  # noqa: ANN401 - a batch as the network takes it
    seconds: float = 20.0,
    clock: Callable[[], float] = time.perf_counter,
    progress: bool | Progress = True,
) -> Profile:
    """Measure the seconds of every stage and of the overhead of every exit, as they really run.

    A real runner is made and its batches are sent through all exits, past all of them, out at
    the first, and out one by one; it reads its clock before every stage. All of this takes turns
    with the network without exits in the same runtime, and with a runner that has the last exit
    only: what stages take longer in pieces than in one is a cost of the exits between them.

    Args:
        network: On the device where it will run.
        policy: Whose answer and scorer are timed; the max probability by default, which takes
            about as long as other scorers without history. Decisions that read earlier exits are
            then timed as well, by break-even prices.
        runtime: `torch` or `onnx`.
        batch_size: Of the batches to come; one or several. Smaller ones are measured too.
        threads: Of the runtime; what it uses now by default.
        inputs: Real samples, which matters for texts; made-up ones by default.
        seconds: Approximate time to spend. Every size is measured at least twice; one above 256
            that alone would take twice as long as this is left out.
        clock: Seconds; `time.process_time` on a machine that others use, with one thread.
        progress: Whether progress is shown, on stderr; or an `offramp.progress.Progress`.

    Example:
        >>> from offramp.networks import build
        >>> network = build("convnet", num_classes=4, image_size=8)
        >>> found = profile(network, batch_size=[1, 4], seconds=0)
        >>> found.sizes, found.at(batch_size=4).costs.unit
        ([1, 2, 4], 'seconds')
    """
    return measured(
        network, policy, Opener(runtime, threads), batch_size, inputs, seconds, clock, progress
    )


def measured(
    network: EarlyExitNetwork,
    policy: Policy | None,
    opener: Opener,
    batch_size: int | Sequence[int],
    inputs: Any,  # noqa: ANN401
    seconds: float,
    clock: Callable[[], float],
    progress: bool | Progress,
) -> Profile:
    """As `profile`, with runners that share what is exported."""
    runtime = opener.runtime
    check_has_exits(network, "a profile")
    largest = [batch_size] if isinstance(batch_size, int) else list(batch_size)
    check_runs([runtime], largest, seconds)
    with ExitStack() as stack:
        bar, start = stack.enter_context(showing(progress)), time.perf_counter()
        bar.start(f"preparing {runtime}", max(1, round(seconds)))
        if inputs is not None:
            inputs = as_batch(inputs)
            network.settle(inputs)
        sizes = _sizes(network, largest, seconds, inputs, bar)
        batch = network.example(sizes[-1]) if inputs is None else inputs
        policy = plain_policy(network) if policy is None else policy
        where = device_of(network) if runtime == "torch" else torch.device("cpu")
        times, watch = StageTimes(network, policy, batch, sizes), Stopwatch(clock, where)
        runners = {
            name: watched(stack.enter_context(opener.opened(network, each)), watch)
            for name, each in times.policies.items()
        }
        used = getattr(runners["own"], "threads", torch.get_num_threads())
        bar.start(f"measuring in {runtime}", max(1, round(seconds)))
        # What it took to prepare is part of the time that was asked for.
        left = max(seconds - (time.perf_counter() - start), seconds / 2)
        times.run(runners, watch, left, bar.advance)
        if times.misfit:
            bar.say(
                f"note: one sample took {times.misfit:.0%} longer than two in one batch, so the "
                "seconds at batch 1 are in doubt: measure again when the machine is idle, or with "
                "`clock=time.process_time` (--clock process) and one thread"
            )
    return Profile(
        runtime=runtime,
        threads=used,
        device=describe_device(where),
        machine=machine_name(),
        network=network.fingerprint(),
        exits=list(policy.exits),
        decided_by=f"{policy.answer}, {policy.scorer}",
        sizes=sizes,
        starts=list(times.starts),
        **times.figures(),
    )


def _sizes(
    network: EarlyExitNetwork,
    asked: Sequence[int],
    seconds: float,
    inputs: Any,  # noqa: ANN401 - a batch as the network takes it, or None
    progress: Progress,
) -> list[int]:
    """Batch sizes to measure: those asked for, and smaller ones, more of them where they matter.

    A large batch that would take far longer than the time there is, as a small one tells, is left
    out.

    Raises:
        ConfigError: That is so for all that were asked for.
    """
    kept = list(asked)
    if max(asked) > ALWAYS:
        given = network.example(SMALL) if inputs is None else inputs
        few = take(given, np.arange(SMALL) % rows_of(given))
        small = Timed(network, [moved(few, device_of(network))])
        with torch.inference_mode(), evaluating(network):
            take_turns([[small]], Stopwatch(device=device_of(network)), least=1)
        each = float(small.best.sum()) / SMALL
        kept = [size for size in asked if size <= ALWAYS or size * each <= 2 * seconds]
        for size in sorted(set(asked) - set(kept)):
            about = f"takes about {size * each:,.1f} s, and {seconds:g} s are to be spent"
            if not kept:
                raise ConfigError(f"batch {size} {about}: give more seconds, or smaller batches")
            progress.say(f"note: batch {size} {about}: it is left out")
    smaller = (1, 2, 4, 8, 16, *(4**power for power in range(3, 8)))
    # Two always: the seconds of single samples are compared with them.
    return sorted({2, *kept, *(size for size in smaller if size < max(kept))})
