"""What takes part in a comparison: anything that comes to policies from held_out and val."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from offramp.ledger import Ledger
from offramp.methods import Method
from offramp.policy import Policy

__all__ = ["Choice", "Contestant", "MethodEntry"]


class Choice(Protocol):
    """Tuned policies by budget, and the exits that they want, as an `offramp.advice.Plan`."""

    def __getitem__(self, budget: float, /) -> Policy:
        """The tuned policy for one of the budgets that are compared."""

    def view(self, ledger: Ledger) -> Ledger:
        """A ledger with the exits that are kept."""


class Contestant(Protocol):
    """A row of a comparison."""

    @property
    def name(self) -> str:
        """For the command line and for files."""

    @property
    def label(self) -> str:
        """For tables."""

    def describe(self) -> dict[str, Any]:
        """Everything that it is made of, for a file; asked after `choose`."""

    def choose(
        self, held_out: Ledger, val: Ledger, budgets: Sequence[float], seeds: int
    ) -> Sequence[Choice]:
        """One choice per seed, or one in all where nothing is random; test is not seen."""


@dataclass(frozen=True)
class MethodEntry:
    """A method takes part with one policy for all budgets."""

    method: Method

    @property
    def name(self) -> str:
        """The method's."""
        return self.method.name

    @property
    def label(self) -> str:
        """The method's."""
        return self.method.label

    def describe(self) -> dict[str, Any]:
        """Answer, scorer and thresholds."""
        return self.method.describe()

    def choose(
        self, held_out: Ledger, val: Ledger, budgets: Sequence[float], seeds: int
    ) -> list[Choice]:
        """Fit on held_out with every seed, and tune on val."""
        policies = self.method.policy().fit_seeds(held_out, range(seeds))
        return [_Everywhere(policy.tune(val, self.method.thresholds)) for policy in policies]


@dataclass(frozen=True)
class _Everywhere:
    """One policy, with all exits, whatever the budget."""

    policy: Policy

    def __getitem__(self, budget: float) -> Policy:
        return self.policy

    def view(self, ledger: Ledger) -> Ledger:
        return ledger
