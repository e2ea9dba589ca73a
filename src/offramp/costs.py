"""What each exit costs: stages and heads apart, from which the cumulative costs follow."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from offramp.errors import LedgerError

UNITS = ("macs", "seconds", "relative")


@dataclass(frozen=True)
class Costs:
    """Cost of every stage and of every head, in one unit.

    Args:
        stages: `[M]`, the cost of each stage alone; positive.
        heads: `[M]`, the cost of each exit's head alone; zero where it is not known apart.
        reference: Cost of the network without exits, to which budgets are relative. The default
            is all stages and the last head.
        unit: `macs`, `seconds` or `relative`.

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", _floats("stage costs", self.stages))
        object.__setattr__(self, "heads", _floats("head costs", self.heads))
        if self.unit not in UNITS:
            raise LedgerError(f"`unit` must be one of {', '.join(UNITS)}, got {self.unit!r}")
        if len(self.stages) != len(self.heads):
            raise LedgerError(
                f"there must be as many head costs as stage costs, got {len(self.heads)} and "
                f"{len(self.stages)}"
            )
        for exit_index, (stage, head) in enumerate(zip(self.stages, self.heads, strict=True)):
            if not stage > 0:
                raise LedgerError(
                    f"costs must increase from exit to exit, but the stage before exit "
                    f"{exit_index} costs {stage:g}"
                )
            if not head >= 0:
                raise LedgerError(f"the head of exit {exit_index} has a negative cost, {head:g}")
        if not self.reference:
            object.__setattr__(self, "reference", sum(self.stages) + self.heads[-1])
        if not 0 < self.reference < float("inf"):
            raise LedgerError(f"the reference cost must be positive, got {self.reference!r}")

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

    @property
    def cumulative(self) -> Tensor:
        """`[M]` float64: everything that is run to answer at exit m, all heads on the way."""
        both = torch.tensor([self.stages, self.heads], dtype=torch.float64)
        return both.sum(0).cumsum(0)

    @property
    def alone(self) -> Tensor:
        """`[M]` float64: the cost of a network that has only exit m, without heads before it."""
        stages = torch.tensor(self.stages, dtype=torch.float64).cumsum(0)
        return stages + torch.tensor(self.heads, dtype=torch.float64)

    def keep(self, exits: Sequence[int]) -> "Costs":
        """Keep these exits: dropped heads cost nothing, their stages join the next kept exit."""
        bounds = [0, *(exit_index + 1 for exit_index in exits)]
        stages = tuple(sum(self.stages[a:b]) for a, b in pairwise(bounds))
        heads = tuple(self.heads[exit_index] for exit_index in exits)
        return Costs(stages, heads, self.reference, self.unit)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "stages": list(self.stages),
            "heads": list(self.heads),
            "reference": self.reference,
            "unit": self.unit,
        }


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
