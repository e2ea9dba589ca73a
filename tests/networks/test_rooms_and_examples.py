"""The room stays where it is: what it imports, how light it is, and that its examples run."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOM = ROOT / "src" / "offramp" / "networks"
EXAMPLES = sorted((ROOT / "examples").glob("attach_*.py"))
ALLOWED = {"errors", "extras", "storage", "costs", "component", "networks"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.stem)
def test_networks_import_only_from_the_rooms_above(path):
    ours = [name.split(".")[1] for name in imports(path) if name.startswith("offramp.")]
    assert set(ours) <= ALLOWED


def test_importing_networks_stays_light():
    heavy = ("transformers", "huggingface_hub", "timm", "torchvision", "datasets")
    code = f"import sys, offramp.networks; print([m for m in {heavy!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path):
    pytest.importorskip("transformers")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout
