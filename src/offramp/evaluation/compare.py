"""`compare`: many methods on the same ledgers, fitted, tuned and measured alike."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offramp.errors import ConfigError
from offramp.evaluation.bootstrap import Interval, Resamples, interval_of
from offramp.evaluation.comparison import (
    PAIR_MIX,
    RIVALS,
    Comparison,
    Figure,
    MethodResult,
    accuracy_key,
)
from offramp.evaluation.diagnostics import diagnose
from offramp.evaluation.outcome import exit_metrics
from offramp.evaluation.pairs import PairEnvelope, pair_envelope
from offramp.evaluation.references import references
from offramp.ledger import Ledger
from offramp.methods import Fits, Method, Plan, find_methods
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

    Example:
        >>> from offramp import synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=500)
        >>> table = compare(**splits, methods=["baseline", "margin"])
        >>> print(table)
        method      25%    50%    75%    ECE   EEFP
        Baseline  31.46  69.83  78.40  0.326  0.775
        Margin    32.14  70.36  78.40      -  0.789
        - its score is no probability
    """
    for name, ledger in (("held_out", held_out), ("val", val), ("test", test)):
        Ledger.require(name, ledger)
    chosen = find_methods(methods, held_out.num_classes, held_out.kind)
    _check(budgets, seeds, resamples)
    draws, fits = Resamples(len(test), resamples, groups=test.group_numbers), Fits()
    results, resampled, plans = [], {}, {}
    with showing(progress) as shown:
        for number, method in enumerate(chosen):
            shown.step(number, len(chosen), method.label)
            start = time.perf_counter()
            plans[method.name] = method.plans(held_out, val, budgets, seeds, fits)
            result, resampled[method.name] = _measure(method, plans[method.name], test, draws)
            result.seconds = time.perf_counter() - start
            results.append(result)
        shown.step(len(chosen), len(chosen), "done")
    setting = _setting(held_out, val, test, seeds, resamples)
    comparison = Comparison(
        tuple(budgets), results, references(val, test, budgets), setting, plans
    )
    _mark_best(comparison, resampled)
    if test.cost_model.is_cascade:
        known = [ledger for ledger in (held_out, val) if ledger.has_labels]
        _set_beside_pairs(comparison, pair_envelope(known, test), draws, resampled)
    return comparison


def _measure(
    method: Method, plans: Sequence[Plan], test: Ledger, draws: Resamples
) -> tuple[MethodResult, dict[str, Tensor]]:
    """A method's figures over all its plans, and their resampled values `[R]` by column."""
    runs = [_Run(plan, test, draws) for plan in plans]
    figures = {column: _figure([run.values[column] for run in runs]) for column in runs[0].values}
    # No scorer runs at the last exit, and no seed plays a part in it.
    figures["ece_last"] = Figure(float(runs[0].exits.ece[-1]))
    for budget in plans[0]:
        reached = float(np.mean([run.costs[budget] for run in runs]))
        if abs(reached - budget) > 1e-9:
            figures[accuracy_key(budget)].cost = reached
    resampled = {
        column: torch.stack([run.resampled[column] for run in runs]).mean(dim=0)
        for column in runs[0].resampled
    }
    first, count = runs[0], test.num_exits
    result = MethodResult(
        method.name,
        method.label,
        {**method.describe(), **plans[0].describe()},
        figures,
        [run.exits.among(run.kept, count) for run in runs],
        [run.replay.curve for run in runs],
        diagnose(first.policy, first.replay).among(first.kept, count),
    )
    return result, resampled


