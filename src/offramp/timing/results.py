"""What was timed, as data: `Profile` and `BenchRow`. Who reads them needs no torch."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from offramp.arrays import AnyArray, Array, as_numpy
from offramp.batch_times import BatchTimes, seconds_left
from offramp.errors import ConfigError, FileFormatError, OriginError
from offramp.files import read_description, restore, write_description
from offramp.ledger import Ledger
from offramp.policy import Policy
from offramp.price import Price

VERSION = 3
WITHOUT = "without exits"  # the name of the network without exits among what `bench` times


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


@dataclass(frozen=True)
class BenchRow:
    """What one candidate took at one batch size.

    Attributes:
        runtime: `torch` or `onnx`.
        batch_size: Samples per batch.
        name: `at 50%` for the policy at a budget, `without exits`, `exit 2 alone`, or a rival's.
        seconds: Per sample.
        share: Of the seconds of the network without exits in the same runtime.
        predicted: The share that the profile predicts of the policy; None for others.
        expected: The same for the exits that these samples took, which may be harder or easier
            than val; None for others.
        accuracy: On all samples, however few were timed; None without labels.
        samples: How many samples were timed; some of them several times, to fill a batch.
        labelled: How many samples the accuracy is of; None without labels.
    """

    runtime: str
    batch_size: int
    name: str
    seconds: float
    share: float
    predicted: float | None = None
    expected: float | None = None
    accuracy: float | None = None
    samples: int | None = None
    labelled: int | None = None
