"""Threshold methods that break one promise each."""

import numpy as np

from offramp.thresholds.geometric import geometric_sweep


def no_array(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, points).tolist()


def too_many(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, 2 * points)


def single(scores, correct, costs, points):
    return np.float32(geometric_sweep(scores, correct, costs, points))


def undefined(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    return np.where(found == np.inf, np.nan, found)


def on_scores(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    for m in range(len(costs) - 1):
        values = np.sort(scores[:, m].astype(np.float64))
        above = np.searchsorted(values, found[:, m]).clip(max=len(values) - 1)
        found[:, m] = np.where(np.isfinite(found[:, m]), values[above], found[:, m])
    return found


def only_dear(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, points)[points // 2 :]


def only_cheap(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, points)[:1]


def dice(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    return found[: points - np.random.randint(1, 10)]


def meddling(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    costs /= 2
    return found


def first_sample(scores, correct, costs, points):
    """Depends on the first sample: all points if it is confident, else only the two ends."""
    found = geometric_sweep(scores, correct, costs, points)
    return found if scores[0, 0] > 0 else found[[0, -1]]


ROWS = "thresholds are one row per operating point"

BROKEN_METHODS = [
    (no_array, ROWS, r"a NumPy array \[P, 4\] is needed, got list with distinct scores"),
    (too_many, ROWS, "1 to 21 points were asked for, got 42"),
    (single, ROWS, "float64 is needed, got float32"),
    (undefined, "thresholds are never NaN", "[0-9]+ are NaN"),
    (on_scores, "thresholds lie between scores", "is a score at exit 0"),
    (only_dear, "the cost on val stays within the budget", "point costs .*, exit 0 alone 0.200"),
    (only_cheap, "a larger budget buys accuracy", "the best point reaches .*, and exit 0 alone"),
    (dice, "the same samples give the same result", "there are shapes"),
    (meddling, "nothing that is given changes", "`costs` changed"),
    (first_sample, "the order of the samples does not matter", "at the budget 0.4, the accuracy"),
]
