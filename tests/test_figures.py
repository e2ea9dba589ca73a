"""Tables of figures in README, docs and paper are those that commands have written."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "figures.py"


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures = script(TOOL)
expect = script(ROOT / "benchmarks" / "expect.py")

MEASURED = re.compile(r"\d\.\d|\d ?%")
PLACE = "docs/figures/time.json"
PRINTS = (
    "print('## Time\\n\\n| model | ms |\\n|---|---:|\\n| a \\\\| b | 1.7 |\\n| all | **2** |')"
)


def run(*options):
    return subprocess.run(
        [sys.executable, TOOL, *map(str, options)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def measured(tmp_path):
    place = tmp_path / PLACE
    done = run("--measure", place, "--", sys.executable, "-c", PRINTS)
    assert done.returncode == 0, done.stderr
    return place


def test_no_page_is_older_than_its_figures():
    done = run("--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_to_expect_is_what_the_figures_say(capsys):
    expect.main()
    kept = json.loads((ROOT / "docs" / "figures" / "expect.json").read_text())["tables"]
    for name, table in figures.tables_in(capsys.readouterr().out).items():
        assert table["rows"] == kept[name]["rows"], "measure docs/figures/expect.json again"


def test_what_to_expect_leaves_out_what_may_lose_more_than_a_point():
    setting, workload = expect.Setting, expect.Workload
    assert setting(0.5, "-0.16 [-0.74, +0.41]").holds
    assert not setting(0.5, "+0.20 [-1.10, +1.50]").holds
    assert not setting(0.5, "+0.8 ± 2.5").holds, "a spread is no interval"
    unclear = [setting(0.25, "-2.00 [-3.00, -1.00]")]
    assert workload("a", unclear, "time", "all", "none").row() is None
    level = [setting(0.8, "+0.00 [-0.20, +0.20]"), setting(0.5, "-0.10 [-0.90, +0.70]")]
    assert workload("a", [*unclear, *level], "time", "all", "none").row() == [
        "a", "50% of the time: 2.00 times as fast", "-0.10 [-0.90, +0.70]", "all; none"
    ]  # fmt: skip
    assert workload("a", level, "dollars", "all", "none").row()[1] == "50% of the dollars"


def test_a_margin_is_read_from_the_rows_of_its_data():
    rows = [
        ["**a**, all trees", "", "9", "", "", ""],
        ["`early_stop`: none certified", "", "", "1.03", "", ""],
        ["**b**, all trees", "", "9", "", "", ""],
        ["`early_stop`, margin 3", "+0.00 [+0.00, +0.00]", "3", "**4.00**", "", ""],
    ]
    assert expect.margins(rows, "a") == []
    assert expect.margins(rows, "b") == [expect.Setting(0.25, "+0.00 [+0.00, +0.00]")]


def test_every_figure_says_what_wrote_it_when_and_where():
    for path in [*ROOT.glob("docs/figures/*.json"), *ROOT.glob("paper/figures/*.json")]:
        about = json.loads(path.read_text())
        assert all(about[part] for part in ("command", "date", "machine", "commit")), path
        for table in about["tables"].values():
            assert {len(row) for row in table["rows"]} == {len(table["columns"])}, path


@pytest.mark.parametrize(
    "page", sorted((ROOT / "paper").rglob("*.md")), ids=lambda page: str(page.relative_to(ROOT))
)
def test_no_table_of_figures_is_written_by_hand(page):
    rest = figures.TABLE.sub("", page.read_text())
    assert [line for line in rest.splitlines() if line[:1] == "|" and MEASURED.search(line)] == []


def test_no_page_is_older_than_the_code_of_its_methods():
    """Measure it again, or say in its JSON, as `older`, why that cannot be done."""
    now = figures.signatures()
    stale = {}
    for path in [*ROOT.glob("docs/figures/*.json"), *ROOT.glob("paper/figures/*.json")]:
        about = json.loads(path.read_text())
        if "older" not in about and (methods := figures.changed(about, now)):
            stale[path.name] = methods
    assert stale == {}


def test_a_page_says_that_its_figures_are_older_than_the_methods(measured, tmp_path):
    about = {**json.loads(measured.read_text()), "older": "The networks are gone."}
    measured.write_text(json.dumps(about))
    found = figures.filled(f"<!-- measured {PLACE} -->", tmp_path)
    assert found.endswith("`. The networks are gone.*")


def test_every_file_of_figures_is_shown_or_linked():
    text = "".join(page.read_text() for page in figures.pages())
    for path in [*ROOT.glob("docs/figures/*.json"), *ROOT.glob("paper/figures/*.json")]:
        place = path.relative_to(ROOT)
        assert f"<!-- figures {place} " in text or f"figures/{path.name})" in text, place


def test_a_page_shows_what_a_command_has_printed(measured, tmp_path):
    page = f"# Speed\n\n<!-- figures {PLACE} time -->\n<!-- end -->\n<!-- measured {PLACE} -->\n"
    found = figures.filled(page, tmp_path)
    assert "| model | ms |\n|---|---:|\n| a \\| b | 1.7 |\n| all | **2** |\n<!-- end -->" in found
    assert re.search(r"\*Measured: \d{4}-\d\d-\d\d, .+, commit \w+; `.*python.* -c .*`\.\*", found)
    assert figures.filled(found, tmp_path) == found, "filling in twice changes nothing"


def test_a_changed_figure_makes_its_page_stale(measured, tmp_path):
    page = figures.filled(f"<!-- figures {PLACE} time -->\n<!-- end -->", tmp_path)
    measured.write_text(measured.read_text().replace("1.7", "1.6"))
    assert "| 1.6 |" in figures.filled(page, tmp_path) != page


def test_a_failed_command_leaves_the_figures_as_they_were(measured):
    before = measured.read_text()
    done = run("--measure", measured, "--", sys.executable, "-c", PRINTS + "; exit(3)")
    assert done.returncode == 1
    assert "the command failed with 3; " in done.stderr
    assert measured.read_text() == before


def test_a_command_without_a_table_is_refused(tmp_path):
    done = run("--measure", tmp_path / "none.json", "--", sys.executable, "-c", "print('1.7 ms')")
    assert "the command printed no table" in done.stderr
    assert not (tmp_path / "none.json").exists()


def test_a_file_or_a_table_that_is_not_there_is_named(measured, tmp_path):
    with pytest.raises(SystemExit, match=r"there is no docs/figures/x\.json: write it with"):
        figures.filled("<!-- figures docs/figures/x.json time -->\n<!-- end -->", tmp_path)
    with pytest.raises(SystemExit, match="has no table 'times', but time"):
        figures.filled(f"<!-- figures {PLACE} times -->\n<!-- end -->", tmp_path)


def test_tables_under_one_title_have_names_of_their_own():
    table = "| a |\n|---|\n| 1 |\n"
    assert list(figures.tables_in(f"## Same\n\n{table}\ntext\n\n{table}\n\n{table}")) == [
        "same",
        "same--2",
        "same--3",
    ]
