"""What each exit costs: stages and heads apart, from which the cumulative costs follow.

Costs are the same for every sample, `[M]`, as the costs of a network are; or they differ from
sample to sample, `[N, M]`, as tokens and dollars do.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from offramp import check
from offramp.arrays import AnyArray, Array, as_numpy, is_array, positions
from offramp.errors import LedgerError

UNITS = ("macs", "seconds", "tokens", "dollars", "trees", "relative")


@dataclass(frozen=True, eq=False, init=False)
class Costs:
    """Cost of every stage and of every head, in one unit.

    Args:
        stages: float64 `[M]` or `[N, M]`, the cost of each stage alone; not negative. Zero where
            an exit is a model of its own, which costs what its head does: see `of_members`.
        heads: Of the same shape, the cost of each exit's head alone; zero where it is not known
            apart.
        reference: Cost of the network without exits, to which budgets are relative: a number, or
            `[N]`. The default is all stages that the last exit needs, and its head.
        unit: `macs`, `seconds`, `tokens`, `dollars`, `trees` or `relative`.
        starts: Exits, besides the first, at which another network of a cascade starts, which
            needs nothing that was run before. An exit whose head alone costs something is one of
            them.
        entry: Cost of entering, which is part of the first stage. If the first network is left
            out, the next one pays it instead.
        cut: Whether the network's last exit was left out: then no exit here is the network without
            exits, which costs the reference.
        sampled: Whether these are means of samples, none of which may have got to some exit: it
            then costs nothing more.

    Example:
        >>> costs = Costs(stages=(40, 60), heads=(5, 10))
        >>> costs.cumulative
        array([ 45., 115.])
        >>> costs.mean_reference
        110.0
        >>> tokens = Costs.from_cumulative([[10, 30], [20, 50]], "tokens")
        >>> tokens.mean().cumulative.tolist(), tokens.mean_reference
        ([15.0, 40.0], 40.0)
    """

    stages: Array
    heads: Array
    reference: Array
    unit: str
    starts: tuple[int, ...]
    entry: float
    cut: bool
    sampled: bool

    def __init__(
        self,
        stages: AnyArray,
        heads: AnyArray,
        reference: AnyArray = 0.0,
        unit: str = "macs",
        starts: Sequence[int] = (),
        entry: float = 0.0,
        cut: bool = False,
        sampled: bool = False,
    ) -> None:
        check.one_of("unit", unit, UNITS, LedgerError)
        parts = _numbers("stage costs", stages), _numbers("head costs", heads)
        _check_parts(*parts, sampled)
        values = {"stages": parts[0], "heads": parts[1], "unit": unit, "entry": entry}
        values |= {"starts": _all_starts(*parts, starts), "cut": cut}
        values["sampled"] = sampled
        for name, value in values.items():
            object.__setattr__(self, name, value)
        given = as_numpy(reference, np.float64)
        if given.ndim == 0 and not given:
            given = self._alone_at(self.num_exits)
        samples = self.stages.shape[:-1]
        if given.shape not in ((), samples):
            raise LedgerError(
                f"`reference` must be a number or one per sample, got the shape "
                f"{list(given.shape)}"
            )
        object.__setattr__(self, "reference", np.broadcast_to(given, samples))
        check.positive("reference", self.mean_reference, LedgerError)

    @classmethod
    def from_cumulative(
        cls,
        costs: AnyArray,
        unit: str = "relative",
        reference: float = 0.0,
    ) -> "Costs":
        """Take plain cumulative costs, in which heads are not known apart.

        Args:
            costs: `[M]`, increasing; or `[N, M]`, where a stage that a sample does not have costs
                nothing more.
            unit: Plain costs mean `relative` unless it is known better.
            reference: Cost of the network without exits; the last exit's by default.

        Example:
            >>> Costs.from_cumulative([0.25, 0.5, 1.0]).stages.tolist()
            [0.25, 0.25, 0.5]
        """
        values = _numbers("costs", costs)
        steps = np.diff(values, prepend=0.0)
        _check_steps(values, steps)
        # The reference is given, not summed: 0.1 + 0.2 is not 0.3, and budgets compare to it.
        return cls(steps, np.zeros_like(steps), reference or values[..., -1], unit)

    @classmethod
    def of_members(cls, costs: AnyArray, unit: str) -> "Costs":
        """Costs of a cascade: exits are models of their own, and share no stages.

        Budgets are then shares of the last model alone, and models that are left out cost nothing.

        Args:
            costs: `[M]` or `[N, M]`, of each model alone; None or NaN where a model was not asked
                about a sample. Where that is the last one, its mean cost is the reference.
            unit: Of the costs.

        Example:
            >>> cascade = Costs.of_members([1.0, 4.0, 10.0], "dollars")
            >>> cascade.cumulative.tolist(), cascade.alone.tolist(), cascade.mean_reference
            ([1.0, 5.0, 15.0], [1.0, 4.0, 10.0], 10.0)
        """
        values = _numbers("costs", costs, gaps=True)
        last = values[..., -1]
        if np.isnan(last).all():
            raise LedgerError("the cost of the last model is not known of any sample")
        reference = np.where(np.isnan(last), np.nanmean(last), last)
        paid = np.nan_to_num(values, nan=0.0)
        return cls(np.zeros_like(paid), paid, reference, unit)

    @classmethod
    def of_checkpoints(
        cls, tokens: AnyArray | Sequence[Sequence[float]], reading: float, unit: str = "tokens"
    ) -> "Costs":
        """Costs of one model that thinks, and is asked for its answer at some token counts.

        Each such question costs tokens of its own. Budgets are shares of thinking to the end and
        answering once.

        Args:
            tokens: `[N, M]`, how much was thought by each checkpoint, or rows of different
                lengths, where chains end early; `[M]`, where all chains are alike.
            reading: Tokens of asking for the answer and of getting it.
            unit: Of both.

        Example:
            >>> costs = Costs.of_checkpoints([[256, 512, 600], [256, 300]], reading=20)
            >>> costs.cumulative.tolist(), costs.reference.tolist()
            ([[276.0, 552.0, 660.0], [276.0, 340.0, 340.0]], [620.0, 320.0])
        """
        rows: list[Any] = as_numpy(tokens).tolist() if is_array(tokens) else list(tokens)
        if rows and isinstance(rows[0], Sequence):
            longest = max(map(len, rows))
            rows = [[*row, *[row[-1]] * (longest - len(row))] for row in rows]
        thought = _numbers("tokens", rows)
        steps = np.diff(thought, prepend=0.0)
        _check_steps(thought, steps)
        # The first checkpoint may come before any thought; a chain that has ended is not asked.
        asked = (steps > 0) | (np.arange(steps.shape[-1]) == 0)
        return cls(steps, reading * asked, thought[..., -1] + reading, unit)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Costs):
            return NotImplemented
        plain = ((each.unit, each.starts, each.entry, each.cut) for each in (self, other))
        parts = ("stages", "heads", "reference")
        same = (np.array_equal(getattr(self, name), getattr(other, name)) for name in parts)
        return len(set(plain)) == 1 and all(same)

    __hash__ = None  # type: ignore[assignment]

    @property
    def num_exits(self) -> int:
        """M."""
        return len(self.stages.T)

    @property
    def by_sample(self) -> bool:
        """Whether costs differ from sample to sample."""
        return self.stages.ndim == 2

    @property
    def cumulative(self) -> Array:
        """`[M]` or `[N, M]` float64: all that is run to answer at exit m, heads on the way too."""
        return np.cumsum(self.stages + self.heads, axis=-1)

    @cached_property
    def mean_reference(self) -> float:
        """Cost of the network without exits, for the mean sample."""
        return float(self.reference.mean())

    @cached_property
    def alone(self) -> Array:
        """`[M]` float64: the mean cost of a network that has only exit m, without heads before it.

        At the network's last exit, that is the network without exits, which costs the reference.
        """
        mean = self.mean()
        found = [mean._alone_at(end + 1) for end in range(self.num_exits)]
        return np.array(found if self.cut else [*found[:-1], mean.reference])

    def _alone_at(self, end: int) -> Array:
        """`[]` or `[N]`: the stages that exit `end - 1` needs, and its head."""
        first = _start(self.starts, end)
        stages = _total(self.stages, first, end)
        return np.asarray(stages + self.heads[..., end - 1] + self._entry_at(first))

    def _entry_at(self, first: int) -> float:
        """What a later stage pays in addition where it becomes the first one."""
        return self.entry if first else 0.0

    @property
    def is_cascade(self) -> bool:
        """Whether some exits are models of their own, which start afresh; see `of_members`."""
        return bool(self.starts)

    def mean(self) -> "Costs":
        """The mean sample's costs `[M]`, by which exits are compared and budgets understood."""
        if not self.by_sample:
            return self
        stages, heads = self.stages.mean(axis=0), self.heads.mean(axis=0)
        reference = self.reference.mean()
        return replace(self, stages=stages, heads=heads, reference=reference, sampled=True)

    def take(self, index: Array | slice) -> "Costs":
        """The costs of some samples; the same costs where they do not differ."""
        if not self.by_sample:
            return self
        parts = {name: getattr(self, name)[index] for name in ("stages", "heads", "reference")}
        return replace(self, **parts)

    def until(self, lengths: Array) -> "Costs":
        """The same costs where samples end after `[N]` exits, and pay nothing afterwards."""
        if not self.by_sample:
            each = np.broadcast_to(self.cumulative, (len(lengths), self.num_exits))
            return Costs.from_cumulative(carried_on(each, lengths), self.unit)
        there = np.arange(self.num_exits) < lengths[:, None]
        stages, heads = self.stages * there, self.heads * there
        ended = ((self.stages + self.heads) * ~there).sum(axis=1) > 0
        reference = np.where(ended, (stages + heads).sum(axis=1), self.reference)
        return replace(self, stages=stages, heads=heads, reference=reference)

    def keep(self, exits: Sequence[int]) -> "Costs":
        """Keep these exits: dropped heads cost nothing, their stages join the next kept exit.

        A model of its own does not need what was dropped before it, so those stages are gone.
        If only the network's last exit is kept, what is left is the network without exits, which
        costs the reference.

        Example:
            >>> network_and_model = Costs(stages=(4, 6, 0), heads=(1, 1, 50))
            >>> network_and_model.keep([0, 2]).cumulative.tolist()
            [5.0, 55.0]
        """
        exits, last = list(exits), self.num_exits - 1
        cut = self.cut or exits[-1] != last
        if exits == [last] and not cut:
            head = self.heads[..., exits]
            return replace(self, stages=self.reference[..., None] - head, heads=head, starts=())
        bounds, starts = kept_stages(self.starts, exits)
        stages = np.stack([_total(self.stages, *bound) for bound in bounds], axis=-1)
        # Only the first of what is kept can be a later network that has become the first one.
        stages[..., 0] += self._entry_at(bounds[0][0])
        heads = self.heads[..., exits]
        return replace(self, stages=stages, heads=heads, starts=starts, cut=cut)

    def to_json(self) -> dict[str, Any]:
        """Plain values of the mean sample's costs, for a file."""
        mean = self.mean()
        return {
            "stages": mean.stages.tolist(),
            "heads": mean.heads.tolist(),
            "reference": mean.mean_reference,
            "unit": self.unit,
            **({"starts": list(self.starts)} if self.starts else {}),
            **({"entry": self.entry} if self.entry else {}),
            **({"cut": True} if self.cut else {}),
            **({"sampled": True} if self.sampled else {}),
        }


