"""Does a metric of the exits rank methods as their accuracy does? The paper's headline claim."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import scipy
import torch
from torch import Tensor

from offramp.evaluation.bootstrap import Resamples, auroc_shares
from offramp.evaluation.outcome import exit_metrics
from offramp.metrics import Floats
from offramp.policy import Policy
from offramp.progress import showing
from offramp.replay import Replay
from offramp.report import ResultTable, Section
from offramp.report.tables import Cell, cells
from offramp.studies.results import ExperimentResult

METRICS = {"ECE": -1, "EEFP": 1, "NLL": -1, "AUGRC": -1}  # sign: 1 where higher is better
LEVEL = 0.95


def metric_validity(results: Sequence[ExperimentResult]) -> Section:
    """Rank correlation over methods of each metric with the accuracy at each budget."""
    return Section(
        "Which metric identifies the better method?",
        note="Within each network: Spearman's rank correlation, over methods, between a metric "
        "(mean over all exits but the last) and the accuracy at a budget. The sign is flipped "
        "where lower is better: +1 means that the metric ranks the methods as their accuracy "
        "does, and -1 the opposite. NLL depends on the answers alone, which correction does "
        "not change.",
        tables=[_table(result) for result in results],
    )


@dataclass(frozen=True)
class _Measured:
    """Metrics `[4]` and accuracies `[B]` of one method, and resampled: `[R, 4]`, `[R, B]`."""

    metrics: Floats
    accuracies: Floats
    resampled_metrics: Floats
    resampled_accuracies: Floats


def _table(result: ExperimentResult) -> ResultTable:
    test = result.ledgers["test"]
    budgets = result.comparison.budgets
    draws = Resamples(len(test), int(result.comparison.setting["resamples"]))
    methods = []
    with showing(result.context.shown) as progress:
        for number, method in enumerate(result.methods):
            progress.step(number, len(result.methods), method.label)
            methods.append(_measure(result, number, draws))
    rows = []
    for place, name in enumerate(METRICS):
        found = [_correlation(methods, place, budget) for budget in range(len(budgets))]
        rows.append(cells(name, *found))
    names = ", ".join(method.label for method in result.methods)
    seeds = result.comparison.setting["seeds"]
    return ResultTable(
        f"{result.experiment.name}-validity",
        f"{result.experiment.title}: rank correlation with accuracy over {len(methods)} methods",
        ["metric", *(f"{budget:.0%}" for budget in budgets)],
        rows,
        f"With {LEVEL:.0%} percentile intervals over resamples of the {len(test):,} test samples "
        f"(methods and thresholds fixed, means over {seeds} seeds); bold: the interval "
        f"excludes zero. Methods: {names}.",
    )


def _measure(result: ExperimentResult, number: int, draws: Resamples) -> _Measured:
    middle = result.comparison.budgets[len(result.comparison.budgets) // 2]
    plans = result.plans(result.methods[number].name)
    runs = [_measure_policy(result, plan[middle], draws) for plan in plans]
    means = {
        each.name: np.mean([getattr(run, each.name) for run in runs], axis=0)
        for each in fields(_Measured)
    }
    return _Measured(**means)


def _measure_policy(result: ExperimentResult, policy: Policy, draws: Resamples) -> _Measured:
    test = result.ledgers["test"]
    replay = policy.replay(test)
    exits = exit_metrics(replay, policy.scorer)
    budgets = result.comparison.budgets
    wanted = torch.tensor(budgets, dtype=torch.float64)
    metrics = [_mean(values) for values in (exits.ece, exits.eefp, exits.nll, exits.augrc)]
    calibration = draws.ece(replay, policy.scorer)
    unknown = torch.full((len(draws.weights),), torch.nan)
    resampled = [
        unknown if calibration is None else calibration,
        draws.eefp(replay),
        draws.means(replay.losses[:, :-1]).mean(dim=1),
        _resampled_augrc(replay, draws),
    ]
    return _Measured(
        np.array(metrics),
        np.array([replay.curve.at(budget).accuracy for budget in budgets]),
        torch.stack([each.double() for each in resampled], dim=1).numpy(),
        draws.accuracies(replay, wanted).numpy(),
    )


def _mean(values: Floats) -> float:
    known = values[:-1][~np.isnan(values[:-1])]
    return float(known.mean()) if len(known) else float("nan")


def _resampled_augrc(replay: Replay, draws: Resamples) -> Tensor:
    """Mean over all exits but the last, `[R]`.

    AUGRC is (1 - AUROC) a (1 - a) + (1 - a)^2 / 2 for an accuracy a (Traub et al. 2024); the
    AUROC is resampled to first order, as in `Resamples.eefp`.
    """
    last = replay.scores.shape[1] - 1
    correct = replay.correct[:, :last]
    accuracy = draws.means(correct.float()).double()  # [R, M-1]
    columns = []
    for exit_index in range(last):
        right = correct[:, exit_index]
        if not 0 < float(right.float().mean()) < 1:
            columns.append(torch.zeros(len(accuracy), dtype=torch.float64))
            continue
        area, shares = auroc_shares(replay.scores[:, exit_index].numpy(), right.numpy())
        columns.append(area + draws.means(torch.from_numpy(shares)[:, None])[:, 0].double())
    area_by_exit = torch.stack(columns, dim=1)
    wrong = 1 - accuracy
    return ((1 - area_by_exit) * accuracy * wrong + wrong**2 / 2).mean(dim=1)


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
    resampled = spearman(
        sign * np.stack([each.resampled_metrics[:, metric] for each in rated], axis=1),
        np.stack([each.resampled_accuracies[:, budget] for each in rated], axis=1),
    )
    if np.isnan(value):
        return Cell("-")
    tail = (1 - LEVEL) / 2
    low, high = np.nanquantile(resampled, [tail, 1 - tail])
    return Cell(f"{value:+.2f} [{low:+.2f}, {high:+.2f}]", bold=bool(low > 0 or high < 0))


def spearman(first: Floats, second: Floats) -> Floats:
    """Rank correlations of the rows of two arrays `[R, P]`: `[R]`; NaN where all are tied."""
    ranks = [scipy.stats.rankdata(values, axis=1) for values in (first, second)]
    centred = [values - values.mean(axis=1, keepdims=True) for values in ranks]
    product = (centred[0] * centred[1]).sum(axis=1)
    norms = np.sqrt((centred[0] ** 2).sum(axis=1) * (centred[1] ** 2).sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(product / norms)
