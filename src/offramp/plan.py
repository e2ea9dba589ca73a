"""`Plan`: a policy for every budget, with the reasons."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from offramp import check
from offramp.errors import BudgetError, ConfigError, FileFormatError
from offramp.files import read_description, restore, write_description
from offramp.ledger import Ledger
from offramp.policy import Policy

VERSION = 1

WITHOUT_EXITS = "full-network"
"""Name, in a plan, of the network without exits."""


@dataclass(frozen=True)
class Plan(Mapping[float, Policy]):
    """A policy for every budget, with the reason for it.

    Attributes:
        policies: By budget, each at its operating point.
        exits: Indices of the exits that are kept; policies want `plan.view(ledger)`.
        methods: By budget, the name of the method that was chosen.
        why: By budget, a sentence; empty where there was nothing to choose.
        accuracies: By method and budget, cross-validated on held_out and val; likewise.
        best: What is best where accuracy is to be kept, in words: exits, an exit alone, or the
            network without exits.
    """

    policies: dict[float, Policy]
    exits: list[int]
    methods: dict[float, str]
    why: dict[float, str] = field(default_factory=dict)
    accuracies: dict[str, dict[float, float]] = field(default_factory=dict)
    best: str = ""

    def __str__(self) -> str:
        lines = [f"{budget:.0%}: {text}" for budget, text in self.why.items()]
        return "\n".join([self.best, *lines] if self.best else lines)

    def __getitem__(self, budget: float) -> Policy:
        """The policy for one of the budgets that were asked for."""
        if budget not in self.policies:
            known = ", ".join(f"{known:g}" for known in self.policies)
            raise BudgetError(f"this plan is for the budgets {known}, got {budget}")
        return self.policies[budget]

    def __iter__(self) -> Iterator[float]:
        return iter(self.policies)

    def __len__(self) -> int:
        return len(self.policies)

    @property
    def distinct_points(self) -> list[Policy]:
        """The policies of all budgets, each operating point once."""
        return list(
            {(policy.points, policy.selected): policy for policy in self.values()}.values()
        )

    @property
    def distinct(self) -> list[Policy]:
        """One policy of all that share their operating points, and differ in the chosen one."""
        return list({policy.points: policy for policy in self.values()}.values())

    def view(self, ledger: Ledger) -> Ledger:
        """A ledger with the exits that are kept."""
        return ledger.keep_exits(self.exits)

    def check_budgets(self) -> None:
        """Raise where a policy costs more than its budget.

        A method gives its cheapest operating point to budgets that are out of reach. The network
        without exits is no such accident: it was chosen.

        Raises:
            BudgetError: With the range that is possible.
        """
        for budget, policy in self.items():
            if self.methods[budget] != WITHOUT_EXITS:
                policy.points.for_budget(budget)

    def describe(self) -> dict[str, Any]:
        """What was chosen and why, for a file; nothing where there was nothing to choose."""
        if not self.why:
            return {}
        chosen = {f"{budget:g}": name for budget, name in self.methods.items()}
        why = {f"{budget:g}": text for budget, text in self.why.items()}
        return {"chosen": chosen, "why": why, "exits": self.exits}

    def save(self, folder: str | Path) -> Path:
        """Write the plan as a folder; policies that share their operating points are one file."""
        folder = Path(folder)
        numbers = {policy.points: number for number, policy in enumerate(self.distinct)}
        for policy in self.distinct:
            policy.save(folder / f"policy-{numbers[policy.points]}")
        meta = {
            "budgets": list(self),
            "policies": [numbers[policy.points] for policy in self.values()],
            "points": [policy.selected for policy in self.values()],
            "exits": self.exits,
            "methods": list(self.methods.values()),
            "why": list(self.why.values()),
            "best": self.best,
            "accuracies": {name: list(found.values()) for name, found in self.accuracies.items()},
        }
        write_description(folder, "plan", VERSION, meta)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> "Plan":
        """Read a plan that `save` wrote.

        Raises:
            FileFormatError: Something is missing, or was not written by `save`.
        """
        folder = Path(folder)
        where = f"{folder} is not a complete plan"
        meta: _PlanFile = restore(_PlanFile, read_description(folder, "plan", VERSION), where)
        try:
            budgets, chosen = meta["budgets"], zip(meta["policies"], meta["points"], strict=True)
            loaded = {
                number: Policy.load(folder / f"policy-{number}")
                for number in sorted(set(meta["policies"]))
            }
            policies = [loaded[number].at_point(point) for number, point in chosen]
            return cls(
                dict(zip(budgets, policies, strict=True)),
                meta["exits"],
                dict(zip(budgets, meta["methods"], strict=True)),
                dict(zip(budgets, meta["why"], strict=False)),
                {
                    name: dict(zip(budgets, found, strict=True))
                    for name, found in meta["accuracies"].items()
                },
                meta.get("best", ""),
            )
        except (ValueError, BudgetError) as error:  # parts of different lengths, no such point
            raise FileFormatError(f"{where}: {error}") from None


class _PlanFile(TypedDict):
    """What `Plan.save` writes."""

    budgets: list[float]
    policies: list[int]
    points: list[int]
    exits: list[int]
    methods: list[str]
    why: list[str]
    accuracies: dict[str, list[float]]
    best: NotRequired[str]  # of a plan that says what is best


def check_shares(budgets: Sequence[float]) -> None:
    """Raise `ConfigError` unless budgets are distinct shares, and one at least.

    Example:
        >>> check_shares([0.5, 1.5])
        Traceback (most recent call last):
        offramp.errors.ConfigError: `budgets` must lie in (0, 1], got 1.5
    """
    if isinstance(budgets, int | float | str) or not budgets:
        raise ConfigError(f"`budgets` must be a list of shares, such as [0.5], got {budgets!r}")
    for budget in budgets:
        check.within("budgets", budget, 0, 1, ends="(]")
    if len(set(budgets)) < len(budgets):
        raise ConfigError(f"`budgets` must be distinct, got {list(budgets)}")