def _total(stages: Array, begin: int, end: int) -> Array:
    """`[]` or `[N]`: the sum of some stages, added up in their order, as `cumulative` does."""
    return np.cumsum(stages[..., begin:end], axis=-1)[..., -1]


def _all_starts(stages: Array, heads: Array, stated: Sequence[int]) -> tuple[int, ...]:
    """Where networks start afresh: as stated, and where a head alone costs something."""
    some_stage, some_head = (np.atleast_2d(part).any(axis=0) for part in (stages, heads))
    free = positions(~some_stage & some_head).tolist()
    return tuple(sorted({*map(int, stated), *free} - {0}))


def _start(starts: Sequence[int], end: int, begin: int = 0) -> int:
    """The first stage that an exit needs of the stages in `begin..end-1`."""
    return max((number for number in starts if begin <= number < end), default=begin)


def kept_stages(
    starts: Sequence[int], exits: Sequence[int]
) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """What is left to run if only some exits are kept.

    Args:
        starts: Stages, besides the first, that need nothing of what was run before.
        exits: The kept ones.

    Returns:
        For each kept exit the stages from `a` to before `b` that run on the way to it, and the
        kept exits that start afresh.

    Example:
        >>> kept_stages([3], [1, 4])
        ([(0, 2), (3, 5)], (1,))
    """
    ends = [0, *(exit_index + 1 for exit_index in exits)]
    bounds = [(_start(starts, b, a), b) for a, b in pairwise(ends)]
    afresh = (kept for kept, (first, _) in enumerate(bounds) if kept and first in starts)
    return bounds, tuple(afresh)


