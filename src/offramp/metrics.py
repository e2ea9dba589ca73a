"""Scores for classifiers and for stopping, as pure functions on arrays.

Per-exit functions take `[N, M]` and return one float per exit, `[M]`.
"""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from offramp import check
from offramp.arrays import AnyArray, Floats, as_numpy
from offramp.errors import LedgerError

__all__ = ["augrc", "aurc", "ece", "ece_bins", "eefp"]

BinScheme = Literal["mass", "width"]


def ece_bins(
    probability: AnyArray, bins: int = 15, scheme: BinScheme = "mass"
) -> npt.NDArray[np.int64]:
    """The bin of each sample, `[N]`, for the calibration error and for reliability diagrams.

    Args:
        probability: `[N]`, in [0, 1].
        bins: How many bins.
        scheme: `mass` gives all bins the same number of samples as far as ties allow (tied
            values share a bin); `width` cuts [0, 1] into equal intervals.

    Example:
        >>> ece_bins(np.array([0.9, 0.1, 0.5, 0.9]), bins=2)
        array([1, 0, 0, 1])
    """
    values = as_numpy(probability, np.float64)
    check.whole("bins", bins, least=1)
    check.one_of("scheme", scheme, get_args(BinScheme))
    if not ((values >= 0) & (values <= 1)).all():
        raise LedgerError("`probability` must lie in [0, 1]; stop scores are not probabilities")
    if scheme == "width":
        return np.minimum((values * bins).astype(np.int64), bins - 1)
    # The middle of a tied group's ranks decides, so that the group goes where most of it belongs.
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return np.asarray((middle * bins / len(values)).astype(np.int64)[group], dtype=np.int64)


def ece(
    probability: AnyArray, correct: AnyArray, bins: int = 15, scheme: BinScheme = "mass"
) -> float:
    """Expected calibration error: how far the stated probability is from how often it is right.

    Args:
        probability: `[N]`, the stated probability that the answer is right.
        correct: bool `[N]`, whether the answer is right (never the stop target).
        bins: How many bins.
        scheme: Equal-`mass` bins, or bins of equal `width`.

    Example:
        >>> ece(np.array([0.75, 0.75, 0.75, 0.75]), np.array([True, True, False, False]))
        0.25
    """
    values = as_numpy(probability, np.float64)
    index = ece_bins(values, bins, scheme)
    gaps = np.bincount(index, weights=values - as_numpy(correct))
    return float(np.abs(gaps).sum() / len(values))


def eefp(scores: AnyArray, targets: AnyArray) -> Floats:
    """Early-exit failure prediction: AUROC of the stop scores for the stop target, per exit.

    Args:
        scores: `[N, M]`, higher = better to stop.
        targets: bool `[N, M]`, from `targets.stop_target`.

    Returns:
        `[M]`; NaN where the target has one class only, as it always has at the last exit.

    Example:
        >>> scores = np.array([[0.9, 1.0], [0.2, 1.0], [0.1, 1.0]])
        >>> eefp(scores, np.array([[True, True], [False, True], [True, True]]))
        array([0.5, nan])
    """
    # Here, since scikit-learn is a third of the time that `import offramp` would take.
    from sklearn.metrics import roc_auc_score

    columns = zip(as_numpy(scores).T, as_numpy(targets).T, strict=True)
    return np.array(
        [np.nan if t.all() or not t.any() else roc_auc_score(t, s) for s, t in columns],
        dtype=np.float64,
    )


def aurc(scores: AnyArray, correct: AnyArray) -> float:
    """Area under the risk-coverage curve: mean error among the most confident, over coverages.

    Tied samples are accepted together: within a tie, errors are spread evenly.

    Args:
        scores: `[N]`, higher = more confident.
        correct: bool `[N]`.

    Example:
        >>> aurc(np.array([3.0, 2.0, 1.0]), np.array([True, True, False])).__round__(4)
        0.1111
    """
    errors = _spread_errors(scores, correct)
    covered = np.arange(1, len(errors) + 1)
    return float(np.mean(np.cumsum(errors) / covered))


def augrc(scores: AnyArray, correct: AnyArray) -> float:
    """Area under the generalised risk-coverage curve (Traub et al. 2024), in [0, 0.5].

    The generalised risk at a coverage is the share of *all* samples that are accepted and
    wrong, so that, unlike in AURC, no error counts more because few samples are accepted.

    Args:
        scores: `[N]`, higher = more confident.
        correct: bool `[N]`.

    Example:
        >>> augrc(np.array([3.0, 2.0, 1.0]), np.array([True, True, False])).__round__(4)
        0.0556
    """
    errors = _spread_errors(scores, correct)
    risks = np.concatenate([[0.0], np.cumsum(errors)]) / len(errors)
    return float(np.trapezoid(risks, dx=1 / len(errors)))


def _spread_errors(scores: AnyArray, correct: AnyArray) -> Floats:
    """Error of each rank, most confident first, averaged within tied scores: `[N]`."""
    values = as_numpy(scores)
    wrong = 1.0 - as_numpy(correct)
    _, group, counts = np.unique(-values, return_inverse=True, return_counts=True)
    means = np.bincount(group, weights=wrong) / counts
    return np.asarray(np.repeat(means, counts), dtype=np.float64)
