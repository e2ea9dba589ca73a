"""Every example runs, in seconds; the stories with `--quick`."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "from_logits_to_a_runner.ipynb"
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
NEEDS = {
    "coming_from_earlyon": ("earlyon",),
}


def arguments(path):
    """What the example is called with, so that it takes seconds and needs no real data."""
    quick = path.stem.startswith("story_") or path.stem == "cascade_cifar100"
    return ["--quick"] if quick else []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    missing = [name for name in NEEDS.get(path.stem, ()) if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"{path.name} needs {', '.join(missing)}")
    cache = {"HF_DATASETS_CACHE": str(tmp_path / "cache"), "MPLBACKEND": "agg"}
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **cache}
    run = subprocess.run(
        [sys.executable, path, *arguments(path)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout
    if path.stem.startswith("story_"):
        assert list(tmp_path.rglob("*.svg")), "a story draws its picture"


def test_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    # Threads that wait for a core that other tests use take ten times as long as one.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if not all(importlib.util.find_spec(name) for name in ("nbclient", "ipykernel")):
        reason = "the notebook needs nbclient and ipykernel: pip install '.[dev]'"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, resources=place).execute()  # raises where a cell does
    assert (tmp_path / "policy").is_dir()
    assert len(pictures(notebook)) == 3


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
