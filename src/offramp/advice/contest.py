"""`auto` as a row of a comparison."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from offramp.advice.choice import CANDIDATES, Decision, Plan, decide
from offramp.evaluation.contestant import Contestant
from offramp.ledger import Ledger
from offramp.methods import Method

__all__ = ["AUTO", "Auto", "contestants"]

AUTO = "auto"
"""What stands for `Auto` among names of methods."""


@dataclass
class Auto:
    """What `auto` chooses takes part in a comparison, beside the methods it chooses from.

    The choice is made once, with the first seed; then what was chosen is fitted with every seed.
    As for every method, a budget that is out of reach is compared at the cost nearest to it.

    Args:
        methods: To choose from.

    Example:
        >>> from offramp import compare, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300, exits=4)
        >>> few = Auto(["baseline", "baseline:optimized"])
        >>> table = compare(**splits, methods=["baseline", few], budgets=[0.5], resamples=10)
        >>> table["auto"].settings["chosen"]["0.5"] in few.methods
        True
    """

    methods: Sequence[str | Method] = CANDIDATES
    name: str = field(default=AUTO, init=False)
    label: str = field(default="Auto", init=False)
    _decision: Decision | None = field(default=None, init=False, repr=False)

    def describe(self) -> dict[str, Any]:
        """What was chosen for each budget, and why."""
        if self._decision is None:
            return {"candidates": [getattr(each, "name", each) for each in self.methods]}
        chosen = {f"{budget:g}": method.name for budget, method in self._decision.methods.items()}
        why = {f"{budget:g}": text for budget, text in self._decision.why.items()}
        return {"chosen": chosen, "why": why, "exits": self._decision.exits}

    def choose(
        self, held_out: Ledger, val: Ledger, budgets: Sequence[float], seeds: int
    ) -> list[Plan]:
        """A plan per seed."""
        self._decision = decide(held_out, val, budgets, self.methods)
        return self._decision.plans(
            held_out,
            val,
            lambda policy, ledger: policy.fit_seeds(ledger, range(seeds)),
            nearest=True,
        )


def contestants(names: Sequence[str]) -> list[str | Contestant]:
    """Names of methods and groups as they are, and `auto` as what it stands for.

    Example:
        >>> contestants(["baseline", "auto"])[1].label
        'Auto'
    """
    return [Auto() if name == AUTO else name for name in names]
