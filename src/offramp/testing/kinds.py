"""The promises of each kind: of answers, of scorers, and of threshold methods."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from offramp.answers import Answer, CurrentExit
from offramp.arrays import AnyArray, Array, sigmoid
from offramp.errors import SplitError
from offramp.ledger import Ledger
from offramp.metrics import eefp
from offramp.policy import Policy
from offramp.scorers import History, MaxProbability, Scorer
from offramp.testing.components import (
    CLASSES,
    EXITS,
    SHOWN,
    TOLERANCE,
    ComponentUnderTest,
    easy_and_hard,
    learned,
    made_up,
)
from offramp.testing.promises import (
    Outputs,
    Promise,
    UnderTest,
    changes_nothing,
    differences,
    gives_the_same_again,
    random_numbers,
)
from offramp.thresholds import exits_taken
from offramp.thresholds.rule import OperatingPoints
from offramp.thresholds.tuning import ScoredSamples, ThresholdMethod

ROUNDING = 0.01  # of a score, where rounded logits nearly cancel
HUGE = 3e4  # about half of the largest float16 number
CLEAR = 0.8  # AUROC, where there is hardly a doubt
POINTS = 21
SEARCH_TOLERANCE = 0.02  # of accuracy


class AnswerUnderTest(ComponentUnderTest):
    """An answer under test, with max probability as the scorer."""

    kind = Answer
    exits = range(EXITS)

    def fit(self, component: Answer, ledger: Ledger, heads: Array | None = None) -> object:
        """On a ledger."""
        return component.fit(ledger)

    def run(
        self, component: Answer, heads: AnyArray, logits: AnyArray, exit_index: int
    ) -> AnyArray:
        """`[n, K]`."""
        return component.answer_at(logits[:, : exit_index + 1])

    def policy(self, component: Answer) -> Policy:
        """With max probability."""
        return Policy(MaxProbability(), component)

    @Promise("an answer is logits", "of probabilities, return the logarithm")
    def _answers_are_logits(self) -> Iterator[str]:
        for where, found in self.outputs().items():
            if (found >= 0).all() and np.allclose(found.sum(axis=1), 1, atol=TOLERANCE):
                yield f"got probabilities {where}"

    @Promise("answers are fitted on held_out", "override _fit, so that fit checks the split")
    def _fits_on_held_out_only(self) -> Iterator[str]:
        val = made_up("val")
        try:
            self.component.clone().fit(val)
        except SplitError:
            self.component.clone().fit(val, allow_split="val")  # allowed if requested
        else:
            yield "fit accepted the split 'val'"

    @Promise("answers() agrees with answer_at()")
    def _both_methods_agree(self) -> Iterator[str]:
        whole = self.fitted.answers(self.logits)
        found = {f"at exit {m}": whole[:, m] for m in self.exits}
        yield from differences(found, self.outputs(), TOLERANCE)

    @Promise("an answer keeps what the exits know", "is the sign wrong?")
    def _answers_are_right(self) -> Iterator[str]:
        test = made_up("test")
        known = (test.logits.argmax(axis=2) == test.labels[:, None]).mean(axis=0)
        for own, (where, found) in zip(known, self.outputs(test.logits).items(), strict=True):
            right = (found.argmax(axis=1) == test.labels).mean()
            if right <= own / 2:
                yield f"{right:.0%} are right {where}, and {own:.0%} of the exit's own"


class ScorerUnderTest(ComponentUnderTest):
    """A scorer under test, with the current exit as the answer."""

    kind = Scorer
    exits = range(EXITS - 1)  # at the last one, no scorer runs

    def fit(self, component: Scorer, ledger: Ledger, heads: Array | None = None) -> object:
        """On what would be answered at all exits."""
        history = History(ledger.logits if heads is None else heads, ledger.logits)
        return component.fit(history, ledger.labels, ledger.costs)

    def run(
        self, component: Scorer, heads: AnyArray, logits: AnyArray, exit_index: int
    ) -> AnyArray:
        """`[n]`, from answers that differ from the logits."""
        return component.score_at(History(heads, 0.5 * logits).until(exit_index))

    def policy(self, component: Scorer) -> Policy:
        """With the current exit."""
        return Policy(component, CurrentExit())

    @Promise("scores are finite", "a threshold of +inf closes an exit for every sample")
    def _scores_are_finite(self) -> Iterator[str]:
        equal, sure = np.zeros_like(self.logits), np.zeros_like(self.logits)
        sure[..., 0] = HUGE
        for what, logits in (("where all classes are equal", equal), ("where one is huge", sure)):
            for where, found in self.outputs(logits).items():
                if not np.isfinite(found).all():
                    yield f"{what}, got {found[~np.isfinite(found)][0]} {where}"

    @Promise("every seed gives a scorer")
    def _seeds_give_scorers(self) -> Iterator[str]:
        held_out = made_up("held_out")
        history = History(held_out.logits, held_out.logits)
        with random_numbers():
            made = self.component.fit_seeds(history, held_out.labels, held_out.costs, [0, 1])
        seeds = [each.settings().get("seed") for each in made if each.is_fitted]
        wanted = [0, 1] if "seed" in self.component.settings() else [None]
        if seeds != wanted:
            yield f"of the seeds 0 and 1, fit_seeds makes fitted scorers with the seeds {seeds}"

    @Promise("at_exit() agrees with score_at()")
    def _prepared_scores_agree(self) -> Iterator[str]:
        whole, scores = History(self.logits, 0.5 * self.logits), self.outputs()
        for m, where in zip(self.exits, scores, strict=True):
            prepared = self.fitted.at_exit(m, CLASSES)(whole.until(m))
            yield from differences({where: prepared}, {where: scores[where]})

    @Promise("probability() returns probabilities")
    def _probabilities_are_valid(self) -> Iterator[str]:
        for where, scores in self.outputs().items():
            found = self.fitted.probability(scores)
            if found is None:
                return
            if found.shape != scores.shape:
                yield f"got the shape {list(found.shape)} {where}"
            if not ((found >= 0) & (found <= 1)).all():
                yield f"got values from {found.min():.4g} to {found.max():.4g} {where}"

    @Promise("higher scores speak for stopping", "is the sign wrong?")
    def _higher_is_better(self) -> Iterator[str]:
        (held_out, _), (test, easy) = easy_and_hard(seed=0), easy_and_hard(seed=1)
        fitted: Any = self.fitted_to(held_out)
        for exit_index in self.exits[1:]:  # at the first exit there is no history yet
            scores = fitted.score_at(test.history().until(exit_index))
            auroc = float(eefp(scores[:, None], easy[:, None])[0])
            if auroc < CLEAR:
                yield (
                    f"at exit {exit_index}, {auroc:.0%} of the samples that are right and sure at "
                    "every exit score higher than one that is unsure and changes its answer"
                )

    @Promise(
        "scores do not saturate",
        "take history.log_odds or a logarithm: in float32, large probabilities are exactly 1",
    )
    def _scores_stay_apart(self) -> Iterator[str]:
        sure = np.zeros_like(self.logits)
        sure[..., 0] = np.linspace(40, 160, SHOWN)[:, None]
        usual = self.outputs()
        for where, found in self.outputs(sure).items():
            distinct = len(np.unique(found))
            # A scorer that counts has few scores for any samples.
            if distinct < 0.9 * SHOWN and len(np.unique(usual[where])) > SHOWN / 2:
                yield f"{SHOWN} very sure samples have {distinct} different scores {where}"

    @Promise(
        "scores are of what would be answered", "look at history.answers, and not history.logits"
    )
    def _scores_follow_the_answers(self) -> Iterator[str]:
        turned = self.logits[::-1].copy()
        if self.component.counts_votes:
            others = self.outputs(turned, heads=self.logits)
            for change in differences(others, self.outputs(), TOLERANCE):
                yield f"it counts votes, and where something else would be answered, {change}"
            return
        others = self.outputs(heads=turned)
        for change in differences(others, self.outputs(), TOLERANCE):
            yield f"with other logits before the answer, {change}"
        if not self.component.learns:
            return
        held_out = made_up("held_out")
        heads = held_out.logits, held_out.logits[::-1].copy()
        one, other = (learned(self.fitted_to(held_out, each, seed=0)) for each in heads)
        for change in differences(other, one, TOLERANCE):
            yield f"fitted with other logits before the answer, {change}"

    @Promise(
        "a constant added to all logits changes nothing",
        "take history.log_probs: answers leave the constant open",
    )
    def _constants_do_not_matter(self) -> Iterator[str]:
        shift = 8 * np.random.default_rng(0).standard_normal((SHOWN, EXITS, 1), np.float32)
        yield from differences(self.outputs(self.logits + shift), self.outputs(), ROUNDING)


@dataclass(frozen=True)
class TuningSamples:
    """What a method is given, in the order of its arguments."""

    scores: Array  # `[N, M]`; as in practice, `+inf` at the last exit
    correct: Array  # bool `[N, M]`
    costs: Array  # `[M]`

    def taken(self, order: Array) -> "TuningSamples":
        """The same samples in another order."""
        return TuningSamples(self.scores[order], self.correct[order], self.costs)

    def points(self, thresholds: Array) -> OperatingPoints:
        """The operating points that a policy would keep."""
        return ScoredSamples(self.scores, self.correct, self.costs).points_of(thresholds, 0.5)


class MethodUnderTest(UnderTest):
    """A threshold method under test."""

    def __init__(self, method: ThresholdMethod) -> None:
        self.method = method
        self.name = getattr(method, "__name__", type(method).__name__)
        self.changed = []

    def run(self, samples: TuningSamples) -> Array:
        """The method on copies of these."""
        scores, correct, costs = given = [value.copy() for value in vars(samples).values()]
        with random_numbers():
            found = self.method(scores, correct, costs, POINTS)
        for (name, value), copy in zip(vars(samples).items(), given, strict=True):
            if not np.array_equal(copy, value) and name not in self.changed:
                self.changed.append(name)
        return found

    @cached_property
    def samples(self) -> dict[str, TuningSamples]:
        """By description."""
        rng, made = np.random.default_rng(0), {}
        for name, exits, form in (
            ("with distinct scores", 4, np.positive),
            ("with two exits", 2, np.positive),
            ("with many tied scores", 4, np.round),
            ("with equal scores", 3, np.zeros_like),
        ):
            scores = form(rng.standard_normal((200, exits)).astype(np.float32))
            correct = rng.random(scores.shape) < sigmoid(scores + np.linspace(0, 2, exits))
            scores[:, -1] = np.inf
            made[name] = TuningSamples(scores, correct, np.linspace(0.2, 1.0, exits))
        return made

    def outputs(self) -> Outputs:
        """Thresholds by description of the samples."""
        return {name: self.run(samples) for name, samples in self.samples.items()}

    @cached_property
    def found(self) -> list[tuple[str, TuningSamples, Array]]:
        """What a first run has found: description, samples and thresholds."""
        return [(name, self.samples[name], found) for name, found in self.outputs().items()]

    @Promise("thresholds are one row per operating point", basic=True)
    def _thresholds_are_points(self) -> Iterator[str]:
        for where, samples, found in self.found:
            exits = len(samples.costs)
            if not isinstance(found, np.ndarray):
                yield f"a NumPy array [P, {exits}] is needed, got {type(found).__name__} {where}"
            if found.ndim != 2 or found.shape[1] != exits:
                yield f"the shape [P, {exits}] is needed, got {list(found.shape)} {where}"
            if not 1 <= len(found) <= POINTS:
                yield f"1 to {POINTS} points were asked for, got {len(found)} {where}"
            if found.dtype != np.float64:  # which compares exactly with scores of any type
                yield f"float64 is needed, got {found.dtype} {where}"

    @Promise("thresholds are never NaN", "+inf closes an exit, and -inf stops all", basic=True)
    def _thresholds_are_limits(self) -> Iterator[str]:
        for where, _, found in self.found:
            if count := int(np.isnan(found).sum()):
                yield f"{count} are NaN {where}"

    _gives_the_same_again = gives_the_same_again

    @Promise("the cost on val stays within the budget", basic=True)
    def _budgets_are_kept(self) -> Iterator[str]:
        for where, samples, found in self.found:
            points, least = samples.points(found), float(samples.costs[0])
            reached = float(points.budgets[0])
            if reached > least + 1e-9:
                yield f"the cheapest point costs {reached:.3f}, exit 0 alone {least:.3f}, {where}"
            for budget in np.linspace(least, 1.0, 7).tolist():
                chosen = points.thresholds[points.for_budget(budget)]
                cost = samples.costs[exits_taken(samples.scores, chosen)].mean()
                if cost > budget + 1e-6:
                    yield f"at the budget {budget:.3f}, it is {cost:.3f} {where}"

    @Promise("thresholds lie between scores", "midway, rounding changes no decision")
    def _thresholds_lie_between(self) -> Iterator[str]:
        for where, samples, found in self.found:
            for exit_index in range(len(samples.costs) - 1):
                scores = samples.scores[:, exit_index].astype(np.float64)
                hit = np.intersect1d(found[:, exit_index], scores)
                if len(hit):
                    yield f"{hit[0]} is a score at exit {exit_index} {where}"

    @Promise("a larger budget buys accuracy")
    def _budgets_are_used(self) -> Iterator[str]:
        where, samples, found = self.found[0]
        best, first = samples.points(found).accuracies.max(), samples.correct[:, 0].mean()
        if best <= first:
            yield f"the best point reaches {best:.3f}, and exit 0 alone {first:.3f}, {where}"

    @Promise("the order of the samples does not matter")
    def _order_does_not_matter(self) -> Iterator[str]:
        _, samples, _ = self.found[0]
        order = samples.scores[:, 0].argsort()
        sorted_samples = samples.taken(order), samples.taken(order[::-1])
        curves = [each.points(self.run(each)) for each in sorted_samples]
        for budget in (0.4, 0.6, 0.8):
            one, two = (each.accuracies[each.for_budget(budget)] for each in curves)
            # Summation order may change the path of a search, but not how good its result is.
            if abs(one - two) > SEARCH_TOLERANCE:
                yield f"at the budget {budget}, the accuracy on val is {one:.3f} and {two:.3f}"

    _changes_nothing = changes_nothing
