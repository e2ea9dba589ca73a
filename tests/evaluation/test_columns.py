"""A column of a comparison is declared once, and found wherever a comparison is shown."""

import csv
import io
import json
from dataclasses import dataclass

import numpy as np
import pytest
from typer.testing import CliRunner

from offramp import MaxProbability, Method, compare, synthetic
from offramp.cli.app import app
from offramp.evaluation import Comparison
from offramp.evaluation.bootstrap import Resamples
from offramp.evaluation.columns import COLUMNS, Column, MeasuredPlan, accuracy_column
from offramp.report import Section, comparison_tables, write_page
from offramp.report.files import tidy_csv


def spread_of_exits(plan):
    """The largest step of accuracy from exit to exit."""
    return float(np.diff(plan.exits.accuracy).max())


def resampled_spread(plan):
    return np.diff(plan.draws.means(plan.replay.correct), axis=1).max(axis=1)


STEP = Column("step", "Step", spread_of_exits, resampled_spread, sign=-1)


@pytest.fixture(scope="module", autouse=True)
def _declared():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offramp.evaluation.columns.COLUMNS", [*COLUMNS, STEP])
        yield


@pytest.fixture(scope="module")
def table(_declared):
    """A comparison with one column more, which is declared and nothing else."""
    splits = synthetic.ledgers(seed=0, samples=200, exits=4)
    return compare(**splits, methods=["baseline", "vector"], budgets=[0.5], resamples=20)


def test_one_declaration_adds_a_column_to_every_output(table, tmp_path):
    value = table["vector"].figures["step"].value
    gap = table["vector"].differences["baseline"]["step"]
    assert gap.value == value - table["baseline"].figures["step"].value
    assert gap.low < gap.value < gap.high
    _, methods, differences, *_ = comparison_tables(table)
    assert methods.columns[-1] == differences.columns[-1] == "Step"
    assert methods.rows[1][-1].text == f"{value:.3f}"
    assert all(len(row) == len(methods.columns) for row in methods.rows)
    assert differences.rows[0][-1].text.startswith(f"{gap.value:+.3f} [")
    head, *rows = str(table).splitlines()[2:]
    assert head.endswith("   Step")
    assert f"{value:.3f}" in rows[1]
    (row,) = (
        row
        for row in csv.DictReader(io.StringIO(tidy_csv(table)))
        if (row["method"], row["figure"]) == ("vector", "step")
    )
    assert (float(row["value"]), float(row["low_baseline"])) == (value, gap.low)
    assert table.to_pandas().loc["vector", "step"] == value
    again = Comparison.from_json(json.loads(json.dumps(table.to_json())))
    assert again["vector"].figures["step"].value == value
    assert comparison_tables(again) == comparison_tables(table)
    page = write_page(tmp_path / "report.html", "Mine", [Section("A", table)], {}).read_text()
    assert '<th scope="col">Step</th>' in page


def test_the_command_shows_a_column_that_was_declared(table, tmp_path):
    for split, ledger in synthetic.ledgers(seed=0, samples=60, exits=3).items():
        ledger.save(tmp_path / "ledgers" / split)
    call = f"compare {tmp_path}/ledgers --methods baseline --resamples 5 --out {tmp_path}/o --json"
    result = CliRunner().invoke(app, call.split())
    assert result.exit_code == 0, result.output
    assert "step" in json.loads(result.stdout)["figures"]["baseline"]


def test_the_best_of_a_column_is_the_least_where_less_is_better(table):
    values = {method.name: method.figures["step"] for method in table.methods}
    assert min(values.values(), key=lambda figure: figure.value).among_best


def test_a_column_without_resamples_has_a_figure_and_no_interval(table):
    assert "ece_last" in [column.key for column in table.columns]
    assert "ece_last" not in table["vector"].differences["baseline"]
    assert not any(method.figures["ece_last"].among_best for method in table.methods)


def test_a_comparison_without_a_column_is_shown_without_it(table):
    values = json.loads(json.dumps(table.to_json()))
    for method in values["methods"]:
        del method["figures"]["step"]
    assert "Step" not in comparison_tables(Comparison.from_json(values))[1].columns


@pytest.mark.parametrize(
    ("column", "factor", "unseen", "least"),
    [
        (accuracy_column(0.5), 1.0, 2 / 50**2, 5e-5),
        (COLUMNS[0], 1.25, 0, 5e-4),
        (STEP, 1, 0, 5e-4),
    ],
)
def test_the_interval_of_a_column(column, factor, unseen, least):
    resampled = np.linspace(-0.1, 0.1, 21)
    gap = column.interval(0.3, resampled, units=50)
    reach = 1.959964 * (factor**2 * resampled.var(ddof=1) + unseen) ** 0.5
    assert (gap.low, gap.high) == pytest.approx((0.3 - reach, 0.3 + reach))
    nothing = np.zeros(2)
    just, over = (column.interval(side * least, nothing, 10**9) for side in (0.9, 1.1))
    assert (just.is_clear, over.is_clear) == (False, True)


@dataclass
class Reversed(MaxProbability):
    """The confidence with the wrong sign: in every column it must be the worse score."""

    def score_at(self, history):
        return -super().score_at(history)


@pytest.fixture(scope="module")
def measured():
    """A good score and its opposite on test, where each resample is the whole sample."""
    splits = synthetic.ledgers(seed=0, samples=300, exits=4)
    draws = Resamples(300, 2)
    draws.weights[:] = 1 / 300

    def on_test(scorer):
        method = Method("any", "Any", scorer)
        (plan,) = method.plans(splits["held_out"], splits["val"], [0.5], seeds=1)
        return MeasuredPlan(plan, splits["test"], draws)

    return on_test(MaxProbability()), on_test(Reversed())


DECLARED = [accuracy_column(0.5), *COLUMNS]


@pytest.mark.parametrize("column", DECLARED, ids=lambda column: column.key)
def test_a_column_is_declared_as_it_is_measured(column, measured):
    """A wrong sign, the resamples of another figure and a wrong factor are noticed here."""
    good, bad = measured
    gain = column.sign * (column.measure(good) - column.measure(bad))
    assert gain > 0.02 if column.varies else gain == 0
    assert 0 <= column.measure(good) <= 1
    assert (column.scale == 100) == (column.key.startswith("accuracy@"))
    if column.resample is not None:
        for plan in measured:
            expected = pytest.approx([column.measure(plan)] * 2, abs=1e-4)
            assert column.resample(plan).tolist() == expected
