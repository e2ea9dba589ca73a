"""`auto`: exits, answer, scorer and thresholds, chosen by cross-validation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offramp.errors import BudgetError, ConfigError
from offramp.evaluation.contestant import Contestant
from offramp.ledger import Ledger
from offramp.methods import Method, find_methods
from offramp.policy import Policy
from offramp.replay import Trace
from offramp.thresholds.points import measure, tune_points
from offramp.thresholds.rule import exits_taken

Rate = Callable[[Sequence[int]], float]

NEGLIGIBLE = 1e-3  # of the network without exits; heads that cost less are not worth a search


def choose_exits(ledger: Ledger, rate: Rate) -> list[int]:
    """Drop the exit whose loss is the best riddance, again and again, while that helps.

    The last exit stays, and so do exits whose heads cost next to nothing, or where their cost is
    not known apart: dropping them saves nothing that a closed threshold would not.

    Args:
        ledger: Any split: its costs are looked at.
        rate: How good a set of exits is; higher is better.

    Returns:
        Numbers of the exits to keep, ascending.

    Example:
        >>> import torch
        >>> from offramp import Costs
        >>> costs = Costs(stages=(1, 1, 1), heads=(1, 1, 1))
        >>> ledger = Ledger(torch.randn(4, 3, 2), [0, 1, 0, 1], costs, split="val")
        >>> choose_exits(ledger, lambda exits: -float(0 in exits))
        [1, 2]
    """
    kept = list(range(ledger.num_exits))
    least = NEGLIGIBLE * ledger.reference_cost
    dear = [m for m in kept[:-1] if ledger.cost_model.heads[m] > least]
    if not dear:
        return kept
    best = rate(kept)
    while len(kept) > 2 and dear:
        rated = {m: rate([other for other in kept if other != m]) for m in dear}
        worst = max(rated, key=lambda m: rated[m])
        if rated[worst] <= best:
            break
        best = rated[worst]
        kept.remove(worst)
        dear.remove(worst)
    return kept


Hits = npt.NDArray[np.float64]
"""`[N, B]` in [0, 1]: whether each sample is answered rightly at each budget."""

FOLDS = 2
POINTS = 41  # operating points while methods are only compared


def hits_of(method: Method, held_out: Ledger, val: Ledger, budgets: Sequence[float]) -> Hits:
    """Hits of a method on all samples of held_out and val, `[N, B]`."""
    turns = (held_out, val), (val._as_split("held_out"), held_out._as_split("val"))
    found = []
    for fitted_on, rated_on in turns:
        (policy,) = method.policy().fit_seeds(fitted_on, [0])
        found.append(hits_on(policy, method.thresholds, rated_on, budgets))
    return np.concatenate(found)


def hits_on(policy: Policy, thresholds: str, val: Ledger, budgets: Sequence[float]) -> Hits:
    """Hits of a fitted policy on val, `[N, B]`, with thresholds from the other folds."""
    trace = policy.trace(val, "val")
    costs = policy.costs(val) / val.reference_cost
    order = torch.randperm(len(val), generator=torch.Generator().manual_seed(0))
    hits = np.zeros((len(val), len(budgets)))
    for fold in order.tensor_split(FOLDS):
        others = torch.ones(len(val), dtype=torch.bool)
        others[fold] = False
        rest = trace.take(others)
        points = tune_points(rest.scores, rest.correct, costs, 0.0, thresholds, POINTS)
        hits[fold.numpy()] = _hits(trace.take(fold), points.thresholds, costs, budgets)
    return hits


def _hits(trace: Trace, thresholds: Tensor, costs: Tensor, budgets: Sequence[float]) -> Hits:
    """Right or wrong under the two points around each budget, mixed as a curve mixes them."""
    exits = exits_taken(trace.scores, thresholds)  # [P, n]
    means = measure(exits, trace.correct, costs)[0]
    order = means.argsort(stable=True)
    right = trace.correct.gather(1, exits[order].T.long()).double().numpy()  # [n, P]
    spent = means[order].numpy()
    columns = []
    for budget in budgets:
        if costs[0] > budget + 1e-9:
            # A policy that cannot be that cheap must not be rated at the cost that it can have.
            columns.append(np.zeros(len(right)))
            continue
        place = float(np.interp(budget, spent, np.arange(len(spent))))
        left, share = int(place), place - int(place)
        after = min(left + 1, len(spent) - 1)
        columns.append((1 - share) * right[:, left] + share * right[:, after])
    return np.stack(columns, axis=1)


def pick(hits: dict[str, Hits], number: int) -> str:
    """The method for the budget with this number: good there, and the best over all budgets.

    The highest of several noisy figures is a lucky one. So all methods within one standard error
    of the best at this budget are kept, where the error is that of the difference on the same
    samples; of these, the one that is best on average over all budgets is taken.

    Args:
        hits: By method, on the same samples and for the same budgets.
        number: Of the budget.

    Example:
        >>> lucky, steady = np.zeros((100, 2)), np.zeros((100, 2))
        >>> lucky[:50, 0], steady[2:51, 0], steady[:50, 1] = 1, 1, 1
        >>> pick({"lucky": lucky, "steady": steady}, number=0)
        'steady'
    """
    best = max(hits, key=lambda name: hits[name][:, number].mean())
    close = []
    for name, found in hits.items():
        behind = hits[best][:, number] - found[:, number]
        error = behind.std() / len(behind) ** 0.5
        if behind.mean() <= error:
            close.append(name)
    return max(close, key=lambda name: hits[name].mean())


CANDIDATES = (
    *("baseline", "baseline:optimized", "margin:optimized"),
    *("eefp:optimized", "eefp-no-history:optimized", "eefp-no-history-class-ensemble:optimized"),
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
