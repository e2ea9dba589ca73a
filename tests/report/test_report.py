import csv
import io
import json
import warnings
from dataclasses import dataclass, replace
from xml.dom import minidom

import numpy as np
import pytest
import torch
from torch import nn

from offramp import attach, build, compare, imports, report
from offramp.errors import ConfigError, FileFormatError
from offramp.files import write_sealed
from offramp.methods import Method
from offramp.networks import count_macs
from offramp.registry import METHODS
from offramp.replay import AccuracyAt
from offramp.report.figures import curve_band
from offramp.scorers import Margin


@pytest.fixture(scope="module")
def table(splits):
    odd = Method("odd", "100% | [b]odd_{}&", METHODS["entropy"].scorer)
    ledgers = (splits[name] for name in ("held_out", "val", "test"))
    return compare(*ledgers, methods=["baseline", "temperature", odd], resamples=50)


def test_every_form_of_a_table_holds_the_same_figures(table):
    for rendered in report.comparison_tables(table):
        markdown, rows = rendered.markdown(), rendered.csv()
        for cells in rendered.rows:
            for cell in cells[1:]:
                assert cell.text in markdown
                assert cell.text in rows


def test_names_from_users_stay_text(table):
    methods = report.comparison_tables(table)[1]
    assert "100% \\| [b]odd_{}&" in methods.markdown()
    from rich.console import Console

    console = Console(file=io.StringIO(), width=200)
    console.print(methods.rich())
    assert "[b]odd_{}&" in console.file.getvalue()


def test_the_caption_says_over_what_the_spread_is(table):
    caption = report.comparison_tables(table)[1].caption
    assert (
        "standard deviation over 3 corrector seeds (initial weights) on one frozen network"
        in caption
    )


def test_reference_rows_are_in_the_table(table):
    labels = [row[0].text for row in report.comparison_tables(table)[1].rows]
    fixed = ["Best fixed exit", "Mix of two fixed exits", "Full network"]
    assert labels[-5:] == [*fixed, "Reachable", "Oracle"]


def test_a_comparison_is_written_in_every_form(table, tmp_path):
    paths, missing = report.write_comparison(table, tmp_path / "out")
    assert missing is None
    names = {path.name for path in paths}
    forms = {f"comparison.{form}" for form in ("md", "csv", "json", "svg", "pdf")}
    assert names == forms | {"gains.svg", "gains.pdf", "report.html"}
    content = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert content["methods"][0]["figures"]["eefp"]["value"] == pytest.approx(
        table["baseline"].figures["eefp"].value
    )
    assert content["versions"]["offramp"]
    assert content["methods"][1]["settings"]["answer"]["name"] == "TemperatureScaling"
    rows = list(csv.DictReader((tmp_path / "out" / "comparison.csv").open()))
    assert rows[0]["method"] == "baseline" and rows[0]["figure"].startswith("accuracy@")
    (row,) = [r for r in rows if (r["method"], r["figure"]) == ("temperature", "accuracy@0.5")]
    figure = table["temperature"].figures["accuracy@0.5"]
    assert float(row["value"]) == pytest.approx(figure.value)
    gap = table["temperature"].differences["baseline"]["accuracy@0.5"]
    assert float(row["low_baseline"]) == pytest.approx(gap.low)
    assert {"reachable", "fixed-mix", "oracle", "full-network", "exit-0"} <= {
        r["method"] for r in rows
    }
    assert (tmp_path / "out" / "comparison.svg").read_text().startswith("<?xml")


def test_without_the_extra_the_tables_are_written_and_the_pip_command_is_named(
    table, tmp_path, monkeypatch
):
    def missing(module, extra):
        return imports.require(f"no_{module}", extra)

    monkeypatch.setattr("offramp.report.figures.require", missing)
    paths, note = report.write_comparison(table, tmp_path)
    assert "pip install 'offramp[report]'" in note
    assert (tmp_path / "comparison.md") in paths
    monkeypatch.undo()
    monkeypatch.setattr("offramp.report.page.require", missing)
    paths, note = report.write_comparison(table, tmp_path)
    assert "no page" in note and "pip install 'offramp[report]'" in note
    assert (tmp_path / "comparison.json") in paths


