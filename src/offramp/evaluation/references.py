"""What to hold methods against: each exit alone, the full network, and the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offramp.ledger import Ledger
from offramp.replay import GRID, AccuracyAt
from offramp.targets import correctness, hopeless, oracle_accuracies


@dataclass(frozen=True)
class FixedExit:
    """A network that always answers at one exit, and has no other head."""

    exit_index: int  # counted from zero
    cost: float  # as a share of the network without exits
    accuracy: float  # on test


@dataclass(frozen=True)
class References:
    """Rows beside the methods.

    Attributes:
        fixed: Every exit alone.
        best_fixed: Per budget, the exit that is best on val among those within the budget; the
            first exit where none is.
        full: The last exit alone: the network without exits, unless that one was dropped.
        oracle: Per budget, the best accuracy that any stopping rule could reach; at the cost of
            the first exit where the budget is below it.
        oracle_curve: The same at every whole per cent from the first exit's cost on.
        hopeless_share: Share of test samples that no exit gets right.
    """

    fixed: list[FixedExit]
    best_fixed: list[FixedExit]
    full: FixedExit
    oracle: list[AccuracyAt]
    oracle_curve: list[AccuracyAt]
    hopeless_share: float


def references(val: Ledger, test: Ledger, budgets: Sequence[float]) -> References:
    """Measure the reference rows.

    Args:
        val: To choose the best fixed exit on.
        test: To measure on.
        budgets: As shares of the network without exits.

    Example:
        >>> from offramp import synthetic
        >>> splits = synthetic.ledgers(seed=0)
        >>> rows = references(splits["val"], splits["test"], [0.5])
        >>> len(rows.fixed), rows.oracle[0].accuracy > rows.full.accuracy
        (8, True)
    """
    correct, val_accuracy = heads_correct(test), heads_correct(val).double().mean(dim=0)
    accuracy = correct.double().mean(dim=0)
    alone = test.cost_model.alone / test.reference_cost
    fixed = [
        FixedExit(index, float(alone[index]), float(accuracy[index]))
        for index in range(test.num_exits)
    ]
    costs = test.costs / test.reference_cost
    return References(
        fixed=fixed,
        best_fixed=[fixed[_best_within(alone, val_accuracy, budget)] for budget in budgets],
        full=fixed[-1],
        oracle=_oracle(correct, costs, [max(b, float(costs[0])) for b in budgets]),
        oracle_curve=_oracle(correct, costs, [b for b in GRID if b >= float(costs[0])]),
        hopeless_share=float(hopeless(correct).double().mean()),
    )


def heads_correct(ledger: Ledger) -> Tensor:
    """Whether each head is right, before any answer: bool `[N, M]`."""
    predictions = torch.cat([logits.argmax(dim=2) for _, logits in ledger.chunks()])
    return correctness(predictions, ledger.labels)


def _oracle(correct: Tensor, costs: Tensor, budgets: list[float]) -> list[AccuracyAt]:
    found = oracle_accuracies(correct, costs, torch.tensor(budgets, dtype=torch.float64))
    return list(map(AccuracyAt, found.tolist(), budgets))


def _best_within(costs: Tensor, accuracy: Tensor, budget: float) -> int:
    within = costs <= budget + 1e-9
    if not within.any():
        return 0
    return int(torch.where(within, accuracy, -1.0).argmax())
