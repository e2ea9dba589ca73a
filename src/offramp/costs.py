"""What each exit costs: stages and heads apart, from which the cumulative costs follow.

`Costs` are the same for every sample, as those of a network are. `SampleCosts` differ from sample
to sample: tokens, dollars.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offramp.errors import LedgerError

UNITS = ("macs", "seconds", "tokens", "dollars", "relative")

OCCUPANCY = (*(2.0**-power for power in range(10, -1, -1)),)
"""Shares of a batch that is still there, at which the costs of shrinking batches are known."""


@dataclass(frozen=True)
class Costs:
    """Cost of every stage and of every head, in one unit.

    Args:
        stages: `[M]`, the cost of each stage alone; positive. Zero where an exit is a model of its
            own, which costs what its head does: see `of_members`.
        heads: `[M]`, the cost of each exit's head alone; zero where it is not known apart.
        reference: Cost of the network without exits, to which budgets are relative. The default
            is all stages that the last exit needs, and its head.
        unit: `macs`, `seconds`, `tokens`, `dollars` or `relative`.
        shrinking: What stages and heads cost per sample of the *whole* batch when only a share of
            it is left, `[2, M, G]` at the shares `OCCUPANCY`; the last column is `stages` and
            `heads`. A stage on a quarter of a batch takes more than a quarter of the time.
            Empty where costs are proportional, as MACs and single samples are.
        looking_back: The costs where decisions read earlier exits, which takes longer; the same
            if None.
        origin: Where they were measured, in words.
        starts: Exits, besides the first, at which another network starts afresh, which needs
            nothing of what was run before: in a cascade. A stage that costs nothing is one, too.
        entry: What is part of the first stage since it is the first: whichever network is left as
            the first one pays it.

    Example:
        >>> costs = Costs(stages=(40, 60), heads=(5, 10))
        >>> costs.cumulative
        tensor([ 45., 115.], dtype=torch.float64)
        >>> costs.reference
        110.0
    """

    stages: tuple[float, ...]
    heads: tuple[float, ...]
    reference: float = field(default=0.0)
    unit: str = "macs"
    shrinking: tuple[tuple[tuple[float, ...], ...], ...] = ()
    looking_back: "Costs | None" = None
    origin: str = ""
    starts: tuple[int, ...] = ()
    entry: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", _floats("stage costs", self.stages))
        object.__setattr__(self, "heads", _floats("head costs", self.heads))
        object.__setattr__(self, "starts", _all_starts(self.stages, self.starts))
        if self.unit not in UNITS:
            raise LedgerError(f"`unit` must be one of {', '.join(UNITS)}, got {self.unit!r}")
        if len(self.stages) != len(self.heads):
            raise LedgerError(
                f"there must be as many head costs as stage costs, got {len(self.heads)} and "
                f"{len(self.stages)}"
            )
        for exit_index, (stage, head) in enumerate(zip(self.stages, self.heads, strict=True)):
            if not head >= 0:
                raise LedgerError(f"the head of exit {exit_index} has a negative cost, {head:g}")
            # The first look may be free, as it is where nothing has been thought yet.
            if not stage >= 0 or (exit_index and not stage + head > 0):
                raise LedgerError(
                    f"costs must increase from exit to exit, but the stage before exit "
                    f"{exit_index} costs {stage:g}"
                )
        if not self.reference:
            object.__setattr__(self, "reference", float(self.alone[-1]))
        if not 0 < self.reference < float("inf"):
            raise LedgerError(f"the reference cost must be positive, got {self.reference!r}")
        object.__setattr__(self, "shrinking", _curves(self.shrinking, len(self.stages)))
        if isinstance(self.looking_back, dict):  # as in a file
            object.__setattr__(self, "looking_back", Costs(**self.looking_back))

    @classmethod
    def from_cumulative(
        cls,
        costs: Any,  # noqa: ANN401 - checked by _floats
        unit: str = "relative",
        reference: float = 0.0,
    ) -> "Costs":
        """Take plain cumulative costs, in which heads are not known apart.

        Args:
            costs: `[M]`, increasing.
            unit: Plain costs mean `relative` unless it is known better.
            reference: Cost of the network without exits; the last exit's by default.

        Example:
            >>> Costs.from_cumulative([0.25, 0.5, 1.0]).stages
            (0.25, 0.25, 0.5)
        """
        values = _floats("costs", costs)
        if not values:
            raise LedgerError("there are no costs")
        for exit_index, (before, after) in enumerate(pairwise((0.0, *values))):
            if not after > before:
                raise LedgerError(
                    f"`costs` must be positive and increase from exit to exit, got {after:g} at "
                    f"exit {exit_index} after {before:g}; they are cumulative: what running up "
                    "to an exit costs, not its own stage alone"
                )
        steps = tuple(after - before for before, after in pairwise((0.0, *values)))
        # The reference is given, not summed: 0.1 + 0.2 is not 0.3, and budgets compare to it.
        return cls(steps, (0.0,) * len(steps), reference or values[-1], unit)

    @classmethod
    def of_members(cls, costs: Any, unit: str) -> "Costs":  # noqa: ANN401 - checked by _floats
        """Costs of a cascade: exits are models of their own, and share no stages.

        Budgets are then shares of the last model alone, and models that are left out cost nothing.

        Args:
            costs: `[M]`, of each model alone.
            unit: Of the costs.

        Example:
            >>> cascade = Costs.of_members([1.0, 4.0, 10.0], "dollars")
            >>> cascade.cumulative.tolist(), cascade.alone.tolist(), cascade.reference
            ([1.0, 5.0, 15.0], [1.0, 4.0, 10.0], 10.0)
        """
        values = _floats("costs", costs)
        return cls((0.0,) * len(values), values, unit=unit)

    @property
    def cumulative(self) -> Tensor:
        """`[M]` float64: everything that is run to answer at exit m, all heads on the way."""
        both = torch.tensor([self.stages, self.heads], dtype=torch.float64)
        return both.sum(0).cumsum(0)

    @property
    def alone(self) -> Tensor:
        """`[M]` float64: the cost of a network that has only exit m, without heads before it."""
        alone = []
        for end, head in enumerate(self.heads, start=1):
            first = _start(self.starts, end)
            alone.append(sum(self.stages[first:end]) + head + (self.entry if first else 0.0))
        return torch.tensor(alone, dtype=torch.float64)

    @property
    def is_cascade(self) -> bool:
        """Whether some exits are models of their own, which start afresh; see `of_members`."""
        return bool(self.starts)

    def cumulative_at(self, left: Tensor, looked_at: Tensor) -> Tensor:
        """What a sample pays for answering at each exit, when batches shrink: `[P, M]` float64.

        A stage's cost for what is left of a batch is paid in equal parts by the samples that are
        left, so the mean over samples is what a batch really costs.

        Args:
            left: `[P, M]`, the share of the samples that reach each exit.
            looked_at: bool `[P, M]`, the exits whose heads run; others cost nothing.

        Example:
            >>> costs = Costs(stages=(40, 60), heads=(5, 10))
            >>> looks = torch.tensor([[False, True]])
            >>> costs.cumulative_at(torch.tensor([[1.0, 0.5]]), looks)
            tensor([[ 40., 110.]], dtype=torch.float64)
        """
        stages, heads = (self._per_sample(part, left) for part in (0, 1))
        return (stages + heads * looked_at).cumsum(1)

    def _per_sample(self, part: int, left: Tensor) -> Tensor:
        """`[P, M]`: the cost of stages (0) or heads (1) for each sample that is left."""
        if not self.shrinking:
            plain = torch.tensor((self.stages, self.heads)[part], dtype=torch.float64)
            return plain.expand(left.shape)
        # Where nobody is left nobody pays; the smallest share stands for the limit.
        share = left.double().clamp_min(OCCUPANCY[0]).numpy()
        columns = [
            np.interp(share[:, m], OCCUPANCY, curve) / share[:, m]
            for m, curve in enumerate(self.shrinking[part])
        ]
        return torch.from_numpy(np.stack(columns, axis=1))

    def keep(self, exits: Sequence[int]) -> "Costs":
        """Keep these exits: dropped heads cost nothing, their stages join the next kept exit.

        A model of its own does not need what was dropped before it, so those stages are gone.

        Example:
            >>> network_and_model = Costs(stages=(4, 6, 0), heads=(1, 1, 50))
            >>> network_and_model.keep([0, 2]).cumulative.tolist()
            [5.0, 55.0]
        """
        bounds, starts = kept_stages(self.starts, exits)
        paid = [self.entry if a and not kept else 0.0 for kept, (a, _) in enumerate(bounds)]
        stages = tuple(
            sum(self.stages[a:b]) + more for (a, b), more in zip(bounds, paid, strict=True)
        )
        heads = tuple(self.heads[exit_index] for exit_index in exits)
        curves: tuple[tuple[tuple[float, ...], ...], ...] = ()
        if self.shrinking:
            together, looks = self.shrinking
            joined = [
                tuple(sum(column) + more for column in zip(*together[a:b], strict=True))
                for (a, b), more in zip(bounds, paid, strict=True)
            ]
            curves = (tuple(joined), tuple(looks[exit_index] for exit_index in exits))
        return replace(
            self,
            stages=stages,
            heads=heads,
            shrinking=curves,
            looking_back=None if self.looking_back is None else self.looking_back.keep(exits),
            starts=starts,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "stages": list(self.stages),
            "heads": list(self.heads),
            "reference": self.reference,
            "unit": self.unit,
            **({"shrinking": self.shrinking} if self.shrinking else {}),
            **({"looking_back": self.looking_back.to_json()} if self.looking_back else {}),
            **({"origin": self.origin} if self.origin else {}),
            **({"starts": list(self.starts)} if self.starts else {}),
            **({"entry": self.entry} if self.entry else {}),
        }


@dataclass(frozen=True, eq=False)
class SampleCosts:
    """Costs that differ from sample to sample: tokens that were thought, dollars of a call.

    Attributes:
        stages: float64 `[N, M]`, of each stage alone.
        heads: float64 `[N, M]`, of each exit's head alone.
        reference: float64 `[N]`, of going to the end without looking on the way.
        unit: As in `Costs`.
        starts: As in `Costs`.

    Example:
        >>> costs = SampleCosts.from_cumulative([[10, 30], [20, 50]], "tokens")
        >>> costs.cumulative.tolist(), costs.mean().reference
        ([[10.0, 30.0], [20.0, 50.0]], 40.0)
    """

    stages: Tensor
    heads: Tensor
    reference: Tensor
    unit: str = "relative"
    starts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", _all_starts(self.stages.sum(dim=0), self.starts))

    @classmethod
    def from_cumulative(cls, costs: Any, unit: str = "relative") -> "SampleCosts":  # noqa: ANN401
        """Take cumulative costs `[N, M]`, which must not fall from stage to stage.

        A stage that a sample does not have costs nothing more.
        """
        values = _table("costs", costs)
        steps = values.diff(dim=1, prepend=torch.zeros(len(values), 1, dtype=torch.float64))
        if (steps < 0).any():
            sample, exit_index = (steps < 0).nonzero()[0].tolist()
            raise LedgerError(
                f"`costs` must not be negative and must not fall from exit to exit, got "
                f"{values[sample, exit_index]:g} at sample {sample}, exit {exit_index}; they are "
                "cumulative: what a sample has cost by then, not the stage alone"
            )
        return cls(steps, torch.zeros_like(steps), values[:, -1], unit)

    @classmethod
    def of_members(cls, costs: Any, unit: str) -> "SampleCosts":  # noqa: ANN401
        """Costs `[N, M]` of the models of a cascade, each alone; see `Costs.of_members`.

        Example:
            >>> SampleCosts.of_members([[1, 9], [3, 11]], "dollars").mean().alone.tolist()
            [2.0, 10.0]
        """
        values = _table("costs", costs)
        if (values < 0).any():
            sample, exit_index = (values < 0).nonzero()[0].tolist()
            raise LedgerError(
                f"costs must not be negative, got {values[sample, exit_index]:g} at sample "
                f"{sample}, model {exit_index}"
            )
        return cls(torch.zeros_like(values), values, values[:, -1], unit)

    def __len__(self) -> int:
        return len(self.stages)

    @property
    def cumulative(self) -> Tensor:
        """`[N, M]` float64: what a sample has cost by each exit."""
        return (self.stages + self.heads).cumsum(1)

    def mean(self) -> Costs:
        """The mean sample's costs, by which exits are compared and budgets understood."""
        stages, heads = (tuple(part.mean(dim=0).tolist()) for part in (self.stages, self.heads))
        reference = float(self.reference.mean())
        return Costs(stages, heads, reference, self.unit, starts=self.starts)

    def take(self, index: Tensor) -> "SampleCosts":
        """Those of some samples."""
        parts = {name: getattr(self, name)[index] for name in ("stages", "heads", "reference")}
        return replace(self, **parts)

    def until(self, lengths: Tensor) -> "SampleCosts":
        """Nothing is paid after a sample's end, with so many exits `[N]`."""
        there = torch.arange(self.stages.shape[1]) < lengths[:, None]
        stages, heads = self.stages * there, self.heads * there
        ended = ((self.stages + self.heads) * ~there).sum(dim=1) > 0
        reference = torch.where(ended, (stages + heads).sum(dim=1), self.reference)
        return replace(self, stages=stages, heads=heads, reference=reference)

    def keep(self, exits: Sequence[int]) -> "SampleCosts":
        """Keep these exits, as `Costs.keep` does."""
        bounds, starts = kept_stages(self.starts, exits)
        stages = torch.stack([self.stages[:, a:b].sum(dim=1) for a, b in bounds], dim=1)
        return replace(self, stages=stages, heads=self.heads[:, list(exits)], starts=starts)


