"""What takes part in a comparison: anything that comes to policies from held_out and val."""

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

from offramp.ledger import Ledger
from offramp.methods import Method
from offramp.policy import Policy


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
    """A method takes part with one policy for all budgets.

    Attributes:
        method: The method.
        fits: What was fitted so far, shared by all entries of a comparison: methods that differ
            in their thresholds only are fitted once.
    """

    method: Method
    fits: dict[Any, list[Policy]] = field(default_factory=dict, repr=False)

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
        parts = self.method.scorer, self.method.answer
        settings = json.dumps([part.settings() for part in parts], default=repr)
        key = (*map(type, parts), settings)
        if key not in self.fits:
            self.fits[key] = self.method.policy().fit_seeds(held_out, range(seeds))
        thresholds = self.method.thresholds
        # Copies, since tuning changes a policy.
        return [_Everywhere(copy(policy).tune(val, thresholds)) for policy in self.fits[key]]


@dataclass(frozen=True)
class _Everywhere:
    """One policy, with all exits, whatever the budget."""

    policy: Policy

    def __getitem__(self, budget: float) -> Policy:
        return self.policy

    def view(self, ledger: Ledger) -> Ledger:
        return ledger
