"""Many methods on the same ledgers: the paper's table, with spreads and intervals."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from offramp.answers import Answer
from offramp.errors import ConfigError, FileFormatError
from offramp.evaluation.bootstrap import Interval, Resamples, difference
from offramp.evaluation.contestant import Choice, Contestant, MethodEntry
from offramp.evaluation.curve import Curve, curve_of
from offramp.evaluation.diagnostics import Diagnostics, diagnose
from offramp.evaluation.outcome import ExitMetrics, exit_metrics
from offramp.evaluation.references import References, references
from offramp.ledger import Ledger
from offramp.methods import Method, find_methods
from offramp.policy import Policy
from offramp.replay import Trace
from offramp.scorers import Scorer
from offramp.storage import plain, restore

Progress = Callable[[int, int, str], None]
"""Called with the methods done, the methods in all, and what is being done."""

RIVALS = ("baseline", "temperature")


def accuracy_key(budget: float) -> str:
    """Name of the column for the accuracy at a budget."""
    return f"accuracy@{budget:g}"


@dataclass
class Figure:
    """One number of a table.

    Attributes:
        value: Mean over seeds.
        spread: Standard deviation over seeds; None where the fit is not random.
        cost: For an accuracy at a budget that the method does not reach: the nearest cost.
        among_best: Whether it cannot be told from the best method's.
    """

    value: float
    spread: float | None = None
    cost: float | None = None
    among_best: bool = False


@dataclass
class MethodResult:
    """What one method reached.

    Attributes:
        name: Of the method, for the command line and for files.
        label: Of the method, for tables.
        settings: Of its answer, scorer and thresholds.
        figures: By column: `accuracy@0.5` for a budget, `ece`, `eefp` (means over all exits but
            the last), and `ece_last`.
        differences: By rival (`baseline`, `temperature`) and column.
        exits: Per-exit scores, one entry per seed.
        curves: Budget curve, one entry per seed.
        diagnostics: Of the first seed.
        seconds: Time to fit, tune and measure all seeds; methods that differ in their thresholds
            only are fitted once, which counts for the first.
    """

    name: str
    label: str
    settings: dict[str, Any]
    figures: dict[str, Figure]
    exits: list[ExitMetrics]
    curves: list[Curve]
    diagnostics: Diagnostics
    seconds: float
    differences: dict[str, dict[str, Interval]] = field(default_factory=dict)

    def accuracy(self, budget: float) -> float:
        """Mean over seeds of the accuracy at one of the budgets that were compared.

        Raises:
            ConfigError: It was not compared at this budget.
        """
        key = accuracy_key(budget)
        if key not in self.figures:
            known = [name.partition("@")[2] for name in self.figures if "@" in name]
            raise ConfigError(
                f"{self.name} was not compared at a budget of {budget:g}, but at "
                f"{', '.join(known)}; name it in compare(budgets=...)"
            )
        return self.figures[key].value


@dataclass
class Comparison:
    """The result of `compare`.

    Attributes:
        budgets: As asked for.
        methods: In the order asked for.
        references: Fixed exits, the full network and the oracle.
        setting: What was compared: sizes, seeds, origin.
    """

    budgets: tuple[float, ...]
    methods: list[MethodResult]
    references: References
    setting: dict[str, Any]

    def __getitem__(self, name: str) -> MethodResult:
        """The result of the method with this name."""
        for method in self.methods:
            if method.name == name:
                return method
        raise KeyError(
            f"{name!r} was not compared; compared were "
            f"{', '.join(method.name for method in self.methods)}"
        )

    def __str__(self) -> str:
        """The main table, as plain text; `offramp.report.tables` has all of them."""
        heads = ["method", *(f"{budget:.0%}" for budget in self.budgets), "ECE", "EEFP"]
        rows = [heads]
        for method in self.methods:
            values = [method.figures[column].value for column in self.columns]
            split = len(self.budgets)
            accuracies = [
                f"{100 * value:.2f}" + ("" if method.figures[column].cost is None else "*")
                for column, value in zip(self.columns, values[:split], strict=False)
            ]
            others = ["-" if np.isnan(value) else f"{value:.3f}" for value in values[split:]]
            rows.append([method.label, *accuracies, *others])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        notes = ["* at the nearest cost"] * any("*" in text for row in rows for text in row)
        notes += ["- its score is no probability"] * any("-" in row for row in rows)
        table = "\n".join(
            "  ".join(
                text.rjust(width) if place else text.ljust(width)
                for place, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )
        return "\n".join([table, *notes])

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are compared."""
        return [*(accuracy_key(budget) for budget in self.budgets), "ece", "eefp"]

    def closed_gap(self, name: str, budget: float) -> float:
        """Share of the gap between baseline and oracle that a method closes; NaN without a gap.

        Args:
            name: Of the method; the baseline must have been compared too.
            budget: One of `budgets`.
        """
        key, oracle = accuracy_key(budget), self.references.oracle[self.budgets.index(budget)]
        ours, below = (self[each].figures[key].value for each in (name, "baseline"))
        possible = oracle.accuracy - below
        return (ours - below) / possible if possible > 0 else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file; NaN becomes None, infinities become text."""
        result: dict[str, Any] = plain(asdict(self))
        return result

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The comparison of which `to_json` made these values.

        Raises:
            FileFormatError: Something is missing, or is not what it should be.
        """
        try:
            result: Self = restore(cls, values)
        except KeyError as error:
            raise FileFormatError(
                f"this is not a complete comparison: {error} is missing; it may have been "
                "written by another version, so compare again"
            ) from None
        except (AttributeError, TypeError, ValueError) as error:
            raise FileFormatError(f"this is not a comparison: {error}") from None
        return result


