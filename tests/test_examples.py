"""Every example runs, in seconds; the stories with `--quick`."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
NEEDS = {
    "coming_from_earlyon": ("earlyon",),
}


def arguments(path):
    """What the example is called with, so that it takes seconds and needs no real data."""
    quick = path.stem.startswith("story_") or path.stem in ("cascade_cifar100", "shift")
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