def test_a_written_comparison_is_read_back_whole(table, tmp_path):
    paths, _ = report.write_comparison(table, tmp_path, {"command": "compare x"}, page=False)
    assert "report.html" not in {path.name for path in paths}
    again, origin = report.read_comparison(tmp_path)
    assert again.to_json() == table.to_json()
    assert report.comparison_tables(again) == report.comparison_tables(table)
    assert origin["command"] == "compare x"
    assert origin["versions"]["offramp"]


def test_reading_what_is_no_comparison_says_so(table, tmp_path):
    with pytest.raises(FileFormatError, match=r"there is no comparison at .*json; give"):
        report.read_comparison(tmp_path)
    file = tmp_path / "comparison.json"
    file.write_text("{")
    with pytest.raises(FileFormatError, match=r"comparison\.json is not valid JSON"):
        report.read_comparison(file)
    old = table.to_json()
    del old["methods"][0]["diagnostics"]
    write_sealed(file, old)
    with pytest.raises(
        FileFormatError, match=r"`methods\[0\]\.diagnostics` is missing; if another version"
    ):
        report.read_comparison(file)
    file.write_text("[1, 2]")
    with pytest.raises(FileFormatError, match="must hold an object, got list"):
        report.read_comparison(file)


def test_one_method_has_no_gap_to_close_and_few_samples_are_said(splits):
    few = {name: ledger.take(range(150)) for name, ledger in splits.items()}
    alone = compare(**few, methods=["baseline"], resamples=10)
    names = [found.name for found in report.comparison_tables(alone)]
    assert names == ["verdict", "methods", "versus-fixed-mix", "exits"]
    assert (
        "Only 150 test samples: each is worth 0.7 points"
        in report.comparison_tables(alone)[1].caption
    )


def test_an_accuracy_that_was_not_compared_is_named(table):
    assert table["baseline"].accuracy(0.5) == table["baseline"].figures["accuracy@0.5"].value
    with pytest.raises(ConfigError, match=r"was not compared at a budget of 0\.3, but at 0\.25"):
        table["baseline"].accuracy(0.3)


def test_every_table_of_methods_names_their_thresholds(table):
    tables = {found.name: found for found in report.comparison_tables(table)}
    for name in ("methods", "versus-baseline", "reachable-gap"):
        column = tables[name].columns.index("thresholds")
        shown = {row[0].text: row[column].text for row in tables[name].rows}
        assert shown["Temperature scaling"] == "geometric"


def test_the_share_of_the_reachable_gap_is_what_its_figures_say(table):
    (gaps,) = [found for found in report.comparison_tables(table) if found.name == "reachable-gap"]
    row = next(row for row in gaps.rows if row[0].text == "Temperature scaling")
    low = table["baseline"].accuracy(0.5)
    gained = table["temperature"].accuracy(0.5) - low
    place = table.budgets.index(0.5)
    closed = gained / (table.references.reachable[place].accuracy - low)
    assert row[2 + place].text == f"{closed:+.1%}"
    assert "Baseline" not in [row[0].text for row in gaps.rows]


def test_next_to_nothing_that_is_reachable_has_no_shares(table):
    point = AccuracyAt(table["baseline"].accuracy(0.5) + 0.004, 0.5)
    rows = replace(table.references, reachable=[point] * len(table.budgets))
    assert np.isnan(replace(table, references=rows).reachable_share("temperature", 0.5))


def test_scores_without_calibration_have_no_spread_of_it(splits):
    scorer = Method("margins", "Margins", _SeededMargin())
    found = compare(*splits.values(), methods=[scorer], seeds=2, resamples=20)
    row = report.comparison_tables(found)[1].rows[0]
    assert [cell.text for cell in row].count("-") == 1