class _Run:
    """One plan on test: accuracies at every budget, the rest at the middle one."""

    def __init__(self, plan: Plan, test: Ledger, draws: Resamples) -> None:
        budgets, known, test = list(plan), test.exits, plan.view(test)
        # Policies that share their operating points differ in the chosen one alone.
        policies = {id(policy.points): policy for policy in plan.values()}
        replays = {key: policy.replay(test) for key, policy in policies.items()}
        wanted = torch.tensor(budgets, dtype=torch.float64)
        accuracies = {key: draws.accuracies(each, wanted) for key, each in replays.items()}
        self.policy = plan[budgets[len(budgets) // 2]]
        self.kept = [known.index(number) for number in self.policy.exits]
        self.replay = replays[id(self.policy.points)]
        self.exits = exit_metrics(self.replay, self.policy.scorer)
        self.values, self.costs, self.resampled = {}, {}, {}  # by column, budget, column [R]
        for number, budget in enumerate(budgets):
            key, column = id(plan[budget].points), accuracy_key(budget)
            self.values[column], self.costs[budget] = replays[key].curve.at(budget)
            self.resampled[column] = accuracies[key][:, number]
        self.values |= {"ece": _mean(self.exits.ece[:-1]), "eefp": _mean(self.exits.eefp[:-1])}
        self.resampled["eefp"] = draws.eefp(self.replay)
        calibration = draws.ece(self.replay, self.policy.scorer)
        if calibration is not None:
            self.resampled["ece"] = calibration


def _figure(values: Sequence[float]) -> Figure:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Figure(float(np.mean(values)), spread)


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _mark_best(comparison: Comparison, resampled: dict[str, dict[str, Tensor]]) -> None:
    """Set the differences to the rivals, and mark all that cannot be told from the best."""

    def versus(one: MethodResult, other: MethodResult, column: str) -> Interval | None:
        first, second = resampled[one.name].get(column), resampled[other.name].get(column)
        if first is None or second is None:
            return None
        gap = one.figures[column].value - other.figures[column].value
        return interval_of(column, gap, first - second, comparison.setting["units"])

    by_name = {method.name: method for method in comparison.methods}
    for column in comparison.columns:
        sign = -1 if column == "ece" else 1
        rated = [m for m in comparison.methods if not np.isnan(m.figures[column].value)]
        best = max(rated, key=lambda m: sign * m.figures[column].value, default=None)
        for method in rated:
            assert best is not None
            gap = versus(method, best, column)
            method.figures[column].among_best = method is best or not (gap and gap.is_clear)
            for rival in RIVALS:
                if rival in by_name and rival != method.name:
                    found = versus(method, by_name[rival], column)
                    if found is not None:
                        method.differences.setdefault(rival, {})[column] = found


def _set_beside_pairs(
    comparison: Comparison,
    envelope: PairEnvelope,
    draws: Resamples,
    resampled: dict[str, dict[str, Tensor]],
) -> None:
    """Add what cascades of two models reach, and the differences to it."""
    wanted = torch.tensor(comparison.budgets, dtype=torch.float64)
    moved = draws.curves(envelope.costs, envelope.right, wanted)
    mixes = [envelope.at(budget) for budget in comparison.budgets]
    comparison.references = replace(comparison.references, pair_mixes=mixes)
    for method in comparison.methods:
        found = method.differences.setdefault(PAIR_MIX, {})
        for number, (budget, mix) in enumerate(zip(comparison.budgets, mixes, strict=True)):
            column = accuracy_key(budget)
            gap = method.figures[column].value - mix.accuracy
            gaps = resampled[method.name][column] - moved[:, number]
            found[column] = interval_of(column, gap, gaps, comparison.setting["units"])


def _check(budgets: Sequence[float], seeds: int, resamples: int) -> None:
    if isinstance(budgets, int | float | str):
        raise ConfigError(f"`budgets` must be a list of shares, such as [0.5], got {budgets!r}")
    for budget in budgets:
        if not 0 < budget <= 1:
            raise ConfigError(f"`budgets` must lie in (0, 1], got {budget}")
    if not budgets:
        raise ConfigError("`budgets` must name at least one budget")
    if len(set(budgets)) < len(budgets):
        raise ConfigError(f"`budgets` must be distinct, got {list(budgets)}")
    if seeds < 1 or resamples < 2:
        raise ConfigError(
            f"`seeds` must be at least 1 and `resamples` at least 2, got {seeds} and {resamples}"
        )


def _setting(
    held_out: Ledger, val: Ledger, test: Ledger, seeds: int, resamples: int
) -> dict[str, Any]:
    return {
        "samples": {ledger.split: len(ledger) for ledger in (held_out, val, test)},
        "units": test.num_units,  # what intervals count: groups of samples, or samples
        "exits": test.num_exits,
        "classes": test.num_classes,
        "kind": test.kind,
        "unit": test.unit,
        "costs": test.cost_model.to_json(),
        "network": test.network,
        "data_fingerprints": {x.split: x.data_fingerprint for x in (held_out, val, test)},
        "seeds": seeds,
        "resamples": resamples,
    }