def _all_starts(stages: Any, stated: Sequence[int]) -> tuple[int, ...]:  # noqa: ANN401
    """Where networks start afresh: as stated, and where a stage costs nothing."""
    free = (number for number, cost in enumerate(stages) if number and cost == 0)
    return tuple(sorted({*map(int, stated), *free}))


def _start(starts: Sequence[int], end: int, begin: int = 0) -> int:
    """The first stage that an exit needs of those in `begin..end-1`."""
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


def seconds_left(sizes: Sequence[int], seconds: Any, batch: int) -> Tensor:  # noqa: ANN401
    """What rows of a batch cost when only a share of them is left, at the shares `OCCUPANCY`.

    As it falls when rows leave at random: of a batch of eight, half is four rows on average.

    Args:
        sizes: `[S]` rows of the batches that were timed, ascending.
        seconds: `[S]`, of each of them; what nobody reaches takes no time.
        batch: Rows of the whole batch.

    Returns:
        `[G]` float64, seconds by row of the *whole* batch.

    Example:
        >>> seconds_left([1, 2], [1.0, 2.0], batch=2)[-2:]  # one second by row
        tensor([0.5000, 1.0000], dtype=torch.float64)
        >>> seconds_left([1, 2], [2.0, 2.0], batch=2)[-2:]  # two, however many there are
        tensor([0.7500, 1.0000], dtype=torch.float64)
    """
    rows = np.arange(batch + 1)
    each = torch.from_numpy(np.interp(rows, [0, *sizes], [0.0, *seconds]))
    shares = torch.tensor(OCCUPANCY, dtype=torch.float64)[:, None]
    drawn = torch.distributions.Binomial(batch, shares, validate_args=False)
    chances: Tensor = drawn.log_prob(torch.from_numpy(rows).double()).exp()  # [G, batch + 1]
    return chances @ each / batch