@dataclass
class _SeededMargin(Margin):
    seed: int = 0

    def fit(self, history, labels, costs):
        return self


def test_gains_are_drawn_with_one_row_per_score(splits, tmp_path):
    methods = ["baseline", "margin:smooth", "margin", "margin:shared"]
    found = compare(*splits.values(), methods=methods, seeds=1, resamples=20)
    text = report.plot_gains(found, tmp_path / "gains.svg").read_text()
    assert text.startswith("<?xml")
    assert text.count(">Margin<") == 1
    for thresholds in ("the method's own", "smooth", "shared"):
        assert f">{thresholds} thresholds<" in text


def test_verdicts_say_what_was_measured(table):
    found = report.verdicts(table, rival="baseline")
    assert found[0].startswith("Temperature scaling against baseline: ")
    gap = table["temperature"].differences["baseline"]["accuracy@0.5"]
    assert f"{abs(100 * gap.value):.2f} points" in found[0]


def test_a_network_is_described_with_its_costs(tmp_path):
    network = build("convnet", num_classes=10, image_size=16)
    facts, exits = report.inspect(network.save(tmp_path))
    assert network.fingerprint() in facts.markdown()
    costs = count_macs(network).cumulative
    assert [row[-1].text for row in exits.rows] == [f"{int(cost):,}" for cost in costs]


def test_a_network_on_a_backbone_of_ones_own_is_described_without_it(tmp_path):
    backbone = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    facts, exits = report.inspect(attach(backbone, example=torch.rand(2, 4)).save(tmp_path))
    assert "Sequential, your own" in facts.markdown()
    assert exits.columns == ["exit", "after", "head"]


def test_of_any_other_folder_everything_below_is_listed_and_compared_with_its_checksum(
    splits, tmp_path
):
    for name in ("a", "b"):
        splits["val"].save(tmp_path / "run" / name)
    (contents,) = report.inspect(tmp_path)
    assert [[cell.text for cell in row][:3] for row in contents.rows] == [
        ["run/a", "ledger", "1"],
        ["run/b", "ledger", "1"],
    ]
    facts = report.inspect(tmp_path / "run" / "a")[0].markdown()
    assert "| files | 1 of " in facts and "1 compared with their checksums" in facts
    (tensors,) = (tmp_path / "run" / "b").glob("*.safetensors")
    tensors.write_bytes(bytes(tensors.stat().st_size))
    with pytest.raises(FileFormatError, match=f"{tensors} is damaged"):
        report.inspect(tmp_path)


def test_inspecting_nothing_says_what_was_looked_for(tmp_path):
    with pytest.raises(FileFormatError, match="holds no ledger, policy or network"):
        report.inspect(tmp_path)
    with pytest.raises(FileFormatError, match="nothing at"):
        report.inspect(tmp_path / "x")


def test_a_figure_of_many_methods_is_small_and_draws_six_of_them(splits, tmp_path):
    pytest.importorskip("matplotlib")
    ledgers = (splits[name] for name in ("held_out", "val", "test"))
    many = [Method(f"m{n}", f"A method with a long name, number {n}") for n in range(24)]
    table = compare(*ledgers, methods=["baseline", *many], resamples=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns where the panels have no room left
        path = report.plot_comparison(table, tmp_path / "many.svg")
    text = path.read_text()
    assert text.count(">A method with a long name") == 5
    assert ">Baseline<" in text
    assert "6 of 25 methods" in text
    assert path.stat().st_size < 100_000
    minidom.parse(str(path))


def test_a_method_without_randomness_has_a_line_without_a_band(table):
    band = curve_band(table["baseline"])
    assert band.mean.shape == (200,)
    assert band.spread is None


def test_a_comparison_as_a_data_frame_has_a_row_per_method(table):
    pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert list(frame.index) == [method.name for method in table.methods]
    assert frame.loc["baseline", "accuracy@0.5"] == table["baseline"].accuracy(0.5)
