"""`Profile`: the seconds of a network's stages and exits on one machine, as a runner runs them.

`stage_times` says how they are measured.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offramp.arrays import AnyArray, Array, as_numpy
from offramp.batch_times import BatchTimes, seconds_left
from offramp.errors import (
    ConfigError,
    FileFormatError,
    OriginError,
)
from offramp.files import read_description, restore, write_description
from offramp.ledger import Ledger
from offramp.machine import describe_device, device_of, machine_name
from offramp.networks.inputs import as_batch
from offramp.networks.network import EarlyExitNetwork, check_has_exits
from offramp.networks.state import batch_size as rows_of
from offramp.networks.state import evaluating, take
from offramp.policy import Policy
from offramp.price import Price
from offramp.progress import Progress, showing
from offramp.stopwatch import Stopwatch, Timed, take_turns
from offramp.timing.config import check_runs
from offramp.timing.runners import Opener, plain_policy, watched
from offramp.timing.stage_times import StageTimes
from offramp.training.batches import moved

VERSION = 3

SMALL = 8  # samples that tell how long a large batch would take
ALWAYS = 256  # batches up to this size are always timed


@dataclass(frozen=True)
class Profile:
    """Seconds of every stage and of the overhead of every exit, in one runtime on one machine.

    The batches are whole and of several sizes, because a stage on 12 of 64 rows does not take
    12/64 of the time. Each figure is the best of several turns, which other work on the machine
    disturbs least.

    Attributes:
        runtime: `torch` or `onnx`.
        threads: That the runtime used.
        device: Where the network ran.
        machine: Name of the processor.
        network: Fingerprint of the network.
        exits: The exits that it was measured with, `[M]`; all of them unless a policy has fewer.
        decided_by: The answer and the scorer whose seconds are part of `overheads`.
        sizes: `[S]` rows of a batch, ascending.
        full: `[S]` seconds of the network without exits.
        stages: `[S, M]` seconds of each stage. The first one includes the fixed cost of a call.
        overheads: `[S, M]` seconds of each exit: head, answer, scorer, and taking out the samples
            that stop.
        overheads_reading_back: `[S, M]` the same where the decision reads the exits before.
        call: `[S]` the fixed cost of a call, which is in the first stage.
        spread: `[S]` how much longer than the best the median turn took, as a share.
        starts: Exits of a chain, besides the first, at which another network begins.
        entry: `[S]` of a chain: seconds that belong to whichever network comes first.
    """

    runtime: str
    threads: int
    device: str
    machine: str
    network: str
    exits: list[int]
    decided_by: str
    sizes: list[int]
    full: list[float]
    stages: list[list[float]]
    overheads: list[list[float]]
    overheads_reading_back: list[list[float]]
    call: list[float]
    spread: list[float]
    starts: list[int] = field(default_factory=list)
    entry: list[float] = field(default_factory=list)

    @property
    def num_exits(self) -> int:
        """M."""
        return len(self.stages[0])

    @property
    def where(self) -> str:
        """Runtime, threads, device and machine, in words."""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.runtime}, {threads}, {self.device}, {self.machine}"

    def at(self, batch_size: int) -> BatchTimes:
        """Seconds per sample in batches of this size, for `ledger.with_costs`.

        Its `costs` are for batches that do not shrink.
        Budgets are then shares of the seconds of the network without exits in this runtime. What
        is left of a batch is counted as it falls when samples arrive at random.

        Args:
            batch_size: At most the largest that was measured.
        """
        if not 1 <= batch_size <= self.sizes[-1]:
            raise ConfigError(
                f"this profile was measured for batches of 1 to {self.sizes[-1]}, got "
                f"{batch_size}: measure again with that batch size"
            )
        full = float(np.interp(batch_size, self.sizes, self.full)) / batch_size
        entry = float(np.interp(batch_size, self.sizes, self.entry or [0.0] * len(self.sizes)))

        def curves(seconds: list[list[float]]) -> Array:
            """`[M, G]`, exit by exit, as the batch shrinks."""
            columns = zip(*seconds, strict=True)
            found = np.stack([seconds_left(self.sizes, each, batch_size) for each in columns])
            # One sample is all of its batch or nothing of it: seconds are proportional.
            return found[:, -1:] if batch_size == 1 else found

        return BatchTimes(
            stages=curves(self.stages),
            heads=curves(self.overheads),
            reference=full,
            heads_reading_back=curves(self.overheads_reading_back),
            starts=tuple(self.starts),
            entry=entry / batch_size,
            origin=f"{self.where}, batches of {batch_size}",
        )

    def timed(self, ledger: Ledger, batch_size: int) -> Ledger:
        """A ledger of this network with its costs in seconds.

        Raises:
            OriginError: The ledger is of another network.
        """
        if ledger.network is not None and ledger.network != self.network:
            raise OriginError(
                f"this profile is of the network {self.network[:16]!r}, and the {ledger.split} "
                f"ledger of {ledger.network[:16]!r}: profile the network that was recorded"
            )
        if list(ledger.exits) != self.exits and set(self.exits) < set(ledger.exits):
            ledger = ledger.keep_exits([ledger.exits.index(kept) for kept in self.exits])
        return ledger.with_costs(self.at(batch_size))

    def predicted_share(
        self, policy: Policy, batch_size: int, exits: AnyArray | None = None
    ) -> float:
        """The seconds of a policy at its operating point, as a share of the full network's.

        Args:
            policy: Of this network.
            batch_size: Samples per batch.
            exits: `[N]`, the exits of the policy that samples take; by default they leave as the
                val samples did.
        """
        assert policy.num_classes is not None, "a policy with thresholds is fitted"
        times = self.at(batch_size).keep([self.exits.index(each) for each in policy.exits])
        price = Price(policy.answer, policy.scorer, times.costs, policy.num_classes, times)
        thresholds, shares = policy.thresholds[None], policy.points.shares[policy.selected][None]
        if exits is not None:
            counts = np.bincount(as_numpy(exits), minlength=len(policy.exits))
            shares = (counts / len(exits))[None]
        return float((price.at(thresholds, shares) * shares).sum())

    def save(self, folder: str | Path) -> Path:
        """Write the profile as JSON, and return the folder."""
        write_description(Path(folder), "profile", VERSION, asdict(self))
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> "Profile":
        """Read a profile that `save` wrote.

        Raises:
            FileFormatError: The folder is foreign or damaged.
        """
        meta = read_description(Path(folder), "profile", VERSION)
        profile: Profile = restore(cls, meta, f"{folder} is not a complete profile")
        rows = len(profile.sizes)
        by_exit = profile.stages, profile.overheads, profile.overheads_reading_back
        parts = profile.full, profile.call, profile.spread, *by_exit
        complete = rows and all(len(part) == rows for part in parts)
        complete = complete and len(profile.entry) in (0, rows)
        exits = {len(row) for part in by_exit for row in part}
        sizes = profile.sizes == sorted(set(profile.sizes)) and profile.sizes[0] > 0
        if not complete or exits != {len(profile.exits)} or not sizes:
            raise FileFormatError(
                f"{folder} is not a complete profile: its parts do not have the same sizes and "
                "exits"
            )
        return profile

    def __str__(self) -> str:
        lines = [f"milliseconds per sample, {self.where}", f"overheads: {self.decided_by}"]
        for row, size in enumerate(self.sizes):
            stages, overheads = (
                " ".join(f"{1e3 * value / size:.3f}" for value in part[row])
                for part in (self.stages, self.overheads)
            )
            full = 1e3 * self.full[row] / size
            lines.append(f"batch {size}: full {full:.3f}, stages {stages}, overheads {overheads}")
        return "\n".join(lines)


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