def mean_costs(costs: Tensor) -> Tensor:
    """`[M]` float64: what each exit costs the mean sample, from costs `[M]` or `[N, M]`."""
    return costs.double().mean(dim=0) if costs.ndim == 2 else costs.double()


def costs_taken(costs: Tensor, exits: Tensor) -> Tensor:
    """What each sample pays for the exit that it takes.

    Args:
        costs: `[M]`, or `[N, M]` where they differ from sample to sample.
        exits: `[N]` or `[P, N]`.

    Returns:
        Of the shape of `exits`.

    Example:
        >>> exits = torch.tensor([[0, 1], [1, 1]])
        >>> costs_taken(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), exits)
        tensor([[1., 5.],
                [2., 5.]])
    """
    return costs[exits.long()] if costs.ndim == 1 else costs[range(len(costs)), exits.long()]


def _table(name: str, values: Any) -> Tensor:  # noqa: ANN401 - checked here
    """Finite float64 `[N, M]`."""
    try:
        numbers = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"`{name}` must be a table of numbers: {error}") from None
    if numbers.ndim != 2 or not numbers.numel():
        raise LedgerError(f"`{name}` must have the shape [N, M], got {list(numbers.shape)}")
    if not numbers.isfinite().all():
        sample, exit_index = (~numbers.isfinite()).nonzero()[0].tolist()
        value = numbers[sample, exit_index]
        raise LedgerError(
            f"`{name}` must be finite, got {value:g} at sample {sample}, exit {exit_index}"
        )
    return numbers


def _curves(values: Any, exits: int) -> tuple[tuple[tuple[float, ...], ...], ...]:  # noqa: ANN401
    """`[2, M, G]` as nested tuples; an empty one stays empty."""
    if not values:
        return ()
    curves = tuple(tuple(_floats("shrinking", curve) for curve in part) for part in values)
    sizes = [len(curve) for part in curves for curve in part]
    if [len(part) for part in curves] != [exits, exits] or set(sizes) != {len(OCCUPANCY)}:
        raise LedgerError(
            f"`shrinking` must have the shape [2, {exits}, {len(OCCUPANCY)}]: stages and heads at "
            "the shares of a batch in offramp.costs.OCCUPANCY"
        )
    return curves


def _floats(name: str, values: Any) -> tuple[float, ...]:  # noqa: ANN401 - checked here
    try:
        numbers = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"{name} must be a list of numbers: {error}") from None
    if numbers.ndim != 1:
        raise LedgerError(f"{name} must have the shape [M], got {list(numbers.shape)}")
    if not numbers.isfinite().all():
        exit_index = int((~numbers.isfinite()).nonzero()[0])
        raise LedgerError(f"{name} must be finite, got {numbers[exit_index]} at exit {exit_index}")
    return tuple(numbers.tolist())
