"""Threshold methods that break one promise each."""

import torch

from offramp.thresholds.geometric import geometric_sweep


def no_tensor(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, points).tolist()


def too_many(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, 2 * points)


def single(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, points).float()


def undefined(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    return found.masked_fill(found == torch.inf, torch.nan)


def on_scores(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    for m in range(len(costs) - 1):
        values = scores[:, m].double().sort().values
        above = torch.searchsorted(values, found[:, m]).clamp_max(len(values) - 1)
        found[:, m] = torch.where(found[:, m].isfinite(), values[above], found[:, m])
    return found


def only_dear(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, points)[points // 2 :]


def only_cheap(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, points)[:1]


def dice(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    return found[: points - int(torch.randint(1, 10, ()))]


def meddling(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    costs /= 2
    return found


def first_sample(scores, correct, costs, points):
    """Depends on the first sample: all points if it is confident, else only the two ends."""
    found = geometric_sweep(scores, correct, costs, points)
    return found if scores[0, 0] > 0 else found[[0, -1]]


BROKEN_METHODS = [
    (no_tensor, "thresholds are one row per operating point", r"\[P, M\] with M = 4 .*got list"),
    (too_many, "thresholds are one row per operating point", "1 to 21 operating points.*got 42"),
    (single, "thresholds are one row per operating point", "float64.*got torch.float32"),
    (undefined, "thresholds are never NaN", "[0-9]+ are NaN"),
    (on_scores, "thresholds lie between scores", "is a score at exit 0"),
    (
        only_dear,
        "the cost on val stays within the budget",
        "exit 0, 0.200, upwards; the cheapest",
    ),
    (
        only_cheap,
        "a larger budget buys accuracy",
        "more accurate than stopping every sample at exit",
    ),
    (dice, "the same scores give the same thresholds", "from the same scores; they differ"),
    (meddling, "the same scores give the same thresholds", "unchanged; it changed them"),
    (first_sample, "the order of the samples does not matter", "at the budget 0.4 for samples"),
]
