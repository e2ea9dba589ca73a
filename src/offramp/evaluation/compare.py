"""`compare`: many methods on the same ledgers, fitted, tuned and measured alike."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from offramp import check
from offramp.arrays import Array
from offramp.errors import MissingExtraError
from offramp.evaluation.bootstrap import Resamples
from offramp.evaluation.columns import (
    Column,
    MeasuredPlan,
    accuracy_column,
    accuracy_key,
    columns_for,
)
from offramp.evaluation.diagnostics import diagnose
from offramp.evaluation.pairs import PairEnvelope, pair_envelope
from offramp.evaluation.references import mix_at, references
from offramp.evaluation.results import (
    FIXED,
    PAIR_MIX,
    RIVALS,
    Comparison,
    Figure,
    MethodResult,
)
from offramp.evaluation.worse_exits import worse_exits_in_words
from offramp.ledger import Ledger
from offramp.ledger.oddities import warn_of_classes
from offramp.methods import Fits, Method, find_methods
from offramp.plan import Plan, check_shares
from offramp.progress import Progress, showing


def compare(
    held_out: Ledger,
    val: Ledger,
    test: Ledger,
    methods: str | Sequence[str | Method] = ("standard",),
    budgets: Sequence[float] = (0.25, 0.5, 0.75),
    seeds: int = 3,
    resamples: int = 1000,
    progress: bool | Progress = True,
) -> Comparison:
    """Fit every method on held_out, choose its thresholds on val, and measure it on test.

    Args:
        held_out: To fit answers and scorers.
        val: To choose thresholds.
        test: To measure.
        methods: Names of methods or groups (see `offramp.methods`), or `Method`s of your own.
        budgets: Mean costs as shares of the network without exits.
        seeds: How many seeds for methods whose fit is random.
        resamples: Bootstrap resamples of the test samples, the same for every method.
        progress: Whether progress is shown, on stderr; or an `offramp.progress.Progress`.

    Warns:
        LedgerWarning: A split lacks classes that the others have.

    Example:
        >>> from offramp import synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=500)
        >>> table = compare(**splits, methods=["baseline", "margin"])
        >>> print(table)  # first a verdict
        Early exits are worth it here: at 50% of the cost, Baseline (geometric thresholds), ...
        <BLANKLINE>
        method    thresholds    25%    50%     75%    ECE   EEFP
        Baseline  geometric   37.97  69.31  77.00*  0.332  0.791
        Margin    geometric   39.41  68.80  76.80*      -  0.803
        * at the nearest cost
        - its score is no probability
    """
    for name, ledger in (("held_out", held_out), ("val", val), ("test", test)):
        Ledger.require(name, ledger)
    warn_of_classes(held_out, val, test)
    chosen, left_out = _fittable(
        find_methods(methods, held_out.num_classes, held_out.history_type), methods
    )
    check_shares(budgets)
    check.whole("seeds", seeds, least=1)
    check.whole("resamples", resamples, least=2)
    draws, fits = Resamples(len(test), resamples, groups=test.group_numbers), Fits()
    results, resampled, plans = [], {}, {}
    with showing(progress) as shown:
        if left_out:
            shown.say(f"note: {', '.join(left_out)} cannot be fitted without torch: left out")
        for number, method in enumerate(chosen):
            shown.step(number, len(chosen), method.label)
            start = time.perf_counter()
            plans[method.name] = method.plans(held_out, val, budgets, seeds, fits)
            runs = [MeasuredPlan(plan, test, draws) for plan in plans[method.name]]
            result = _measured(method, plans[method.name], runs, test.num_exits)
            resampled[method.name] = _resampled(columns_for(budgets), runs)
            result.seconds = time.perf_counter() - start
            results.append(result)
        shown.step(len(chosen), len(chosen), "done")
    setting = _setting(held_out, val, test, seeds, resamples)
    comparison = Comparison(
        tuple(budgets),
        results,
        references(val, test, budgets),
        setting,
        worse_exits_in_words(val),
        plans,
    )
    _set_differences(comparison, resampled)
    _add_fixed(comparison, val, test, draws, resampled)
    if test.cost_model.is_cascade:
        known = [ledger for ledger in (held_out, val) if ledger.has_labels]
        _add_pairs(comparison, pair_envelope(known, test), draws, resampled)
    return comparison


def _fittable(
    methods: Sequence[Method], named: str | Sequence[str | Method]
) -> tuple[list[Method], list[str]]:
    """The methods that can be fitted here, and the names of the others.

    Raises:
        MissingExtraError: One of the others was asked for by its own name, or all are others.
    """
    own = {named} if isinstance(named, str) else {getattr(each, "name", each) for each in named}
    fittable: list[Method] = []
    left_out: list[str] = []
    for method in methods:
        try:
            method.scorer.check_can_fit()
            fittable.append(method)
        except MissingExtraError:
            if method.name in own or len(left_out) == len(methods) - 1:
                raise
            left_out.append(method.name)
    return fittable, left_out


def _measured(
    method: Method, plans: Sequence[Plan], runs: Sequence[MeasuredPlan], count: int
) -> MethodResult:
    """A method's figures over all its plans, among all exits of the network."""
    first, budgets = runs[0], list(plans[0])
    figures = {column.key: _figure(column, runs) for column in columns_for(budgets)}
    for budget in budgets:
        reached = float(np.mean([run.at(budget).cost for run in runs]))
        if abs(reached - budget) > 1e-9:
            figures[accuracy_key(budget)].cost = reached
    return MethodResult(
        method.name,
        method.label,
        {**method.describe(), **plans[0].describe()},
        figures,
        [run.exits.among(run.kept, count) for run in runs],
        [run.replay.curve for run in runs],
        diagnose(first.policy, first.replay).among(first.kept, count),
    )


