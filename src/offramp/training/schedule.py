"""`Schedule`: the learning rate over the epochs."""

from dataclasses import dataclass
from itertools import accumulate
from math import cos, pi

_LEAST = 0.01  # of the full learning rate, at the end of a cycle
_GROWTH = 2  # of each cycle over the one before


@dataclass(frozen=True)
class Schedule:
    """A factor on the learning rate, as a function of the epochs that are done.

    It is a pure function: nothing has to be restored when a run is resumed.

    Args:
        epochs: At which training ends.
        warmup: Epochs over which the factor rises linearly; at most a fifth of `epochs`.
        cycle: Length of the first cosine cycle; each next one is twice as long. As many cycles
            as fit are stretched to end with the last epoch: stopping in the middle of one would
            leave the learning rate high.

    Example:
        >>> schedule = Schedule(epochs=10, warmup=2, cycle=50)
        >>> [round(schedule.factor(epoch), 3) for epoch in (0, 1, 2, 6, 10)]
        [0.0, 0.5, 1.0, 0.505, 0.01]
        >>> Schedule(epochs=160, warmup=5, cycle=50).cycles()
        [51.666..., 103.333...]
    """

    epochs: int
    warmup: float
    cycle: float

    @property
    def warmup_epochs(self) -> float:
        """The warm-up, shortened if training is short."""
        return min(self.warmup, self.epochs / 5)

    def cycles(self) -> list[float]:
        """Lengths of the cosine cycles, in epochs."""
        room = self.epochs - self.warmup_epochs
        lengths = [self.cycle]
        while sum(lengths) + lengths[-1] * _GROWTH <= room:
            lengths.append(lengths[-1] * _GROWTH)
        return [length * room / sum(lengths) for length in lengths]

    def restarts(self) -> list[int]:
        """The numbers of whole epochs after which a cycle ends and another one begins.

        Example:
            >>> Schedule(epochs=1000, warmup=5, cycle=50).restarts()
            [71, 204, 469]
        """
        ends = accumulate(self.cycles()[:-1], initial=self.warmup_epochs)
        # A cycle that ends within an epoch is over before it: after it, the rate is high again.
        return [int(end + 1e-9) for end in ends][1:]

    def factor(self, epoch: float) -> float:
        """The factor after `epoch` epochs, which need not be whole."""
        if epoch < self.warmup_epochs:
            return epoch / self.warmup_epochs
        epoch -= self.warmup_epochs
        cycles = self.cycles()
        for length in cycles[:-1]:
            if epoch < length:
                return _cosine(epoch / length)
            epoch -= length
        return _cosine(min(epoch / cycles[-1], 1.0))


def _cosine(share: float) -> float:
    return _LEAST + (1 - _LEAST) * (1 + cos(pi * share)) / 2
