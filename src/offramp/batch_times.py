"""Seconds of stages and heads in batches that shrink, as a profile or a cascade measures them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from offramp.arrays import AnyArray, Array, as_numpy
from offramp.costs import Costs, kept_stages
from offramp.errors import LedgerError

OCCUPANCY = (*(2.0**-power for power in range(10, -1, -1)),)
"""Shares of a batch that is still there, at which the seconds of shrinking batches are known."""


@dataclass(frozen=True, eq=False)
class BatchTimes:
    """Seconds of stages and heads in batches of one size, by the share of a batch that is left.

    A stage on a quarter of a batch takes more than a quarter of the time. All seconds are by
    sample of the *whole* batch. They stand beside the costs of a ledger, which are the seconds of
    batches that do not shrink.

    Args:
        stages: float64 `[M, G]`, at the shares `OCCUPANCY`; the last column is of whole batches.
            `[M, 1]` where seconds are proportional to what is left, as for single samples.
        heads: `[M, G]`, of each exit's head and decision.
        reference: Seconds of the network without exits.
        heads_reading_back: `[M, G]`, where decisions read earlier exits, which takes longer; the
            same as `heads` if None.
        starts: As in `Costs`.
        entry: As in `Costs`.
        cut: As in `Costs`.
        origin: Where they were measured, in words.

    Example:
        >>> stages, heads = np.array([[40.0], [60.0]]), np.array([[5.0], [10.0]])
        >>> BatchTimes(stages, heads, reference=100.0).costs.cumulative
        array([ 45., 115.])
    """

    stages: Array
    heads: Array
    reference: float
    heads_reading_back: Array | None = None
    starts: tuple[int, ...] = ()
    entry: float = 0.0
    cut: bool = False
    origin: str = ""

    def __post_init__(self) -> None:
        for name in ("stages", "heads", "heads_reading_back"):
            if getattr(self, name) is None:
                continue
            curves = as_numpy(getattr(self, name), np.float64)
            object.__setattr__(self, name, curves)
            if curves.shape != self.stages.shape or curves.shape[1:] not in ((1,), (_SHARES,)):
                raise LedgerError(
                    f"`{name}` must have the shape [M, 1] or [M, {_SHARES}], the same for stages "
                    "and heads: seconds at the shares of a batch in offramp.batch_times.OCCUPANCY"
                    f", got {list(curves.shape)}"
                )

    @classmethod
    def proportional(cls, costs: Costs) -> Self:
        """The times of batches whose stages take as much less as fewer samples are left."""
        mean = costs.mean()
        stages, heads = mean.stages[:, None], mean.heads[:, None]
        return cls(
            stages, heads, mean.mean_reference, starts=mean.starts, entry=mean.entry, cut=mean.cut
        )

    @property
    def costs(self) -> Costs:
        """Seconds by sample of batches that do not shrink."""
        return self.costs_of(reads_back=False)

    def costs_of(self, reads_back: bool) -> Costs:
        """The same for decisions that read earlier exits, or do not."""
        stages, heads = self.stages[:, -1], self._heads(reads_back)[:, -1]
        return Costs(stages, heads, self.reference, "seconds", self.starts, self.entry, self.cut)

    def _heads(self, reads_back: bool) -> Array:
        back = self.heads_reading_back
        return back if reads_back and back is not None else self.heads

    def cumulative_at(self, left: Array, heads_run: Array, reads_back: bool = False) -> Array:
        """What a sample pays for answering at each exit, when batches shrink: `[P, M]` float64.

        The time of a stage for what is left of a batch is paid in equal parts by the samples that
        are left, so the mean over samples is what a batch really takes.

        Args:
            left: `[P, M]`, the share of the samples that reach each exit.
            heads_run: bool `[P, M]`, the exits whose heads run; others cost nothing.
            reads_back: Whether decisions read earlier exits.

        Example:
            >>> stages, heads = np.array([[40.0], [60.0]]), np.array([[5.0], [10.0]])
            >>> times = BatchTimes(stages, heads, reference=100.0)
            >>> times.cumulative_at(np.array([[1.0, 0.5]]), np.array([[False, True]]))
            array([[ 40., 110.]])
        """
        stages = _by_sample_left(self.stages, left)
        heads = _by_sample_left(self._heads(reads_back), left)
        return np.cumsum(stages + heads * heads_run, axis=1)

    def keep(self, exits: Sequence[int]) -> Self:
        """Keep these exits, as `Costs.keep` does."""
        exits, last = list(exits), len(self.stages) - 1
        cut = self.cut or exits[-1] != last
        if exits == [last] and not cut:
            head = self.heads[exits, -1:]  # no sample leaves before the end
            stage = self.reference - head
            return replace(self, stages=stage, heads=head, heads_reading_back=None, starts=())
        bounds, starts = kept_stages(self.starts, exits)
        stages = np.stack([self.stages[a:b].cumsum(axis=0)[-1] for a, b in bounds])
        if bounds[0][0]:  # a later network has become the first one
            stages[0] += self.entry
        back = None if self.heads_reading_back is None else self.heads_reading_back[exits]
        heads = self.heads[exits]
        kept = replace(self, stages=stages, heads=heads, heads_reading_back=back)
        return replace(kept, starts=starts, cut=cut)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Read what `to_json` gives; a wrong value raises `TypeError` or `ValueError`."""
        return cls(**{**values, "starts": tuple(values["starts"])})


_SHARES = len(OCCUPANCY)


def _by_sample_left(curves: Array, left: Array) -> Array:
    """`[P, M]`: seconds `[M, G]` for each sample of the shares `[P, M]` that are left."""
    if curves.shape[1] == 1:
        return np.broadcast_to(curves[:, 0], left.shape)
    # At an exit that no sample reaches, the smallest share stands for the limit.
    share = np.maximum(left, OCCUPANCY[0])
    columns = zip(share.T, curves, strict=True)
    return np.stack([np.interp(x, OCCUPANCY, curve) / x for x, curve in columns], axis=1)


def seconds_left(sizes: Sequence[int], seconds: AnyArray, batch: int) -> Array:
    """Mean seconds of a batch of which only a share is left, at the shares `OCCUPANCY`.

    Rows leave at random: of a batch of eight, half is four rows on average, and may be more.

    Args:
        sizes: `[S]` rows of the batches that were timed, ascending.
        seconds: `[S]`, of each of them; an empty batch takes no time.
        batch: Rows of the whole batch.

    Returns:
        `[G]` float64, seconds by row of the *whole* batch.

    Example:
        >>> seconds_left([1, 2], [1.0, 2.0], batch=2)[-2:]  # one second by row
        array([0.5, 1. ])
        >>> seconds_left([1, 2], [2.0, 2.0], batch=2)[-2:]  # two, however many there are
        array([0.75, 1.  ])
    """
    from scipy.stats import binom  # takes half a second, and only who measures needs it

    rows = np.arange(batch + 1)
    each = np.interp(rows, [0, *sizes], [0.0, *as_numpy(seconds)])
    chances = binom.pmf(rows, batch, np.array(OCCUPANCY)[:, None])  # [G, batch + 1]
    return np.asarray(chances @ each / batch)
