"""`auto`: exits, answer, scorer and thresholds, chosen by cross-validation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from offramp.advice.exits import choose_exits
from offramp.advice.rating import Hits, hits_of, hits_on, pick
from offramp.errors import BudgetError, ConfigError
from offramp.ledger import Ledger
from offramp.methods import Method, find_methods
from offramp.policy import Policy

__all__ = ["CANDIDATES", "Decision", "Plan", "auto", "decide"]

CANDIDATES = (
    *("baseline", "baseline:optimized", "margin:optimized"),
    *("ours:optimized", "ours-no-history:optimized", "ours-no-history-class-ensemble:optimized"),
)
"""Methods that `auto` chooses from; the first is what the others are held against."""

POOLED = (0.25, 0.5, 0.75)
"""Budgets that methods are rated at, besides those that are asked for."""


@dataclass(frozen=True)
class Plan(Mapping[float, Policy]):
    """A policy for every budget, with the reason for it.

    Attributes:
        policies: By budget, each at its operating point.
        exits: Numbers of the exits that are kept; policies want `plan.view(ledger)`.
        why: By budget, a sentence.
        accuracies: By method and budget, cross-validated on held_out and val.
    """

    policies: dict[float, Policy]
    exits: list[int]
    why: dict[float, str]
    accuracies: dict[str, dict[float, float]]

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

    def view(self, ledger: Ledger) -> Ledger:
        """A ledger with the exits that are kept."""
        return _kept(ledger, self.exits)


@dataclass(frozen=True)
class Decision:
    """What was chosen, before it is fitted.

    Attributes:
        methods: By budget.
        exits: Numbers of the exits that are kept.
        why: By budget, a sentence.
        accuracies: By method and budget, cross-validated on held_out and val.
    """

    methods: dict[float, Method]
    exits: list[int]
    why: dict[float, str]
    accuracies: dict[str, dict[float, float]]

    def plans(
        self,
        held_out: Ledger,
        val: Ledger,
        fit: Callable[[Policy, Ledger], Sequence[Policy]],
        nearest: bool = False,
    ) -> list[Plan]:
        """Fit what was chosen on held_out, and give it its thresholds on val.

        Args:
            held_out: To fit on.
            val: Held back from the fit, for the thresholds.
            fit: Makes fitted policies of an unfitted one, one for each plan; one policy stands
                for all plans where its fit is not random.
            nearest: Take the cheapest operating point where a budget is below all of them.

        Raises:
            BudgetError: A budget is below all operating points, and the nearest is not wanted.
        """
        parts = _kept(held_out, self.exits), _kept(val, self.exits)
        tuned = {}
        for method in {method.name: method for method in self.methods.values()}.values():
            fitted = fit(method.policy(), parts[0])
            tuned[method.name] = [policy.tune(parts[1], method.thresholds) for policy in fitted]
        count = max(map(len, tuned.values()))
        found = []
        for number in range(count):
            policies = {}
            for budget, method in self.methods.items():
                version = tuned[method.name][number % len(tuned[method.name])]
                least = float(version.points.budgets[0]) if nearest else 0.0
                policies[budget] = version.at(budget=max(budget, least))
            found.append(Plan(policies, self.exits, self.why, self.accuracies))
        return found


def auto(
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float] = (0.25, 0.5, 0.75),
    methods: Sequence[str | Method] = CANDIDATES,
) -> Plan:
    """The best policy for each budget: exits, answer, scorer and thresholds.

    Methods are rated by cross-validation on held_out and val: each of the two is fitted on once,
    while the other gives thresholds and is counted, half by half. Of the methods that cannot be
    told from the best at a budget, the one that is best over all budgets is taken. It is fitted
    on held_out; val is held back for its final thresholds. Test is not touched.

    Args:
        held_out: To choose by, and to fit answers and scorers.
        val: To choose by, and to tune the thresholds of what is chosen.
        budgets: Mean costs as shares of the network without exits.
        methods: To choose from; the first is what gains are measured against.

    Example:
        >>> from offramp import evaluate, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=500, exits=4)
        >>> plan = auto(splits["held_out"], splits["val"], [0.5], ["baseline", "margin:optimized"])
        >>> round(evaluate(plan[0.5], plan.view(splits["test"])).mean_cost, 1)
        0.5
    """
    decision = decide(held_out, val, budgets, methods)
    (plan,) = decision.plans(held_out, val, lambda policy, ledger: [policy.fit(ledger)])
    return plan


def decide(
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float],
    methods: Sequence[str | Method] = CANDIDATES,
) -> Decision:
    """Choose exits and, for each budget, a method; `auto` then fits them."""
    if not budgets or len(set(budgets)) < len(budgets):
        raise ConfigError(f"`budgets` must be distinct and at least one, got {list(budgets)}")
    rated_at = [*budgets, *(budget for budget in POOLED if budget not in budgets)]
    chosen = find_methods(methods, held_out.num_classes)
    exits = choose_exits(val, lambda kept: _rate(kept, chosen[0], held_out, val, rated_at))
    parts = _kept(held_out, exits), _kept(val, exits)
    hits = {method.name: hits_of(method, *parts, rated_at) for method in chosen}
    by_name = {method.name: method for method in chosen}
    picked = {b: by_name[pick(hits, number)] for number, b in enumerate(budgets)}
    why = {
        budget: _reason(picked[budget], chosen, hits, number, budget)
        for number, budget in enumerate(budgets)
    }
    accuracies = {
        name: dict(zip(budgets, found.mean(axis=0).tolist(), strict=False))
        for name, found in hits.items()
    }
    return Decision(picked, exits, why, accuracies)


def _kept(ledger: Ledger, exits: Sequence[int]) -> Ledger:
    return ledger if len(exits) == ledger.num_exits else ledger.keep_exits(exits)


def _rate(
    kept: Sequence[int],
    method: Method,
    held_out: Ledger,
    val: Ledger,
    budgets: Sequence[float],
) -> float:
    """How good a set of exits is for the simplest method, with thresholds that fit it."""
    policy = method.policy().fit(held_out.keep_exits(kept))
    return float(hits_on(policy, "optimized", val.keep_exits(kept), budgets).mean())


def _reason(
    best: Method, methods: Sequence[Method], hits: dict[str, Hits], number: int, budget: float
) -> str:
    """What was chosen, and by how much."""
    first = methods[0]
    gains = 100 * (hits[best.name] - hits[first.name])[:, number]
    spread = gains.std() / len(gains) ** 0.5
    text = (
        f"{_words(best)}: {hits[best.name][:, number].mean():.2%} at {budget:.0%} of the compute "
        f"by cross-validation on held_out and val, {gains.mean():+.2f} ± {spread:.2f} points "
        f"against {_words(first)}"
    )
    others = [method for method in methods if method is not best]
    if not others:
        return text
    rival = max(others, key=lambda method: hits[method.name][:, number].mean())
    other = hits[rival.name][:, number].mean()
    text = f"{text}; the best other: {_words(rival)}, {other:.2%}"
    if other <= hits[best.name][:, number].mean():
        return text
    return f"{text}, which cannot be told from it here and is not as good over all budgets"


def _words(method: Method) -> str:
    """The method's label, with its thresholds unless the label has them."""
    return method.label if ":" in method.name else f"{method.label}, {method.thresholds}"