def carried_on(values: Array, lengths: Array | None) -> Array:
    """Values `[N, M, ...]` in which the exits after a sample's end repeat its last value."""
    if lengths is None:
        return values
    place = np.minimum(np.arange(values.shape[1]), lengths[:, None] - 1)  # [N, M]
    return np.asarray(values[np.arange(len(values))[:, None], place])


def mean_costs(costs: AnyArray) -> Array:
    """`[M]` float64: what each exit costs the mean sample, from costs `[M]` or `[N, M]`."""
    each = as_numpy(costs, np.float64)
    return each.mean(axis=0) if each.ndim == 2 else each


def costs_taken(costs: Array, exits: Array) -> Array:
    """What each sample pays for the exit that it takes.

    Args:
        costs: `[M]`, or `[N, M]` where they differ from sample to sample.
        exits: `[N]` or `[P, N]`.

    Returns:
        Of the shape of `exits`.

    Example:
        >>> exits = np.array([[0, 1], [1, 1]])
        >>> costs_taken(np.array([[1.0, 2.0], [3.0, 5.0]]), exits)
        array([[1., 5.],
               [2., 5.]])
    """
    return costs[exits] if costs.ndim == 1 else costs[np.arange(len(costs)), exits]


def _numbers(name: str, values: AnyArray | Sequence[Any], gaps: bool = False) -> Array:
    """Finite float64 `[M]` or `[N, M]`; NaN where there are gaps, if there may be."""
    try:
        if gaps and not is_array(values):
            values = np.array(values, dtype=np.float64)  # of None, NaN
        numbers = as_numpy(values)
        if numbers.dtype.kind not in "biuf":
            raise TypeError(f"got {values!r}")
    except (TypeError, ValueError) as error:
        raise LedgerError(f"`{name}` must be a list of numbers or a table: {error}") from None
    numbers = numbers.astype(np.float64, copy=False)
    if numbers.ndim not in (1, 2) or not numbers.size:
        raise LedgerError(f"`{name}` must have the shape [M] or [N, M], got {list(numbers.shape)}")
    message = f"`{name}` must be finite, got {{value:g}} at {{place}}"
    may_lack = gaps and numbers.ndim == 2
    _check_none(np.isinf(numbers) if may_lack else ~np.isfinite(numbers), numbers, message)
    return numbers


