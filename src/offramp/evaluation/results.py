"""What a comparison of methods found: figures with spreads, intervals, curves, diagnostics."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, TypedDict

from offramp.errors import ConfigError, FileFormatError
from offramp.evaluation.bootstrap import Interval
from offramp.evaluation.columns import Column, accuracy_key, columns_for, text_table
from offramp.evaluation.diagnostics import Diagnostics
from offramp.evaluation.outcome import ExitMetrics
from offramp.evaluation.references import References
from offramp.evaluation.words import CASCADE, NETWORK, STAGES, Words
from offramp.files import Number, plain, restore
from offramp.imports import require
from offramp.ledger.history import HISTORIES, History
from offramp.plan import Plan
from offramp.replay import Curve

RIVALS = ("baseline", "temperature")
"""Methods that every other one is compared with, where they take part."""

PAIR_MIX = "pair-mix"
"""What methods for cascades are compared with too: the best mix of cascades of two models."""

FIXED_MIX, BEST_FIXED, FULL = FIXED = ("fixed-mix", "best-fixed-exit", "full-network")
"""What needs no look at any sample, with which every method is compared."""

SMALL_GAIN = 0.005
"""A gain below which shares of it are not stated."""


@dataclass
class Figure:
    """One number of a table."""

    value: Number  # mean over seeds
    spread: float | None = None  # standard deviation over seeds; None where the fit is not random
    # for an accuracy at a budget that the method does not reach: the nearest cost
    cost: float | None = None
    among_best: bool = False  # whether its difference to the best method's includes zero


@dataclass
class MethodResult:
    """What one method reached."""

    name: str  # of the method, for the command line and for files
    label: str  # of the method, for tables
    settings: dict[str, Any]  # of its answer, scorer and thresholds
    # by the key of a column: `accuracy@0.5` for a budget, `ece`, `eefp` (means over all exits but
    # the last), and `ece_last`
    figures: dict[str, Figure]
    exits: list[ExitMetrics]  # per-exit scores, one entry per seed
    curves: list[Curve]  # budget curve, one entry per seed
    diagnostics: Diagnostics  # of the first seed
    # time to fit, tune and measure all seeds; methods that differ in their thresholds only are
    # fitted once, which counts for the first
    seconds: Number = float("nan")
    # by rival (`baseline`, `temperature`, `fixed-mix`, `best-fixed-exit`, `full-network`;
    # `pair-mix` for cascades) and column
    differences: dict[str, dict[str, Interval]] = field(default_factory=dict)

    @property
    def thresholds(self) -> str:
        """How they were chosen, or that the method chooses that too."""
        return str(self.settings.get("thresholds", "chosen"))

    def accuracy(self, budget: float) -> float:
        """Mean over seeds of the accuracy at one of the budgets that were compared."""
        key = accuracy_key(budget)
        if key not in self.figures:
            known = [name.partition("@")[2] for name in self.figures if "@" in name]
            raise ConfigError(
                f"{self.name} was not compared at a budget of {budget:g}, but at "
                f"{', '.join(known)}; name it in compare(budgets=...)"
            )
        return self.figures[key].value


class _Setting(TypedDict):
    """What was compared, as far as reports say it."""

    seeds: int
    exits: int
    classes: int
    samples: dict[str, int]
    unit: str


@dataclass
class Comparison:
    """The result of `compare`.

    Attributes:
        budgets: As asked for.
        methods: In the order asked for.
        references: Fixed exits and their mixes, the full network, what is reachable, the oracle.
        setting: What was compared: sizes, seeds, origin.
        notes: Sentences on exits that are less accurate than exits before them.
        plans: By method, the fitted and tuned policies, one plan per seed. They are not part of
            the JSON form, and so missing where a comparison was read from a file.
    """

    budgets: tuple[float, ...]
    methods: list[MethodResult]
    references: References
    setting: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    plans: dict[str, list[Plan]] = field(default_factory=dict, repr=False, compare=False)

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
        """The verdict and the main table; `offramp.report.tables` has all tables."""
        from offramp.evaluation.verdict import verdict

        rows = [["method", "thresholds", *(column.head for column in self.compared)]]
        for method in self.methods:
            found = [(column, method.figures[column.key]) for column in self.compared]
            marks = ("" if figure.cost is None else "*" for _, figure in found)
            texts = (column.text(figure.value) for column, figure in found)
            cells = map("".join, zip(texts, marks, strict=True))
            rows.append([method.label, method.thresholds, *cells])
        notes = ["* at the nearest cost"] * any("*" in text for row in rows for text in row)
        if self.references.pair_mixes:
            mixes = zip(self.budgets, self.references.pair_mixes, strict=True)
            pairs = (f"{100 * mix.accuracy:.2f} at {mix.cost:.0%}" for _, mix in mixes)
            notes.append(f"pairs of models, mixed: {', '.join(pairs)}")
        notes += ["- its score is no probability"] * any("-" in row for row in rows)
        return "\n".join(
            [self._words.of(verdict(self)), "", text_table(rows, left=2), *notes, *self.notes]
        )

    @property
    def _words(self) -> Words:
        if self.history_type.has_logits:
            return NETWORK
        return CASCADE if self.references.pair_mixes else STAGES

    @property
    def columns(self) -> list[Column]:
        """All columns that were measured, in the order of the tables."""
        known = self.methods[0].figures
        return [column for column in columns_for(self.budgets) if column.key in known]

    @property
    def history_type(self) -> type[History]:
        """How the ledgers that were compared are read."""
        return HISTORIES[self.setting.get("kind", History.name)]

    @property
    def compared(self) -> list[Column]:
        """The columns in which differences have intervals."""
        return [column for column in self.columns if column.resample is not None]

    def reachable_share(self, name: str, budget: float) -> float:
        """Share of the reachable gain over the baseline that a method achieves.

        NaN where less than half a point is reachable: there, shares would be noise.

        Args:
            name: Of the method; the baseline must have been compared too.
            budget: One of `budgets`.
        """
        reachable = self.references.reachable[self.budgets.index(budget)].accuracy
        reached, below = (self[each].accuracy(budget) for each in (name, "baseline"))
        possible = reachable - below
        return (reached - below) / possible if possible > SMALL_GAIN else float("nan")

    def to_pandas(self) -> Any:  # noqa: ANN401 - a DataFrame; pandas is optional
        """One row per method: its label, its thresholds, and the value of every figure.

        Raises:
            MissingExtraError: pandas is not installed; it comes with the extra `report`.
        """
        pandas = require("pandas", extra="report")
        rows = {
            method.name: {
                "label": method.label,
                "thresholds": method.thresholds,
                **{name: figure.value for name, figure in method.figures.items()},
            }
            for method in self.methods
        }
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("method")

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file; NaN becomes None, infinities become text."""
        result: dict[str, Any] = plain(asdict(replace(self, plans={})))
        del result["plans"]
        return result

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The comparison of which `to_json` made these values.

        Raises:
            FileFormatError: Something is missing, or is not what it should be.
        """
        try:
            # The policies are not part of the file.
            result: Self = restore(cls, {**values, "plans": {}})
            restore(_Setting, result.setting, "`setting`")
            exits = result.setting["exits"]
            if not all(0 <= each.exit_index < exits for each in result.references.fixed):
                raise FileFormatError(f"its references have other exits than the {exits}")
        except FileFormatError as error:
            raise FileFormatError(
                f"this is not a complete comparison: {error}; if another version wrote it, "
                "compare again"
            ) from None
        except TypeError:
            raise FileFormatError("this is not a comparison: no JSON object") from None
        return result