def compare(
    held_out: Ledger,
    val: Ledger,
    test: Ledger,
    methods: Sequence[str | Method | Contestant] = ("standard",),
    budgets: Sequence[float] = (0.25, 0.5, 0.75),
    seeds: int = 3,
    resamples: int = 1000,
    progress: Progress | None = None,
) -> Comparison:
    """Fit every method on held_out, choose its thresholds on val, and measure it on test.

    Args:
        held_out: To fit answers and scorers.
        val: To choose thresholds.
        test: To measure.
        methods: Names of methods or groups (see `offramp.methods`), own `Method`s, or what comes
            to its policies in another way, such as `offramp.advice.Auto()`.
        budgets: Mean costs as shares of the network without exits.
        seeds: How many seeds for methods whose fit is random.
        resamples: Bootstrap resamples of the test samples, the same for every method.
        progress: Called before each method and at the end.

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
    chosen = _entries(methods, held_out.num_classes)
    _check(budgets, seeds, resamples)
    bench = _Bench(held_out, val, test, tuple(budgets), seeds, Resamples(len(test), resamples))
    results = []
    for number, method in enumerate(chosen):
        if progress is not None:
            progress(number, len(chosen), method.label)
        results.append(bench.run(method))
    if progress is not None:
        progress(len(chosen), len(chosen), "done")
    setting = _setting(held_out, val, test, seeds, resamples)
    comparison = Comparison(
        tuple(budgets), [result for result, _ in results], references(val, test, budgets), setting
    )
    _mark_best(comparison, {result.name: resampled for result, resampled in results})
    return comparison


@dataclass(frozen=True)
class _Bench:
    """Where every method is treated alike."""

    held_out: Ledger
    val: Ledger
    test: Ledger
    budgets: tuple[float, ...]
    seeds: int
    resamples: Resamples

    def run(self, method: Contestant) -> tuple[MethodResult, dict[str, Tensor]]:
        """The method's figures, and their resampled values `[R]` by column."""
        start = time.perf_counter()
        choices = method.choose(self.held_out, self.val, self.budgets, self.seeds)
        runs = [self._measure(choice) for choice in choices]
        figures = {
            column: _figure([run.values[column] for run in runs]) for column in runs[0].values
        }
        # No scorer runs at the last exit, so that no seed plays a part in it.
        figures["ece_last"] = Figure(float(runs[0].exits.ece[-1]))
        for budget in self.budgets:
            reached = float(np.mean([run.costs[budget] for run in runs]))
            if abs(reached - budget) > 1e-9:
                figures[accuracy_key(budget)].cost = reached
        resampled = {
            column: torch.stack([run.resampled[column] for run in runs]).mean(dim=0)
            for column in runs[0].resampled
        }
        result = MethodResult(
            method.name,
            method.label,
            method.describe(),
            figures,
            [run.exits for run in runs],
            [run.curve for run in runs],
            runs[0].diagnostics,
            time.perf_counter() - start,
        )
        return result, resampled

    def _measure(self, choice: Choice) -> "_Run":
        """Accuracies of the policy for each budget; the rest of that for the middle one."""
        test = choice.view(self.test)
        middle = choice[self.budgets[len(self.budgets) // 2]]
        policies = {id(choice[budget].points): choice[budget] for budget in self.budgets}
        looks = {key: self._look(policy, test) for key, policy in policies.items()}
        main = looks[id(middle.points)]
        exits = exit_metrics(main.trace, middle.scorer)
        values, costs, resampled = {}, {}, {}
        for number, budget in enumerate(self.budgets):
            look = looks[id(choice[budget].points)]
            values[accuracy_key(budget)], costs[budget] = look.curve.at(budget)
            resampled[accuracy_key(budget)] = look.accuracies[:, number]
        values |= {"ece": _mean(exits.ece[:-1]), "eefp": _mean(exits.eefp[:-1])}
        resampled["eefp"] = self.resamples.eefp(main.trace)
        calibration = self.resamples.ece(main.trace, middle.scorer)
        if calibration is not None:
            resampled["ece"] = calibration
        looked_into = diagnose(middle, main.trace, main.curve, main.costs)
        return _Run(values, costs, resampled, exits, main.curve, looked_into)

    def _look(self, policy: Policy, test: Ledger) -> "_Look":
        trace = policy.trace(test, "test")
        costs = policy.costs(test) / test.reference_cost
        thresholds, budgets = policy.points.thresholds, torch.tensor(self.budgets).double()
        return _Look(
            trace,
            costs,
            curve_of(trace, thresholds, costs),
            self.resamples.accuracies(trace, thresholds, costs, budgets),
        )


@dataclass(frozen=True)
class _Look:
    """One policy on test; accuracies are resampled, `[R, B]`."""

    trace: Trace
    costs: Tensor
    curve: Curve
    accuracies: Tensor


@dataclass(frozen=True)
class _Run:
    values: dict[str, float]
    costs: dict[float, float]
    resampled: dict[str, Tensor]
    exits: ExitMetrics
    curve: Curve
    diagnostics: Diagnostics


def _entries(methods: Sequence[str | Method | Contestant], classes: int) -> list[Contestant]:
    """Everything that takes part, in the order asked for; methods each once."""
    entries: dict[str, Contestant] = {}
    fits: dict[Any, list[Policy]] = {}
    for method in [methods] if isinstance(methods, str) else methods:
        if isinstance(method, Scorer | Answer):
            raise ConfigError(
                f"a {type(method).__name__} takes part as a method, which has a name and a label: "
                f'offramp.Method("mine", "Mine", {type(method).__name__}(...))'
            )
        if isinstance(method, str | Method):
            for found in find_methods([method], classes):
                if isinstance(method, Method) and found.name in entries:
                    raise ConfigError(f"two methods are called {found.name!r}; rename one of them")
                entries.setdefault(found.name, MethodEntry(found, fits))
        else:
            entries[method.name] = method
    if not entries:
        raise ConfigError("no method was asked for")
    return list(entries.values())


def _figure(values: Sequence[float]) -> Figure:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Figure(float(np.mean(values)), spread)


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _mark_best(comparison: Comparison, resampled: dict[str, dict[str, Tensor]]) -> None:
    """Set the differences to the rivals, and mark all that cannot be told from the best."""

    def versus(one: MethodResult, other: MethodResult, column: str) -> Interval | None:
        ours, theirs = resampled[one.name].get(column), resampled[other.name].get(column)
        if ours is None or theirs is None:
            return None
        gap = one.figures[column].value - other.figures[column].value
        # Half of the last digit that tables show.
        negligible = 5e-5 if column.startswith("accuracy") else 5e-4
        return difference(gap, ours - theirs, negligible=negligible)

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
        "exits": test.num_exits,
        "classes": test.num_classes,
        "unit": test.unit,
        "costs": test.cost_model.to_json(),
        "network": test.network,
        "data_fingerprints": {x.split: x.data_fingerprint for x in (held_out, val, test)},
        "seeds": seeds,
        "resamples": resamples,
    }
