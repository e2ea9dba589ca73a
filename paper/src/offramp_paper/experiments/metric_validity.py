"""Which metric identifies the better method? The paper's headline claim.

Within each network, the rank correlation over methods of mean ECE, EEFP, NLL and AUGRC with the
accuracy at each budget, with bootstrap intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import scipy

from offramp import Policy
from offramp.evaluation import ExitMetrics, Resamples, auroc_shares
from offramp.replay import Replay
from offramp.report import Cell, ResultTable
from offramp_paper.experiments.efficientnet_b2_imagenet import EFFICIENTNET_B2, LITE0
from offramp_paper.experiments.msdnet_cifar100 import MSDNET, SMALL_MSDNET
from offramp_paper.experiments.page import report
from offramp_paper.experiments.resnet34_tinyimagenet import RESNET34, THIN_RESNET
from offramp_paper.experiments.run import BUDGETS, Analysis, Result, Run
from offramp_paper.experiments.vit_small_imagenet import VIT_SMALL
from offramp_paper.experiments.vit_tiny_tinyimagenet import VIT, VIT_TINY

METHODS = (
    *("baseline", "temperature", "vector", "matrix", "overconfident", "underconfident"),
    *("eefp-top-1", "eefp-top-2", "eefp-top-5", "eefp-top-10", "eefp-top-all", "eefp-no-history"),
    *("ccct-top-1", "ccct-top-2", "ccct-top-5", "ccct-top-10", "ccct-top-all"),
)
NETWORKS = {
    "paper": [MSDNET, RESNET34, VIT_TINY, VIT_SMALL, EFFICIENTNET_B2],
    "small": [SMALL_MSDNET, THIN_RESNET, VIT, LITE0],
}

METRICS = {"ECE": -1, "EEFP": 1, "NLL": -1, "AUGRC": -1}  # sign: 1 where higher is better
LEVEL = 0.95
Floats = npt.NDArray[np.float64]


def main(run: Run) -> None:
    """Train, record, compare, and correlate."""
    results = [run.compare(run.record(each), METHODS) for each in run.networks(NETWORKS)]
    analysis = run.analyse(results, metric_validity)
    report(run, "Which metric identifies the better method?", __doc__, results, analysis=analysis)


def metric_validity(results: Sequence[Result]) -> Analysis:
    """Rank correlation over methods of each metric with the accuracy at each budget."""
    return Analysis(
        "Which metric ranks methods as their accuracy does?",
        "Within each network: Spearman's rank correlation, over methods, between a metric "
        "(mean over all exits but the last) and the accuracy at a budget. The sign is flipped "
        "where lower is better: +1 means that the metric ranks the methods as their accuracy "
        "does, and -1 the opposite. NLL depends on the answers alone, which correction does "
        "not change.",
        [_table(result) for result in results],
    )


@dataclass(frozen=True)
class _Measured:
    """Metrics `[4]` and accuracies `[B]` of one method, and resampled: `[R, 4]`, `[R, B]`."""

    metrics: Floats
    accuracies: Floats
    resampled_metrics: Floats
    resampled_accuracies: Floats


def _table(result: Result) -> ResultTable:
    comparison, count = result.comparison, len(result.recorded.ledgers["test"])
    draws = Resamples(count, int(comparison.setting["resamples"]))
    methods = [_measure(result, method.name, draws) for method in comparison.methods]
    rows = []
    for place, name in enumerate(METRICS):
        found = [_correlation(methods, place, budget) for budget in range(len(BUDGETS))]
        rows.append([Cell(name), *found])
    names = ", ".join(method.label for method in comparison.methods)
    seeds = comparison.setting["seeds"]
    return ResultTable(
        f"{result.recorded.name}-validity",
        f"{result.title}: rank correlation with accuracy over {len(methods)} methods",
        ["metric", *(f"{budget:.0%}" for budget in BUDGETS)],
        rows,
        f"With {LEVEL:.0%} intervals from the spread over resamples of the {count:,} test samples "
        f"(methods and thresholds fixed, means over {seeds} seeds); bold: the interval "
        f"excludes zero. Methods: {names}.",
    )


def _measure(result: Result, name: str, draws: Resamples) -> _Measured:
    middle = BUDGETS[len(BUDGETS) // 2]
    runs = [
        _measure_policy(result, plan[middle], exits, draws)
        for plan, exits in zip(result.plans(name), result.comparison[name].exits, strict=True)
    ]
    means = {
        each.name: np.mean([getattr(run, each.name) for run in runs], axis=0)
        for each in fields(_Measured)
    }
    return _Measured(**means)


def _measure_policy(
    result: Result, policy: Policy, exits: ExitMetrics, draws: Resamples
) -> _Measured:
    replay = policy.replay(result.recorded.ledgers["test"])
    calibration = draws.ece(replay, policy.scorer)
    unknown = np.full(len(draws.weights), np.nan)
    resampled = [
        unknown if calibration is None else calibration,
        draws.eefp(replay),
        draws.means(replay.losses[:, :-1]).mean(axis=1),
        resampled_augrc(replay, draws),
    ]
    return _Measured(
        np.array([_mean(each) for each in (exits.ece, exits.eefp, exits.nll, exits.augrc)]),
        np.array([replay.curve.at(budget).accuracy for budget in BUDGETS]),
        np.stack(resampled, axis=1, dtype=np.float64),
        draws.accuracies(replay, BUDGETS),
    )


def _mean(values: Floats) -> float:
    known = values[:-1][~np.isnan(values[:-1])]
    return float(known.mean()) if len(known) else float("nan")


def resampled_augrc(replay: Replay, draws: Resamples) -> Floats:
    """Mean over all exits but the last, `[R]`.

    AUGRC is (1 - AUROC) a (1 - a) + (1 - a)^2 / 2 for an accuracy a (Traub et al. 2024); the
    AUROC is resampled to first order, as in `Resamples.eefp`.
    """
    last = replay.scores.shape[1] - 1
    correct = replay.correct[:, :last]
    accuracy = draws.means(correct).astype(np.float64)  # [R, M-1]
    columns = []
    for exit_index in range(last):
        right = correct[:, exit_index]
        if right.all() or not right.any():
            columns.append(np.zeros(len(accuracy)))
            continue
        area, shares = auroc_shares(replay.scores[:, exit_index], right)
        columns.append(area + draws.means(shares[:, None])[:, 0].astype(np.float64))
    area_by_exit = np.stack(columns, axis=1)
    wrong = 1 - accuracy
    found: Floats = ((1 - area_by_exit) * accuracy * wrong + wrong**2 / 2).mean(axis=1)
    return found


def _correlation(methods: Sequence[_Measured], metric: int, budget: int) -> Cell:
    sign = list(METRICS.values())[metric]
    # A scorer that states no probability has no calibration error, and is left out there.
    rated = [each for each in methods if not np.isnan(each.metrics[metric])]
    if len(rated) < 3:
        return Cell("-")
    value = spearman(
        sign * np.array([each.metrics[metric] for each in rated])[None],
        np.array([each.accuracies[budget] for each in rated])[None],
    )[0]
    if np.isnan(value):
        return Cell("-")
    resampled = spearman(
        sign * np.stack([each.resampled_metrics[:, metric] for each in rated], axis=1),
        np.stack([each.resampled_accuracies[:, budget] for each in rated], axis=1),
    )
    low, high = around(float(value), resampled)
    return Cell(f"{value:+.2f} [{low:+.2f}, {high:+.2f}]", bold=bool(low > 0 or high < 0))


def around(value: float, resampled: Floats) -> tuple[float, float]:
    """The interval of a correlation, around it: only the spread of resamples `[R]` is used.

    Resampling adds noise to both sides, which moves correlations, so that plain percentiles may
    leave out what was measured. On Fisher's scale the ends stay within -1 and 1.

    Example:
        >>> low, high = around(0.5, np.linspace(0.6, 0.8, 101))
        >>> low < 0.5 < high
        True
    """
    tail = (1 - LEVEL) / 2
    scaled = np.arctanh(np.clip(resampled, -0.999, 0.999))
    moved = np.nanquantile(scaled - np.nanmean(scaled), [tail, 1 - tail])
    low, high = np.tanh(np.arctanh(np.clip(value, -0.999, 0.999)) + moved)
    return min(float(low), value), max(float(high), value)


def spearman(first: Floats, second: Floats) -> Floats:
    """Rank correlations of the rows of two arrays `[R, P]`: `[R]`; NaN where all are tied."""
    ranks = [scipy.stats.rankdata(values, axis=1) for values in (first, second)]
    centred = [values - values.mean(axis=1, keepdims=True) for values in ranks]
    product = (centred[0] * centred[1]).sum(axis=1)
    norms = np.sqrt((centred[0] ** 2).sum(axis=1) * (centred[1] ** 2).sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(product / norms)
