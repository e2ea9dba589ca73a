"""The one stopwatch: whatever is timed takes turns, and its best turn counts.

Other work on a machine can only make a run longer. So whatever is compared runs in turns, several
times, and the fastest turn is the one that was disturbed least.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from offramp.arrays import Floats
from offramp.machine import synchronize

if TYPE_CHECKING:
    import torch


LEAST = 2  # turns: the first one, in new memory, can take half as long again
FASTEST = 0.1  # of all runs that are alike: those that other work disturbed least
SHORT = 0.1  # of the time to spend: what one more turn may take when it has run out


class Stopwatch:
    """A clock that waits for a device, and keeps what it showed whenever it was called.

    Runners call their clock at the beginning of every stage, so a runner whose clock is a
    stopwatch is timed stage by stage.

    Args:
        clock: Seconds; `time.process_time` on a machine that others use, with one thread.
        device: Whose work is waited for, since calls on a GPU return before it is done; the CPU
            by default.

    Example:
        >>> seconds = iter([0.0, 1.0, 3.0, 7.0])
        >>> watch = Stopwatch(lambda: next(seconds))
        >>> def run():
        ...     watch()  # the first stage
        ...     watch()  # the second one
        >>> watch.timed(run)[0].tolist()
        [3.0, 4.0]
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        device: "torch.device | None" = None,
    ) -> None:
        self._clock, self._device = clock, device
        self._stages: list[float] = []

    def now(self) -> float:
        """The time at which the device has done everything so far."""
        if self._device is not None:
            synchronize(self._device)
        return self._clock()

    def __call__(self) -> float:
        """The same, kept as the beginning of a stage."""
        self._stages.append(self.now())
        return self._stages[-1]

    def timed(self, run: Callable[[], Any]) -> tuple[Floats, Any]:
        """The seconds of each stage, and what the run returned.

        The first stage includes whatever comes before it, the last one whatever comes after. A run
        that never calls the clock has one stage.
        """
        self._stages.clear()
        start = self.now()
        result = run()
        end = self.now()
        return np.diff([start, *self._stages[1:], end]), result


@dataclass(eq=False)
class Timed:
    """Something that is timed on batches, stage by stage.

    Args:
        run: Takes a batch.
        batches: All of them have the same number of rows.
        warm: How often it runs, untimed, before each of its turns: after something else has run,
            caches are cold.
        prepare: Called before each of its turns.
        alike: Whether all batches take equally long, so that each is one more repetition.

    Attributes:
        turns: By batch and turn, the seconds of each stage.
    """

    run: Callable[[Any], Any]
    batches: Sequence[Any]
    warm: int = 1
    prepare: Callable[[], None] | None = None
    alike: bool = False
    turns: list[list[Floats]] = field(init=False)

    def __post_init__(self) -> None:
        self.turns = [[] for _ in self.batches]

    def turn(self, watch: Stopwatch) -> list[Any]:
        """Time it once on every batch, and return the results."""
        if self.prepare is not None:
            self.prepare()
        for _ in range(self.warm):
            self.run(self.batches[0])
        results = []
        for turns, batch in zip(self.turns, self.batches, strict=True):
            seconds, result = watch.timed(partial(self.run, batch))
            turns.append(seconds)
            results.append(result)
        return results

    @property
    def by_batch(self) -> Floats:
        """`[B, stages]`: the seconds of each batch's stages in its best turn.

        A stage is short, and easily undisturbed in a turn in which the others were not. So the
        best of each stage are scaled to the best of whole turns.
        """
        rows = []
        for turns in map(np.array, self.turns):
            best = turns.min(axis=0)
            rows.append(best * (turns.sum(axis=1).min() / best.sum()) if best.any() else best)
        return np.array(rows)

    @property
    def best(self) -> Floats:
        """`[stages]`: the mean over batches of the seconds in their best turns.

        Where batches are alike: the mean over the fastest tenth of all runs.
        """
        if not self.alike:
            found: Floats = self.by_batch.mean(axis=0)
            return found
        runs = np.concatenate([np.array(turns) for turns in self.turns])
        fastest = runs.sum(axis=1).argsort(kind="stable")[: max(1, round(FASTEST * len(runs)))]
        return np.asarray(runs[fastest].mean(axis=0))

    @property
    def spread(self) -> float:
        """How much longer than the best turn the median took, as a share, on the first batch.

        The first turn is left out, since it is slower.
        """
        totals = np.array(self.turns[0][1:]).sum(axis=1)
        return float(np.median(totals) / totals.min() - 1)


def take_turns(
    groups: Sequence[Sequence[Timed]],
    watch: Stopwatch,
    least: int = LEAST,
    seconds: float = 0.0,
    advance: Callable[[int], None] = lambda seconds: None,
) -> None:
    """Time everything again and again, a group at a time.

    Every group has its least turns, however long they take, and another one if that is short. More
    follow until the time is spent, each of the group that has had the least of it.

    Args:
        groups: Such as what is timed at one batch size.
        watch: Whose clock is read.
        least: Turns of every group.
        seconds: Approximate time to spend.
        advance: Called with the whole seconds that have passed since it was last called.
    """
    spent, taken = np.zeros(len(groups)), np.zeros(len(groups), dtype=int)
    while True:
        is_short = (taken >= least) & (spent <= SHORT * seconds * taken)
        waiting = np.flatnonzero(taken < least + is_short)
        if not len(waiting) and spent.sum() < seconds:
            waiting = np.arange(len(groups))
        if not len(waiting):
            return
        chosen, before = waiting[spent[waiting].argmin()], spent.sum()
        start = time.perf_counter()
        for each in groups[chosen]:
            each.turn(watch)
        spent[chosen] += time.perf_counter() - start
        taken[chosen] += 1
        advance(int(spent.sum()) - int(before))