def _check_none(wrong: Array, values: Array, message: str, name: str = "exit") -> None:
    """Raise if a value is wrong, with the first one, its place and the exit's before it."""
    if wrong.any():
        *sample, exit_index = np.argwhere(wrong)[0].tolist()
        row = values[tuple(sample)]
        place = "".join(f"sample {number}, " for number in sample) + f"{name} {exit_index}"
        before = row[exit_index - 1] if exit_index else 0.0
        raise LedgerError(message.format(value=row[exit_index], place=place, before=before))


def _check_parts(stages: Array, heads: Array, sampled: bool) -> None:
    """Raise unless stages and heads have one shape, and an exit costs more than the one before."""
    if stages.shape != heads.shape:
        raise LedgerError(
            "there must be as many head costs as stage costs, got "
            f"{list(heads.shape)} and {list(stages.shape)}"
        )
    for name, part in (("stage", stages), ("head", heads)):
        # Where stages cost nothing, what stands as heads are models of their own.
        is_model = name == "head" and not stages.any()
        what, place = ("", "model") if is_model else (f"the {name} of ", "exit")
        message = f"costs must not be negative, got {{value:g}} for {what}{{place}}"
        _check_none(part < 0, part, message, place)
    # The first exit may be free, as it is where nothing has been thought yet.
    free = stages[1:] + heads[1:] == 0
    if stages.ndim == 1 and not sampled and free.any():
        raise LedgerError(
            f"costs must increase from exit to exit, but exit {free.argmax() + 1} and the stage "
            "before it cost nothing"
        )


def _check_steps(values: Array, steps: Array) -> None:
    """Raise unless cumulative costs are not negative, and increase: a sample's may stay."""
    if steps.ndim == 2:
        message = (
            "`costs` must not be negative and must not fall from exit to exit, got {value:g} at "
            "{place}; they are cumulative: what a sample has cost by then, not the stage alone"
        )
        _check_none(steps < 0, values, message)
    else:
        message = (
            "`costs` must be positive and increase from exit to exit, got {value:g} at {place} "
            "after {before:g}; they are cumulative, what running up to an exit costs: if these "
            "are of each stage alone, give numpy.cumsum(costs)"
        )
        _check_none(steps <= 0, values, message)
