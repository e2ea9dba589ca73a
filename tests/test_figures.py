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
_spec = importlib.util.spec_from_file_location("figures", TOOL)
figures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(figures)

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


def test_what_to_expect_is_what_the_figures_say():
    printed = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "expect.py"], capture_output=True, text=True
    ).stdout
    kept = json.loads((ROOT / "docs" / "figures" / "expect.json").read_text())["tables"]
    for name, table in figures.tables_in(printed).items():
        assert table["rows"] == kept[name]["rows"], "measure docs/figures/expect.json again"


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


def test_every_file_of_figures_is_shown():
    shown = "".join(page.read_text() for page in figures.pages())
    for path in [*ROOT.glob("docs/figures/*.json"), *ROOT.glob("paper/figures/*.json")]:
        for name in json.loads(path.read_text())["tables"]:
            assert f"<!-- figures {path.relative_to(ROOT)} {name} -->" in shown, (path, name)


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
