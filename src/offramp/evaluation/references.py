"""References for methods: fixed exits and mixes, what is reachable, the oracle."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from offramp.answers import GeometricEnsemble
from offramp.arrays import Array, softmax
from offramp.costs import mean_costs
from offramp.errors import LedgerError
from offramp.evaluation.pairs import PairMix, upper_hull
from offramp.ledger import Ledger
from offramp.ledger.chunks import folds
from offramp.replay import GRID, AccuracyAt, accuracy_at
from offramp.targets import correctness, hopeless, oracle_accuracies, soft_correctness
from offramp.thresholds.smooth import calibrated_chances

PRICES = np.logspace(-3, 1.5, 150)  # accuracy for the whole network's cost
ENOUGH = 2000  # samples to fit a weight per exit on


@dataclass(frozen=True)
class FixedExit:
    """A network that always answers at one exit, and has no other head."""

    exit_index: int  # counted from zero
    cost: float  # as a share of the network without exits
    accuracy: float  # on test


@dataclass(frozen=True)
class FixedMix:
    """Two such networks, one of which answers each sample, chosen at random."""

    exits: tuple[int, ...]  # first the cheaper one; the same twice where one exit is best
    share: float  # of the samples that the second exit answers
    cost: float  # as a share of the network without exits
    accuracy: float  # on test


@dataclass(frozen=True)
class References:
    """What methods are held against.

    Attributes:
        fixed: Every exit alone.
        best_fixed: Per budget, the exit that is best on val of all within the budget; the first
            exit where none is.
        mixes: Per budget, the random mix of two fixed exits that is best on val and costs as much
            as the budget: what can be had whatever the sample.
        mix_curve: The same at every whole per cent from the first exit's cost on.
        full: The last exit alone: the network without exits, unless that one was dropped.
        reachable: Per budget, the accuracy of a rule that sees the logits of all exits, but no
            label (see `reachable_accuracies`); a cost below the budget is all that it needs.
        reachable_curve: The same at every whole per cent from the first exit's cost on.
        oracle: Per budget, the best accuracy that a rule could reach that knows the labels; at
            the cost of the first exit where the budget is below it.
        oracle_curve: The same at every whole per cent from the first exit's cost on.
        hopeless_share: Share of test samples that no exit gets right.
        pair_mixes: Of a cascade, per budget: the mix of two cascades of two models that is best
            on held_out and val together; empty for anything else.

    The reachable rule and the oracle know beforehand which model of a cascade they take, and pay
    for that one alone.
    """

    fixed: list[FixedExit]
    best_fixed: list[FixedExit]
    mixes: list[FixedMix]
    full: FixedExit
    reachable: list[AccuracyAt]
    reachable_curve: list[AccuracyAt]
    oracle: list[AccuracyAt]
    oracle_curve: list[AccuracyAt]
    hopeless_share: float
    pair_mixes: list[PairMix] = field(default_factory=list)
    mix_curve: list[AccuracyAt] = field(default_factory=list)


def references(val: Ledger, test: Ledger, budgets: Sequence[float]) -> References:
    """Measure the reference rows.

    Args:
        val: To choose the best fixed exits on.
        test: To measure on.
        budgets: As shares of the network without exits.

    Example:
        >>> from offramp import synthetic
        >>> splits = synthetic.ledgers(seed=0)
        >>> rows = references(splits["val"], splits["test"], [0.5])
        >>> rows.mixes[0].accuracy < rows.reachable[0].accuracy < rows.oracle[0].accuracy
        True
    """
    correct, val_accuracy = test.heads_correct, val.heads_correct.mean(axis=0)
    fixed = fixed_exits(test, correct)
    costs = _costs_beforehand(test)
    least = float(mean_costs(costs)[0])
    if test.cost_model.is_cascade:
        correct, costs = _cheapest_right(correct, np.broadcast_to(costs, correct.shape))
        least = float(costs[:, 0].mean())
    grid = [budget for budget in GRID if budget >= least]
    curve = (mix_at(fixed, val_accuracy, budget) for budget in GRID)
    reachable = reachable_accuracies(test, [*budgets, *grid])
    return References(
        fixed=fixed,
        best_fixed=[_best_within(fixed, val_accuracy, budget) for budget in budgets],
        mixes=[mix_at(fixed, val_accuracy, budget) for budget in budgets],
        full=fixed[-1],
        reachable=reachable[: len(budgets)],
        reachable_curve=reachable[len(budgets) :],
        oracle=_oracle(correct, costs, [max(b, least) for b in budgets]),
        oracle_curve=_oracle(correct, costs, grid),
        hopeless_share=float(hopeless(correct).mean()),
        mix_curve=[AccuracyAt(mix.accuracy, mix.cost) for mix in curve],
    )


def fixed_exits(ledger: Ledger, correct: Array) -> list[FixedExit]:
    """Every exit alone, from which heads are right, `[N, M]`."""
    costs = ledger.cost_model.alone / ledger.reference_cost
    accuracies = correct.mean(axis=0).tolist()
    return list(map(FixedExit, range(ledger.num_exits), costs.tolist(), accuracies))


def mix_at(fixed: Sequence[FixedExit], val_accuracy: Array, budget: float) -> FixedMix:
    """The mix that is best on val at a budget; the cheapest exit where none is within the budget.

    Args:
        fixed: Every exit alone.
        val_accuracy: `[M]`, to choose by.
        budget: Mean cost as a share of the network without exits.
    """
    first, second, share = best_mix([row.cost for row in fixed], val_accuracy.tolist(), budget)
    low, high = fixed[first], fixed[second]
    return FixedMix(
        (first, second),
        share,
        (1 - share) * low.cost + share * high.cost,
        (1 - share) * low.accuracy + share * high.accuracy,
    )


def best_mix(
    costs: Sequence[float], accuracies: Sequence[float], budget: float
) -> tuple[int, int, float]:
    """The most accurate mix of two exits `[M]` at a mean cost: their numbers, the second's share.

    Example:
        >>> best_mix([0.25, 0.5, 1.0], [0.3, 0.4, 0.8], budget=0.625)
        (0, 2, 0.5)
    """
    corners = upper_hull(np.array(costs), np.array(accuracies))
    place = sum(costs[corner] <= budget + 1e-9 for corner in corners)
    first, second = corners[max(place - 1, 0)], corners[min(place, len(corners) - 1)]
    gap = costs[second] - costs[first]
    return first, second, max(0.0, budget - costs[first]) / gap if gap else 0.0


def reachable_accuracies(test: Ledger, budgets: Sequence[float]) -> list[AccuracyAt]:
    """What a rule reaches that sees the logits of all exits of a sample, but no label.

    At a price of compute, it takes the exit with the highest chance of being right less the price
    of its cost. Answers are ensembles of the exits so far, and the chance of each is what the
    ensemble of all exits gives it; ensembles are fitted on the other half of test. So this is what
    a perfect forecast of the later exits is worth. No stop rule knows them, so that none that
    answers as well can be expected to do better.

    Args:
        test: Measured on, half by half.
        budgets: As shares of the network without exits.

    Raises:
        LedgerError: There are not two samples to fit and to measure on.

    Example:
        >>> from offramp import synthetic
        >>> found = reachable_accuracies(synthetic.ledgers(seed=0)["test"], [0.25, 0.5])
        >>> found[0].accuracy < found[1].accuracy
        True
    """
    if len(test) < 2:
        raise LedgerError(
            f"test needs at least two samples, to measure one half by the other, got {len(test)}"
        )
    costs = np.broadcast_to(_costs_beforehand(test), (len(test), test.num_exits))
    spent, right = np.zeros((2, 1, len(PRICES)))
    for rows, chances, correct in _chances(test):
        paid = costs[rows]  # [n, M]
        exits = np.stack([(chances - p * paid).argmax(axis=1) for p in PRICES], axis=1)
        spent += np.take_along_axis(paid, exits, axis=1).sum(axis=0)
        right += np.take_along_axis(correct, exits, axis=1).sum(axis=0)
    found = accuracy_at(spent / len(test), right / len(test), np.array(budgets))
    return list(map(AccuracyAt, *(part[0].tolist() for part in found)))


def _chances(test: Ledger) -> Iterator[tuple[Array, Array, Array]]:
    """Numbers of samples, the chance `[n, M]` that each exit is right, and whether it is.

    Of answers without logits, it is the calibrated chance that the last stage gives to each.
    """
    numbers = np.arange(len(test))
    if not test.has_logits:
        yield numbers, calibrated_chances(test.history().chances, test.labels), test.labels
        return
    halves = []
    for rest, fold in folds(len(test), 2, test.group_numbers):
        ensemble = GeometricEnsemble(shrinkage=0.02)
        ensemble.fit(test.take(rest[:ENOUGH]), allow_split=test.split)
        halves.append((ensemble, np.isin(numbers, fold)))
    for rows, logits in test.chunks():
        for ensemble, is_inside in halves:
            inside = is_inside[rows]
            answers = ensemble.answers(logits[inside])
            predictions = answers.argmax(axis=2)
            chances = soft_correctness(predictions, softmax(answers[:, -1]))
            correct = correctness(predictions, test.labels[rows][inside])
            yield numbers[rows][inside], chances, correct


def _costs_beforehand(test: Ledger) -> Array:
    """`[M]` or `[N, M]`: what a rule pays that knows at once where a sample leaves, as shares."""
    if not test.cost_model.is_cascade:
        return test.cumulative_costs / test.reference_cost
    alone = [test.keep_exits([m]).cumulative_costs[..., 0] for m in range(test.num_exits)]
    return np.stack(alone, axis=-1) / test.reference_cost


def _cheapest_right(correct: Array, costs: Array) -> tuple[Array, Array]:
    """The cheapest model of each sample, and the cheapest that is right: both as `[N, 2]`."""
    known, first = correct.any(axis=1), costs.argmin(axis=1)
    cheapest = np.where(known, np.where(correct, costs, np.inf).argmin(axis=1), first)
    right = [correct[np.arange(len(correct)), first], known]
    chosen = np.stack([first, cheapest], axis=1)
    return np.stack(right, axis=1), np.take_along_axis(costs, chosen, axis=1)


def _oracle(correct: Array, costs: Array, budgets: list[float]) -> list[AccuracyAt]:
    found = oracle_accuracies(correct, costs, np.array(budgets))
    return list(map(AccuracyAt, found.tolist(), budgets))


def _best_within(fixed: Sequence[FixedExit], val_accuracy: Array, budget: float) -> FixedExit:
    within = [row for row in fixed if row.cost <= budget + 1e-9] or fixed[:1]
    return max(within, key=lambda row: val_accuracy[row.exit_index])
