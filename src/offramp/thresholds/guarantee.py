"""Guarantees: operating points whose loss or cost is certified, not only measured.

Learn then Test (Angelopoulos et al. 2021) with fixed-sequence testing: the policies on a path are
put in order before the certification sample is seen, tested from the safe end, and the last one
before the first failure is certified. So no correction for the number of policies is needed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from offramp.errors import ConfigError
from offramp.thresholds.bounds import BOUNDS, conformal

__all__ = ["LOSSES", "Guarantee", "certified", "upper_bounds"]

LOSSES = ("regret", "disagreement")


@dataclass(frozen=True)
class Guarantee:
    """What is to be guaranteed.

    Args:
        epsilon: The mean loss against the full network is to be at most this.
        budget: The mean cost, as a share of the network without exits, is to be at most this.
            With both, each may fail with half of delta.
        delta: Probability, over the draw of the certification sample, with which the guarantee
            may fail. None asks for less: that it holds on average over such draws (conformal
            risk control).
        loss: `regret`: the full network is right and the early answer wrong. `disagreement`: the
            two differ.
        bound: `betting`, or `hoeffding-bentkus`.

    Example:
        >>> Guarantee(epsilon=0.02, budget=0.6).level
        0.05
    """

    epsilon: float | None = None
    budget: float | None = None
    delta: float | None = 0.1
    loss: str = "regret"
    bound: str = "betting"

    def __post_init__(self) -> None:
        if self.epsilon is None and self.budget is None:
            raise ConfigError("give `epsilon`, `budget` or both: what is to be guaranteed?")
        for name in ("epsilon", "budget"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ConfigError(f"`{name}` must lie in (0, 1], got {value}")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ConfigError(f"`delta` must lie in (0, 1), or be None, got {self.delta}")
        if self.loss not in LOSSES:
            raise ConfigError(f"`loss` must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        if self.bound not in BOUNDS:
            raise ConfigError(f"`bound` must be one of {', '.join(BOUNDS)}, got {self.bound!r}")
        if self.delta is None and self.epsilon is not None and self.budget is not None:
            raise ConfigError(
                "`delta` must be given to guarantee `epsilon` and `budget` together: two averages "
                "over draws do not hold at once where some draws have no answer"
            )

    @property
    def level(self) -> float | None:
        """The share of delta that each part may use."""
        both = self.epsilon is not None and self.budget is not None
        return self.delta / 2 if both and self.delta is not None else self.delta


def upper_bounds(losses: Tensor, guarantee: Guarantee) -> Tensor:
    """What can be said of the mean losses along a path from its safe end, `[P]`.

    Args:
        losses: `[N, P]` in [0, 1], the safest policy first.
        guarantee: Says with which confidence, and by which bound.

    Returns:
        float64 `[P]`, never falling: a policy is certified only if all safer ones are.

    Example:
        >>> losses = torch.zeros(200, 3)
        >>> losses[:20, 1] = 1.0  # the policy in the middle is the worst
        >>> upper_bounds(losses, Guarantee(epsilon=0.2, bound="hoeffding-bentkus"))
        tensor([0.0114, 0.1457, 0.1457], dtype=torch.float64)
    """
    if guarantee.level is None:
        # Losses that a safer policy has, too, count for the riskier one: then they never grow
        # towards the safe end, as conformal risk control needs, and bound the true ones.
        return conformal(torch.as_tensor(losses).double().cummax(dim=1).values)
    return BOUNDS[guarantee.bound](losses, guarantee.level).cummax(dim=0).values


def certified(bounds: Tensor, limit: float) -> int:
    """How many policies, from the safe end, are certified: the last is number count - 1.

    The scan ends before the first failure, and zero means that none is certified.

    Args:
        bounds: `[P]` from `upper_bounds`.
        limit: Epsilon.

    Example:
        >>> certified(torch.tensor([0.01, 0.04, 0.06]), limit=0.05)
        2
    """
    return int((bounds <= limit).long().cumprod(dim=0).sum())
