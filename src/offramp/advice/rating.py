"""How good methods are, by cross-fitting on the samples of held_out and val together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from offramp.arrays import Array
from offramp.batch_times import BatchTimes
from offramp.confidence import Confidence
from offramp.costs import Costs
from offramp.evaluation.bootstrap import QUANTILE, Interval, unseen_variance
from offramp.ledger import Ledger
from offramp.ledger.chunks import cut, folds
from offramp.methods import Method
from offramp.policy import Policy
from offramp.replay import BY_SAMPLE, Replay
from offramp.scorers.certainty import plainest
from offramp.thresholds.rule import ROUNDING
from offramp.thresholds.tuning import tune_points, worth_their_cost

Hits = npt.NDArray[np.float64]
"""`[N, B]` in [0, 1]: whether each sample is answered rightly at each budget."""

MANY = 2000  # samples of held_out and val together, above which half of them give a good fit
FEW_FOLDS = 4  # below
FAR = 0.1  # of the reference cost: what no neighbouring points differ by unless scores are tied
FEW_POINTS = 41  # operating points while methods are only compared


def pool(held_out: Ledger, val: Ledger) -> Ledger:
    """Both splits as one held_out ledger.

    Raises:
        SplitError: These are other splits, or they share samples.
        OriginError: They are of different networks.
        LedgerError: They have other exits, classes or costs.

    Example:
        >>> from offramp import synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300)
        >>> len(pool(splits["held_out"], splits["val"]))
        600
    """
    (policy,) = Policy(plainest(held_out.history_type)).fit_seeds(held_out, [0])
    val.require_split("val")
    policy.check_partner(val)
    policy.check_unseen(val, step="tune")
    both = held_out, val
    ids, groups, lengths = (
        [value for each in both if (value := getattr(each, name)) is not None]
        for name in ("sample_ids", "groups", "lengths")
    )
    labelled = all(each.has_labels for each in both)
    pooled = type(held_out)(
        np.concatenate([each.outputs for each in both]),
        np.concatenate([each.labels for each in both]) if labelled else None,
        _pooled_costs(held_out, val),
        split="held_out",
        sample_ids=[*ids[0], *ids[1]] if len(ids) == 2 else None,
        network=held_out.network,
        class_names=held_out.class_names,
        groups=[*groups[0], *groups[1]] if len(groups) == 2 else None,
        lengths=np.concatenate(lengths) if len(lengths) == 2 else None,
    )
    pooled.exits = held_out.exits
    if labelled and not held_out.has_logits:
        pooled.full_right = np.concatenate([each.full_correct for each in both])
    return pooled


def at_most(ledger: Ledger, samples: int) -> Ledger:
    """About so many samples of a ledger, at random, where it has more; groups stay whole.

    Example:
        >>> from offramp import synthetic
        >>> val = synthetic.ledgers(seed=0, samples=300)["val"]
        >>> len(at_most(val, 100)), at_most(val, 1000) is val
        (100, True)
    """
    if len(ledger) <= samples:
        return ledger
    rows, _ = cut(len(ledger), [samples / len(ledger)], seed=0, groups=ledger.group_numbers)
    return ledger.take(np.sort(rows))


def _pooled_costs(held_out: Ledger, val: Ledger) -> Costs | BatchTimes:
    first, second = held_out.cost_model, val.cost_model
    if not (first.by_sample and second.by_sample):
        return held_out.batch_times or first.mean()
    stages, heads, reference = (
        np.concatenate([getattr(first, name), getattr(second, name)])
        for name in ("stages", "heads", "reference")
    )
    return replace(first, stages=stages, heads=heads, reference=reference)


@dataclass(frozen=True)
class CrossFit:
    """Copies of a method's policy, each on the samples that it was not fitted on.

    Attributes:
        method: Whose policy.
        folds: Numbers of the samples that each copy is for.
        policies: The copies.
        replay: Of all samples, each by its copy.
    """

    method: Method
    folds: list[Array]
    policies: list[Policy]
    replay: Replay

    @classmethod
    def of(cls, method: Method, pooled: Ledger) -> "CrossFit":
        """Fit a copy for each fold, or one in all where there is nothing to learn."""
        found, policies, replays = [], [], []
        for rest, fold in _fits_and_counts(method, pooled):
            policy, *_ = method.policy().fit_seeds(pooled.take(rest), [0])
            found.append(fold)
            policies.append(policy)
            learns = len(rest) < len(pooled)
            part = pooled.take(fold).as_split("val")
            replays.append(policy.replay(part, "val", None if learns else "val"))
        order = np.argsort(np.concatenate(found))
        parts: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in replays])[order]
            for name in BY_SAMPLE
        }
        whole = replace(
            replays[0],
            labels=pooled.labels,
            full_correct=pooled.full_right,
            lengths=pooled.lengths,
            groups=pooled.group_numbers,
            price=replace(replays[0].price, costs=pooled.cost_model, of_all=None),
            **parts,
        )
        return cls(method, found, policies, whole)

    def hits(self, budgets: Sequence[float]) -> Hits:
        """Hits of every sample, `[N, B]`, with thresholds from the other half of the samples."""
        return hits_on(self.replay, self.method.thresholds, budgets)

    def policy(self, pooled: Ledger) -> Policy:
        """The policy fitted on all samples, with thresholds and confidence from the copies.

        So every sample serves both, and no threshold was chosen by a score that had seen the
        label of its sample. Copies are fitted on fewer samples and score otherwise, so it is
        the share of samples that leaves at each exit that is taken over from them.
        """
        policy, *_ = self.method.policy().fit_seeds(pooled, [0])
        points = self.replay.operating_points(self.method.thresholds)
        if any(len(fold) < len(pooled) for fold in self.folds):
            final = policy.replay(pooled, "val", allow_split="held_out")
            points = final.points_with_shares(points)
        policy = policy.with_points(points)
        policy.uses = []
        for step in ("fit", "tune"):
            policy.record(step, pooled, "held_out and val")
        if pooled.has_labels and pooled.has_logits:
            policy.confidence = Confidence().fit(self._parts(pooled), pooled.labels)
        return policy

    def _parts(self, pooled: Ledger) -> Iterator[tuple[Array, Array, Array]]:
        """By chunks: numbers of samples, their answers `[n, M, K]` and scores `[n, M-1]`."""
        for fold, policy in zip(self.folds, self.policies, strict=True):
            for rows, logits in pooled.take(fold).chunks():
                numbers = fold[rows]
                yield numbers, policy.answer.answers(logits), self.replay.scores[numbers, :-1]


def _fits_and_counts(method: Method, pooled: Ledger) -> Iterator[tuple[Array, Array]]:
    """What each copy is fitted on, and what it is for."""
    if not (method.scorer.learns or method.answer.learns):
        everything = np.arange(len(pooled))
        yield everything, everything
        return
    # Copies fitted on half of a few samples say little of a fit on all of them.
    slow = "seed" in method.scorer.settings()
    count = 2 if slow or len(pooled) >= MANY else FEW_FOLDS
    yield from folds(len(pooled), count, pooled.group_numbers)


def hits_on(replay: Replay, thresholds: str, budgets: Sequence[float]) -> Hits:
    """Hits of a fitted policy, `[N, B]`, with thresholds from the other half of the samples."""
    hits = np.zeros((len(replay), len(budgets)))
    for others, fold in folds(len(replay), 2, replay.groups):
        chosen_on = replay.take(others).scored
        points = tune_points(chosen_on, 0.0, thresholds, FEW_POINTS)
        points = worth_their_cost(points, chosen_on)
        tuned = replace(replay.take(fold), thresholds=points.thresholds)
        hits[fold] = hits_at(tuned, budgets)
    return replay.by_group(hits)


def hits_at(replay: Replay, budgets: Sequence[float]) -> Hits:
    """Right or wrong under the two points around each budget, mixed as a curve mixes them.

    Where they are far apart, under the cheaper one.
    """
    curve = replay.curve
    exits = replay.exits_by_point[curve.points]  # [P, n], by growing cost
    right = np.take_along_axis(replay.correct, exits.T, axis=1)  # [n, P]
    places = np.interp(budgets, curve.costs, np.arange(len(curve.costs)))
    left = places.astype(np.int64)
    after = np.minimum(left + 1, len(curve.costs) - 1)
    # No policy lies between points that are far apart, as tied scores make them.
    share = np.where(curve.costs[after] - curve.costs[left] > FAR, 0.0, places - left)
    mixed = (1 - share) * right[:, left] + share * right[:, after]
    # A policy that cannot be that cheap must not be rated at the cost that it can have.
    return np.where(curve.costs[0] > np.array(budgets) + ROUNDING, 0.0, mixed)


def pick(hits: dict[str, Hits], number: int, seconds: Mapping[str, float] | None = None) -> str:
    """The method for the budget with this number: the last one that may well be the best there.

    The highest of several noisy figures owes something to luck. So methods are named in the order
    of trust, and of all methods within two standard errors of the best one at this budget the last
    is taken. The standard error is that of the difference on the same samples: the more samples
    there are, the more they decide. Where time is counted, a method whose decisions take longer
    is only taken if it is better than the others by its own figure.

    Args:
        hits: By method, on the same samples and for the same budgets.
        number: Of the budget.
        seconds: By method, what a decision takes; None where time is not counted.

    Example:
        >>> lucky, trusted = np.zeros((100, 2)), np.zeros((100, 2))
        >>> lucky[:50, 0], trusted[2:51, 0] = 1, 1
        >>> pick({"lucky": lucky, "trusted": trusted}, number=0)
        'trusted'
    """
    here = {name: found[:, number] for name, found in hits.items()}
    best = max(here, key=lambda name: here[name].mean())
    likely = [name for name in here if not is_clearly_more(here[best], here[name])]
    if seconds is not None:
        likely = [
            name
            for name in likely
            if not any(
                seconds[other] < seconds[name] and here[other].mean() >= here[name].mean()
                for other in likely
            )
        ]
    return likely[-1]


def is_clearly_more(one: Hits, other: Hits) -> bool:
    """Whether the mean of one is more than two standard errors above another's, `[N]` each."""
    gaps = one - other
    return bool(gaps.mean() > QUANTILE * gaps.std() / len(gaps) ** 0.5)


def gain_of(hits: Hits, base: Hits) -> Interval:
    """What hits `[N]` gain over others on the same samples, with a 95 % interval.

    Example:
        >>> gain_of(np.ones(100), np.arange(100) % 2).is_clear
        True
    """
    gaps = hits - base
    error = (gaps.var() / len(gaps) + unseen_variance(len(gaps))) ** 0.5
    return Interval.around(float(gaps.mean()), float(error))
