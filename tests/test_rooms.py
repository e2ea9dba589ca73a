"""A room imports only from rooms above it, and the two trunks do not know each other."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import offramp
from offramp import Corrector, Policy, synthetic

from .deployment import without_torch

ROOT = Path(offramp.__file__).parent

ROOT_ROOMS = [
    *("errors", "imports", "arrays", "registry", "check", "run_folder", "files", "made"),
    *("machine", "progress", "stopwatch", "costs", "batch_times", "metrics", "targets"),
]
CORE = [
    *("ledger", "synthetic", "component", "answers", "scorers", "thresholds", "decide", "price"),
    *("replay", "confidence"),
    *(
        "session",
        "policy",
        "bounds",
        "on_demand",
        "guarantees",
        "plan",
        "methods",
        "evaluation",
        "advice",
        "trees",
        "testing",
    ),
]
NETWORK = ["data", "networks", "training"]
MEETING = [
    *("record", "zoo", "runtime", "onnx", "timing", "serving", "report"),
    *("demo", "speed_up", "cli", "__main__"),
]
ROOMS = [*ROOT_ROOMS, *CORE, *NETWORK, *MEETING]


def rooms_above(room):
    """What a room may import: the root, its own trunk above it; where they meet, everything."""
    for trunk in (CORE, NETWORK):
        if room in trunk:
            return {*ROOT_ROOMS, *trunk[: trunk.index(room)]}
    return set(ROOMS[: ROOMS.index(room)])


def room_of(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("offramp"):
            if node.module == "offramp":
                yield from (alias.name for alias in node.names)
            else:
                yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (name.split(".")[1] for name in names if name.startswith("offramp."))


MODULES = [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_room_imports_only_from_rooms_above(path):
    room = room_of(path)
    assert room in ROOMS, f"{room} is not on the map; add it to ROOMS and to ARCHITECTURE.md"
    others = {other for other in imported_rooms(path) if other in ROOMS and other != room}
    assert others <= rooms_above(room), f"{room} must not import {others - rooms_above(room)}"


def test_every_room_is_on_the_map_in_the_docs():
    text = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    for room in ROOMS[:-1]:
        assert f"{room}.py" in text or f"{room}/" in text, f"ARCHITECTURE.md lacks {room}"


def test_import_is_light():
    heavy = "matplotlib plotly jinja2 transformers datasets accelerate huggingface_hub timm typer"
    heavy += " onnx onnxruntime starlette uvicorn prometheus_client ray tensorboard"
    heavy += " torchvision PIL tokenizers sklearn scipy.stats scipy.optimize pyarrow pandas mapie"
    heavy += " offramp.report torch"
    code = f"import sys, offramp; print([m for m in {heavy.split()!r} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


TRAINING = ROOT / "scorers" / "network_training.py"  # of correctors, with torch
LIGHT = ["arrays", "batch_times", "metrics", "targets", *CORE, "zoo", "report"]


@pytest.mark.parametrize("room", LIGHT)
def test_decisions_import_no_torch(room, tmp_path):
    paths = [path for path in MODULES if room_of(path) == room and path != TRAINING]
    names = [".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in paths]
    code = f"from importlib import import_module; list(map(import_module, {names}))"
    found = run(tmp_path, "-c", code)
    assert found.returncode == 0, found.stderr


def run(folder, *arguments):
    """Python in a process that cannot import torch."""
    environment = without_torch(folder) | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", *map(os.fspath, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_everything_about_decisions_works_without_torch(tmp_path):
    splits = synthetic.ledgers(seed=0, samples=400, exits=4, classes=8)
    policy = Policy(Corrector(epochs=1)).fit(splits["held_out"]).tune(splits["val"])
    policy.save(tmp_path / "corrected")
    found = run(tmp_path, Path(__file__).with_name("decide_without_torch.py"), tmp_path)
    assert found.returncode == 0, found.stderr
    scores = np.load(tmp_path / "scores.npy")
    assert np.allclose(scores, policy.replay(splits["test"]).scores, rtol=1e-5, atol=1e-5)


def test_settings_of_training_need_no_torch():
    code = "import sys; from offramp import TrainConfig; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


PUBLIC = """
Ledger Costs Policy Method Answer Scorer Corrector MaxProbability TemperatureScaling Guarantee
evaluate compare auto advise certify attach build train TrainConfig record Runner OnnxRunner export
profile quick OfframpError Cascade
answers data evaluation made metrics networks runtime scorers synthetic targets testing
thresholds training trees zoo
"""


def test_front_door_is_one_screen():
    assert sorted(PUBLIC.split()) == sorted(offramp.__all__)
