"""Which models of a cascade to ask, in which order, and when to stop: single ones, pairs, triples.

A few hundred questions tell little of the best of many candidates, so that the estimates must be
steady rather than the rules rich. All samples serve everything, by cross-fitting. Whether an
answer is right is one noisy bit; what counts here is the chance of it, given how sure *all* models
are (`Chance`). That chance is known of the samples to learn from only, and it is used to compare
candidates, never to decide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from offramp.advice.rating import pool
from offramp.arrays import Array, one_thread, sigmoid
from offramp.costs import costs_taken
from offramp.errors import ConfigError
from offramp.evaluation.pairs import upper_hull
from offramp.ledger import Ledger
from offramp.ledger.chunks import folds
from offramp.methods import Fits, Method
from offramp.plan import Plan
from offramp.policy import Policy
from offramp.scorers import CalibratedConfidence, MaxProbability, Scorer
from offramp.scorers.calibrated import Chance
from offramp.thresholds.rule import OperatingPoints, exit_shares, exits_taken

FOLDS = 5
MOST = 3  # models in a sub-chain; longer ones brought nothing on the cascades that were tried
SHARES = np.linspace(0, 1, 21)  # of the samples that stop at a model, between which to choose
INDIFFERENT = 0.1  # standard errors below the best, for which the cheaper candidate is taken

Models = tuple[int, ...]


@dataclass(frozen=True)
class SubChains(Method):
    """Ask one, two or three models of a cascade, whichever do best within each budget.

    Every single model, pair and triple is a candidate, whichever model is its last, with
    thresholds on the calibrated chance that the answer is right. Everything is learned from
    held_out and val together, cross-fitted. For 10 models there are 175 sub-chains.

    Args:
        most: How many models a sub-chain may have.

    Example:
        >>> from offramp import synthetic
        >>> splits = synthetic.cascade(seed=0, samples=300)
        >>> (plan,) = SubChains().plans(splits["held_out"], splits["val"], [0.5], seeds=1)
        >>> len(plan[0.5].exits) <= 3
        True
    """

    name: str = "sub-chains"
    label: str = "Sub-chains"
    thresholds: str = "smooth"
    scorer: Scorer = field(default_factory=CalibratedConfidence)
    most: int = MOST

    def describe(self) -> dict[str, Any]:
        """What the candidates are made of; what was chosen is in the plan."""
        return {"scorer": self.scorer.describe(), "most": self.most}

    def with_thresholds(self, thresholds: str) -> Method:
        """Refused: thresholds are part of the choice."""
        raise ConfigError(
            f"{self.name!r} chooses thresholds too; name it without {':' + thresholds!r}"
        )

    @one_thread()
    def plans(
        self,
        held_out: Ledger,
        val: Ledger,
        budgets: Sequence[float],
        seeds: int,
        fits: Fits | None = None,
    ) -> list[Plan]:
        """Choose a sub-chain and its thresholds for every budget."""
        search = _Search(pool(held_out, val), self.most)
        chosen = {budget: search.best(budget) for budget in budgets}
        policies = {models: search.policy(models) for models, _ in chosen.values()}
        return [
            Plan(
                {b: policies[models].at_point(point) for b, (models, point) in chosen.items()},
                list(range(val.num_exits)),
                dict.fromkeys(budgets, self.name),
                {b: search.why(b, *found) for b, found in chosen.items()},
                {self.name: {b: search.accuracy(*found) for b, found in chosen.items()}},
            )
        ]


def states_confidence(answers: Ledger) -> bool:
    """Whether any answer comes with a confidence; otherwise they can only vote."""
    return "confidences" in answers.history_type.offers


def suits(held_out: Ledger, val: Ledger) -> bool:
    """Whether sub-chains can be chosen: of models that state confidences, with labels."""
    both = held_out, val
    return all(
        each.cost_model.is_cascade
        and not each.has_logits
        and each.has_labels
        and states_confidence(each)
        and (each.lengths is None or bool((each.lengths == each.num_exits).all()))
        for each in both
    )


@dataclass(frozen=True)
class _Search:
    """All sub-chains on the samples to learn from, and what is computed once for many of them."""

    pooled: Ledger
    most: int

    @cached_property
    def _chains(self) -> list[Models]:
        models = range(self.pooled.num_exits)
        sizes = range(1, min(self.most, len(models)) + 1)
        return [chain for size in sizes for chain in combinations(models, size)]

    @cached_property
    def _right(self) -> Array:
        """`[N, M]`: the chance that each model is right, given how sure all of them are."""
        everything = tuple(range(self.pooled.num_exits))
        found = [self._crossfitted(everything, of=model) for model in everything]
        return np.asarray(sigmoid(np.stack(found, axis=1)))

    def _crossfitted(self, models: Models, of: int = -1) -> Array:
        """Log-odds `[N]` that one of these models is right, by fits without the sample."""
        ledger = self.pooled.keep_exits(models)
        history, right = ledger.history(), ledger.heads_correct[:, of]
        odds = np.empty(len(ledger))
        for rest, fold in folds(len(ledger), FOLDS, ledger.group_numbers):
            chance = Chance(of).fit(history.take(rest), right[rest])
            odds[fold] = chance.odds(history.take(fold))
        return odds

    @cached_property
    def _scores(self) -> dict[Models, Array]:
        """By the models that were asked so far, the score at the last of them, `[N]`."""
        asked = {chain[:size] for chain in self._chains for size in range(1, len(chain))}
        return {models: self._crossfitted(models).astype(np.float32) for models in asked}

    def _scores_of(self, models: Models) -> Array:
        """`[N, m]`, of a sub-chain; the last one always stops."""
        columns = [self._scores[models[:size]] for size in range(1, len(models))]
        return np.stack([*columns, np.full(len(self.pooled), np.inf, np.float32)], axis=1)

    @cached_property
    def points(self) -> dict[Models, OperatingPoints]:
        """By sub-chain, the thresholds that no others of it beat, cheapest first."""
        full = float(self.pooled.full_correct.mean())
        found = {}
        for models in self._chains:
            scores, chances = self._scores_of(models), self._right[:, list(models)]
            thresholds, ledger = _grid(scores), self.pooled.keep_exits(models)
            exits = exits_taken(scores, thresholds)
            paid = costs_taken(ledger.cumulative_costs / ledger.reference_cost, exits)
            accuracies = np.take_along_axis(chances, exits.T, axis=1).mean(axis=0)
            spent, shares = paid.mean(axis=1), exit_shares(exits, len(models))
            kept = list(_undominated(spent, accuracies))
            found[models] = OperatingPoints(
                thresholds[kept], spent[kept], accuracies[kept], shares[kept], full
            )
        return found

    @cached_property
    def _candidates(self) -> list[tuple[Models, int]]:
        return [(models, i) for models, points in self.points.items() for i in range(len(points))]

    @cached_property
    def _figures(self) -> Array:
        """Costs and accuracies of all candidates, `[2, C]`."""
        columns = [[points.budgets, points.accuracies] for points in self.points.values()]
        return np.concatenate(columns, axis=1)

    def best(self, budget: float) -> tuple[Models, int]:
        """The most accurate candidate within a budget, or a cheaper one that is hardly less so.

        Where nothing is within the budget, it is the cheapest.
        """
        costs, accuracies = self._figures
        within = np.flatnonzero(costs <= budget + 1e-9)
        if not len(within):
            return self._candidates[int(costs.argmin())]
        corners = [int(within[i]) for i in upper_hull(costs[within], accuracies[within])]
        best = corners[-1]
        hits = self._hits(*self._candidates[best])
        for corner in corners:
            gaps = hits - self._hits(*self._candidates[corner])
            error = (gaps.var() / len(gaps) + 1 / len(gaps) ** 2) ** 0.5
            if accuracies[best] - accuracies[corner] <= INDIFFERENT * error:
                return self._candidates[corner]
        raise AssertionError("the best one is not below itself")

    def _hits(self, models: Models, point: int) -> Array:
        """Whether a candidate is right, `[N]` or by group, 0 or 1."""
        exits = exits_taken(self._scores_of(models), self.points[models].thresholds[point])
        right: Array = self.pooled.heads_correct[np.arange(len(exits)), np.array(models)[exits]]
        groups = self.pooled.group_numbers
        if groups is None:
            return right.astype(np.float64)
        return np.asarray(np.bincount(groups, right) / np.bincount(groups))

    def accuracy(self, models: Models, point: int) -> float:
        """As estimated by cross-fitted chances."""
        return float(self.points[models].accuracies[point])

    def policy(self, models: Models) -> Policy:
        """A sub-chain, fitted on all samples; its thresholds come from cross-fitted scores."""
        scorer = CalibratedConfidence() if len(models) > 1 else MaxProbability()
        kept = self.pooled.keep_exits(models)
        (policy,) = Policy(scorer).fit_seeds(kept, [0])
        policy = policy.with_points(self.points[models])
        policy.uses = []
        for step in ("fit", "tune"):
            policy.record(step, self.pooled, "held_out and val")
        return policy

    def why(self, budget: float, models: Models, point: int) -> str:
        """What was chosen for a budget, and the best single model and pair beside it."""
        points, of = self.points[models], f"of the {self.pooled.unit}"
        text = (
            f"{_words(models)}: {points.accuracies[point]:.2%} for {points.budgets[point]:.0%} "
            f"{of}, estimated by cross-fitting on {len(self.pooled):,} samples of held_out and val"
        )
        if points.budgets[point] > budget + 1e-9:
            return f"{text}; nothing is within a budget of {budget:.0%}"
        for size, name in ((1, "single model"), (2, "pair"), (3, "triple")):
            rivals = [
                (float(found.accuracies[i]), chain)
                for chain, found in self.points.items()
                if len(chain) == size != len(models)
                for i in np.flatnonzero(found.budgets <= budget + 1e-9)
            ]
            if rivals:
                accuracy, chain = max(rivals)
                text += f"; the best {name}, {_words(chain)}: {accuracy:.2%}"
        return text


def _grid(scores: Array) -> Array:
    """Thresholds `[P, m]` at which every combination of shares of the samples would stop."""
    cuts = [np.unique(np.quantile(column, SHARES)) for column in scores[:, :-1].T]
    mesh = np.meshgrid(*cuts, [-np.inf], indexing="ij")
    return np.stack([each.ravel() for each in mesh], axis=1)


def _undominated(costs: Array, accuracies: Array) -> Iterator[int]:
    """Numbers of the candidates that are more accurate than every cheaper one."""
    best = -np.inf
    for index in np.lexsort((-accuracies, costs)).tolist():
        if accuracies[index] > best:
            best = accuracies[index]
            yield index


def _words(models: Models) -> str:
    """Numbers of stages, as they are asked.

    Example:
        >>> _words((0, 3))
        'model 0, then 3'
    """
    return "model " + ", then ".join(map(str, models))


SUB_CHAINS = SubChains()
