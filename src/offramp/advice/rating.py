"""How good methods are, sample by sample: cross-validated on held_out and val.

Each of the two splits is fitted on once while the other rates. The rating one is cut in halves:
thresholds come from one half, and the samples of the other are counted, in turn. So every sample
of both splits is counted once, by a policy that has not seen it, and two methods can be compared
on the same samples.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offramp.ledger import Ledger
from offramp.methods import Method
from offramp.policy import Policy
from offramp.thresholds.points import measure, tune_points
from offramp.thresholds.rule import exits_taken
from offramp.tracing import Trace

__all__ = ["Hits", "hits_of", "hits_on", "pick"]

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