def _figure(column: Column, runs: Sequence[MeasuredPlan]) -> Figure:
    """The mean over seeds, with its spread where there are several."""
    values = [column.measure(run) for run in (runs if column.varies else runs[:1])]
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Figure(float(np.mean(values)), spread)


def _resampled(columns: Sequence[Column], runs: Sequence[MeasuredPlan]) -> dict[str, Array]:
    """Means over seeds in every resample, `[R]`, by key; not of what a method does not have."""
    found = {}
    for column in columns:
        if column.resample is not None:
            values = [drawn for run in runs if (drawn := column.resample(run)) is not None]
            if values:
                found[column.key] = np.mean(values, axis=0)
    return found


def _set_differences(comparison: Comparison, resampled: dict[str, dict[str, Array]]) -> None:
    """Set the differences to the rivals, and mark all methods that may be as good as the best."""
    for column in comparison.compared:
        key, units = column.key, comparison.setting["units"]
        values = {m.name: m.figures[key].value for m in comparison.methods}
        rated = [m for m in comparison.methods if not np.isnan(values[m.name])]
        if not rated:
            continue
        best = max(rated, key=lambda method: column.sign * values[method.name])
        for method in rated:
            gaps = {
                other.name: column.interval(
                    values[method.name] - values[other.name],
                    resampled[method.name][key] - resampled[other.name][key],
                    units,
                )
                for other in rated
                if other is not method and (other is best or other.name in RIVALS)
            }
            method.figures[key].among_best = method is best or not gaps[best.name].is_clear
            for rival in RIVALS:
                if rival in gaps:
                    method.differences.setdefault(rival, {})[key] = gaps[rival]


def _add_fixed(
    comparison: Comparison,
    val: Ledger,
    test: Ledger,
    draws: Resamples,
    resampled: dict[str, dict[str, Array]],
) -> None:
    """Add the differences to what answers at fixed exits, at the cost of each method."""
    found, val_accuracy = comparison.references, val.heads_correct.mean(axis=0)
    right = draws.means(test.heads_correct)  # [R, M]
    for method in comparison.methods:
        for budget, best in zip(comparison.budgets, found.best_fixed, strict=True):
            column = accuracy_column(budget)
            figure = method.figures[column.key]
            mix = mix_at(found.fixed, val_accuracy, budget if figure.cost is None else figure.cost)
            first, second = (right[:, index] for index in mix.exits)
            rivals = (
                (mix.accuracy, first + mix.share * (second - first)),
                (best.accuracy, right[:, best.exit_index]),
                (found.full.accuracy, right[:, -1]),
            )
            for name, (accuracy, moved) in zip(FIXED, rivals, strict=True):
                method.differences.setdefault(name, {})[column.key] = column.interval(
                    figure.value - accuracy,
                    resampled[method.name][column.key] - moved,
                    comparison.setting["units"],
                )


def _add_pairs(
    comparison: Comparison,
    envelope: PairEnvelope,
    draws: Resamples,
    resampled: dict[str, dict[str, Array]],
) -> None:
    """Add what cascades of two models reach, and the differences to it."""
    moved = draws.curves(envelope.costs, envelope.right, comparison.budgets)
    mixes = [envelope.at(budget) for budget in comparison.budgets]
    comparison.references = replace(comparison.references, pair_mixes=mixes)
    for method in comparison.methods:
        found = method.differences.setdefault(PAIR_MIX, {})
        for number, (budget, mix) in enumerate(zip(comparison.budgets, mixes, strict=True)):
            column = accuracy_column(budget)
            gap = method.figures[column.key].value - mix.accuracy
            gaps = resampled[method.name][column.key] - moved[:, number]
            found[column.key] = column.interval(gap, gaps, comparison.setting["units"])


def _setting(
    held_out: Ledger, val: Ledger, test: Ledger, seeds: int, resamples: int
) -> dict[str, Any]:
    return {
        "samples": {ledger.split: len(ledger) for ledger in (held_out, val, test)},
        "units": test.num_units,  # what intervals count: groups of samples, or samples
        "exits": test.num_exits,
        "classes": test.num_classes,
        "kind": test.history_type.name,
        "unit": test.unit,
        "costs": test.cost_model.to_json(),
        "network": test.network,
        "data_fingerprints": {x.split: x.data_fingerprint for x in (held_out, val, test)},
        "seeds": seeds,
        "resamples": resamples,
    }
