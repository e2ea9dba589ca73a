"""What the right decision would have been, seen afterwards: stop targets and the oracle."""

import numpy as np

from offramp.arrays import AnyArray, Array, as_numpy
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


def correctness(predictions: AnyArray, labels: AnyArray) -> Array:
    """Whether each exit is right, the target of CCCT in the paper's Appendix E.

    Args:
        predictions: `[N, M]`, the class that each exit would answer.
        labels: `[N]`, the true classes. For answers without logits, a prediction is the number of
            the first exit that gave it, and labels are bool `[N, M]`: whether each exit's answer
            is right.

    Returns:
        bool `[N, M]`.

    Example:
        >>> correctness(np.array([[1, 2]]), np.array([2]))
        array([[False,  True]])
    """
    predictions, labels = as_numpy(predictions), as_numpy(labels)
    if labels.dtype == np.bool_ and labels.shape == predictions.shape:
        return np.take_along_axis(labels, predictions, axis=1)
    if predictions.ndim != 2 or labels.shape != predictions.shape[:1]:
        raise LedgerError(
            "`predictions` must have the shape [N, M] and `labels` [N], got "
            f"{list(predictions.shape)} and {list(labels.shape)}"
        )
    return np.asarray(predictions == labels[:, None])


def stop_target(predictions: AnyArray, labels: AnyArray) -> Array:
    """Whether stopping is right at each exit: right here, or wrong at every exit from here on.

    This is the paper's Eq. (ee_target). A sample that no later exit gets right gains nothing
    from going on, so it should stop too.

    Args:
        predictions: `[N, M]`, the class that each exit would answer.
        labels: `[N]`, the true classes.

    Returns:
        bool `[N, M]`; the last exit is always True.

    Example:
        >>> stop_target(np.array([[0, 1, 0], [0, 0, 0]]), np.array([1, 1]))
        array([[False,  True,  True],
               [ True,  True,  True]])
    """
    correct = correctness(predictions, labels)
    right_from_here_on = np.logical_or.accumulate(correct[:, ::-1], axis=1)[:, ::-1]
    return correct | ~right_from_here_on


def soft_correctness(predictions: AnyArray, probs: AnyArray) -> Array:
    """The chance that each exit is right, by class probabilities from a better source.

    Right or wrong is one noisy bit. The probability that the last exit, or an ensemble of all
    exits, gives to an exit's answer has the same mean if it is calibrated, and far less noise.

    Args:
        predictions: `[N, M]`, the class that each exit would answer.
        probs: `[N, K]`, the probability of each class.

    Returns:
        `[N, M]`, of the type of `probs`.

    Example:
        >>> soft_correctness(np.array([[1, 0]]), np.array([[0.7, 0.3]]))
        array([[0.3, 0.7]])
    """
    return np.take_along_axis(as_numpy(probs), as_numpy(predictions), axis=1)


def soft_stop_target(predictions: AnyArray, probs: AnyArray) -> Array:
    """The chance that stopping is right: that no later, different answer is right.

    Args:
        predictions: `[N, M]`, the class that each exit would answer.
        probs: `[N, K]`, the probability of each class.

    Returns:
        `[N, M]`, of the type of `probs`; one at the last exit.

    Example:
        >>> soft_stop_target(np.array([[0, 1, 1]]), np.array([[0.1, 0.7, 0.2]])).round(2)
        array([[0.3, 1. , 1. ]])
    """
    predictions, chances = as_numpy(predictions), soft_correctness(predictions, probs)
    exits, found = predictions.shape[1], np.ones_like(chances)
    for exit_index in range(exits - 1):
        for later in range(exit_index + 1, exits):
            before = predictions[:, exit_index:later]
            new = (before != predictions[:, later, None]).all(axis=1)
            found[:, exit_index] -= np.where(new, chances[:, later], 0)
    return found.clip(0, 1)


def hopeless(correct: AnyArray) -> Array:
    """Samples that no exit gets right, bool `[N]`, from correctness `[N, M]`.

    Example:
        >>> hopeless(np.array([[False, True], [False, False]]))
        array([False,  True])
    """
    return np.logical_not(as_numpy(correct).any(axis=1))


def oracle_accuracies(correct: AnyArray, costs: AnyArray, budgets: AnyArray) -> Array:
    """Best accuracies that any stopping rule could reach at mean costs `[B]`: float64 `[B]`.

    Every sample starts at exit 0. Samples whose first right exit lies deeper are bought in order
    of the extra cost until the budget is spent.

    Args:
        correct: bool `[N, M]`.
        costs: `[M]` or `[N, M]`, cumulative, in the unit of the budgets.
        budgets: Mean costs per sample; not below the first exit's cost.

    Example:
        >>> correct = np.array([[True, True], [False, True], [False, True], [False, False]])
        >>> oracle_accuracies(correct, np.array([1.0, 2.0]), np.array([1.25, 1.5]))
        array([0.5 , 0.75])
    """
    correct, means = as_numpy(correct), mean_costs(costs)
    first = correct.argmax(axis=1)  # exit 0 where none is right
    table = np.broadcast_to(as_numpy(costs, np.float64), correct.shape)
    extra = np.take_along_axis(table, first[:, None], axis=1)[:, 0] - table[:, 0]
    wanted = np.sort(extra[~hopeless(correct)])
    purses = (as_numpy(budgets, np.float64) - means[0]) * len(correct)
    # Half a millionth of the largest step absorbs the rounding of the cumulative sum.
    slack = 5e-7 * means[-1]
    bought = np.searchsorted(wanted.cumsum(), purses + slack, side="right")
    return np.asarray(bought / len(correct))
