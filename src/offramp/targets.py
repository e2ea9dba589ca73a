"""What the right decision would have been, seen afterwards: stop targets and the oracle."""

import torch
from torch import Tensor

from offramp.costs import mean_costs
from offramp.errors import LedgerError

__all__ = [
    "correctness",
    "hopeless",
    "oracle_accuracies",
    "soft_correctness",
    "soft_stop_target",
    "stop_target",
]


def correctness(predictions: Tensor, labels: Tensor) -> Tensor:
    """Whether each exit is right, the target of CCCT in the paper's Appendix E.

    Args:
        predictions: `[N, M]`, the class that each exit would answer.
        labels: `[N]`, the true classes. For answers without logits, a prediction is the number of
            the first exit that gave it, and labels are bool `[N, M]`: whether each exit's answer
            is right.

    Returns:
        bool `[N, M]`.

    Example:
        >>> correctness(torch.tensor([[1, 2]]), torch.tensor([2]))
        tensor([[False,  True]])
    """
    predictions, labels = torch.as_tensor(predictions), torch.as_tensor(labels)
    if labels.dtype == torch.bool and labels.shape == predictions.shape:
        return labels.gather(1, predictions)
    if predictions.ndim != 2 or labels.shape != predictions.shape[:1]:
        raise LedgerError(
            "`predictions` must have the shape [N, M] and `labels` [N], got "
            f"{list(predictions.shape)} and {list(labels.shape)}"
        )
    return predictions == labels[:, None]


def stop_target(predictions: Tensor, labels: Tensor) -> Tensor:
    """Whether stopping is right at each exit: right here, or wrong at every exit from here on.

    This is the paper's Eq. (ee_target). A sample that no later exit gets right gains nothing
    from going on, so it should stop too.

    Args:
        predictions: `[N, M]`, the class that each exit would answer.
        labels: `[N]`, the true classes.

    Returns:
        bool `[N, M]`; the last exit is always True.

    Example:
        >>> stop_target(torch.tensor([[0, 1, 0], [0, 0, 0]]), torch.tensor([1, 1]))
        tensor([[False,  True,  True],
                [ True,  True,  True]])
    """
    correct = correctness(predictions, labels)
    return correct | ~_right_from_here_on(correct)


def soft_correctness(predictions: Tensor, probs: Tensor) -> Tensor:
    """The chance that each exit is right, by class probabilities from a better source.

    Right or wrong is one noisy bit. The probability that the last exit, or an ensemble of all
    exits, gives to an exit's answer has the same mean if it is calibrated, and far less noise.

    Args:
        predictions: `[N, M]`, the class that each exit would answer.
        probs: `[N, K]`, the probability of each class.

    Returns:
        `[N, M]`, of the type of `probs`.

    Example:
        >>> soft_correctness(torch.tensor([[1, 0]]), torch.tensor([[0.7, 0.3]]))
        tensor([[0.3000, 0.7000]])
    """
    return probs.gather(1, predictions)


def soft_stop_target(predictions: Tensor, probs: Tensor) -> Tensor:
    """The chance that stopping is right: that no later, different answer is right.

    Args:
        predictions: `[N, M]`, the class that each exit would answer.
        probs: `[N, K]`, the probability of each class.

    Returns:
        `[N, M]`, of the type of `probs`; one at the last exit.

    Example:
        >>> soft_stop_target(torch.tensor([[0, 1, 1]]), torch.tensor([[0.1, 0.7, 0.2]]))
        tensor([[0.3000, 1.0000, 1.0000]])
    """
    chances, exits = soft_correctness(predictions, probs), predictions.shape[1]
    found = torch.ones_like(chances)
    for exit_index in range(exits - 1):
        for later in range(exit_index + 1, exits):
            before = predictions[:, exit_index:later]
            new = (before != predictions[:, later, None]).all(dim=1)
            found[:, exit_index] -= torch.where(new, chances[:, later], 0)
    return found.clamp(0, 1)


def hopeless(correct: Tensor) -> Tensor:
    """Samples that no exit gets right, bool `[N]`, from correctness `[N, M]`.

    Example:
        >>> hopeless(torch.tensor([[False, True], [False, False]]))
        tensor([False,  True])
    """
    return ~correct.any(dim=1)


def oracle_accuracies(correct: Tensor, costs: Tensor, budgets: Tensor) -> Tensor:
    """Best accuracies that any stopping rule could reach at mean costs `[B]`: float64 `[B]`.

    Every sample starts at exit 0. Samples whose first right exit lies deeper are bought in order
    of the extra cost until the budget is spent.

    Args:
        correct: bool `[N, M]`.
        costs: `[M]` or `[N, M]`, cumulative, in the unit of the budgets.
        budgets: Mean costs per sample; not below the first exit's cost.

    Example:
        >>> correct = torch.tensor([[True, True], [False, True], [False, True], [False, False]])
        >>> oracle_accuracies(correct, torch.tensor([1.0, 2.0]), torch.tensor([1.25, 1.5]))
        tensor([0.5000, 0.7500], dtype=torch.float64)
    """
    first, means = correct.int().argmax(dim=1), mean_costs(costs)  # exit 0 where none is right
    table = costs.double().expand(correct.shape)
    extra = table.gather(1, first[:, None]).squeeze(1) - table[:, 0]
    wanted = extra[~hopeless(correct)].sort().values
    purses = (budgets.double() - float(means[0])) * len(correct)
    # Half a millionth of the largest step absorbs the rounding of the cumulative sum.
    slack = 5e-7 * float(means[-1])
    bought = torch.searchsorted(wanted.cumsum(0), purses + slack, right=True)
    return bought.double() / len(correct)


def _right_from_here_on(correct: Tensor) -> Tensor:
    """A bool `[N, M]`: whether this or any later exit is right."""
    return correct.flip(1).int().cummax(1).values.flip(1).bool()
