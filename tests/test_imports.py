"""Names of packages are imported when they are asked for, and a missing package is named."""

import json
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

import offramp
from offramp import imports, synthetic
from offramp.errors import MissingExtraError
from offramp.imports import LazyPackage

from .deployment import without_torch

# Commands and names, one after the other, in a process that cannot import torch.
ASK = """
import contextlib, inspect, io, json, sys

import offramp
from offramp.__main__ import main
from offramp.errors import MissingExtraError


def answer(command):
    sys.argv = ["offramp", *command.split()]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            return end.code or 0, out.getvalue(), err.getvalue()


def error(name):
    assert hasattr(offramp, name) and hasattr(offramp, name)
    value = getattr(offramp, name)
    assert not isinstance(offramp, value) and inspect.unwrap(value) is value
    found = set()
    for use in (value, lambda: value.load, lambda: inherit(value)):
        try:
            use()
        except MissingExtraError as error:
            found.add(str(error))
        else:
            return None
    (message,) = found
    return message if message in repr(value) else None


def inherit(value):
    class Own(value):
        pass


def read_times():
    from offramp.timing import BenchRow, Profile
    one = [[1.0, 1.0]]
    parts = "torch", 1, "cpu", "a machine", "a network", [0, 1], "max probability", [1], [2.0]
    profile = Profile(*parts, one, one, one, [0.1], [0.0])
    profile.save("times")
    assert Profile.load("times") == profile
    return BenchRow("torch", 1, "without exits", 1.0, 1.0).share + profile.at(1).reference


commands, names = json.loads(sys.argv[1])
answers = {command: answer(command) for command in commands}
assert read_times() == 3.0 and "torch" not in sys.modules
print(json.dumps([answers, {name: error(name) for name in names}]))
"""
DECIDE = {  # commands that need no torch, and what they write
    "--help": (),
    "train --help": (),
    "compare made.npz --methods baseline,eefp-logistic,break-even:smooth --resamples 20": (
        *(f"made-comparison/comparison.{each}" for each in ("md", "csv", "json", "svg", "pdf")),
        "made-comparison/report.html",
    ),
    "fit made.npz --budget 0.5 --method eefp-logistic": ("policy/policy.json",),
    "auto made.npz --out chosen": ("chosen/policy.json",),
    "advise made.npz --budgets 0.5 --out plan": ("plan/policy-0.5/policy.json",),
    "certify made.npz --epsilon 0.2 --method baseline --out sure": ("sure/policy.json",),
    "inspect policy": (),
    "inspect made.npz": (),
    "inspect ledger": (),
    "report made-comparison --out page.html": ("page.html",),
}
NETWORKS = (  # commands that need torch
    "train --data mixture --network convnet --out run --json",
    "record policy",
    "chain policy plan --out both",
    "predict policy policy image.png",
    "profile policy --out times",
    "bench policy policy",
    "export policy policy",
    "demo",
    "fit made.npz --budget 0.5 --method eefp --out other",  # whose scorer is trained
)
NAMES = ("Runner", "attach", "build", "export", "profile", "train")


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A folder, what commands answer in it, and the errors of names, all without torch."""
    folder = tmp_path_factory.mktemp("without-torch")
    synthetic.ledgers(seed=0, samples=300, exits=4)["val"].save(folder / "ledger")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 900)
    growing = np.linspace(1, 3, 4)[:, None] * np.eye(5)[labels][:, None]
    logits = (rng.normal(size=(900, 4, 5)) + growing).astype(np.float32)
    np.savez(folder / "made.npz", logits=logits, labels=labels, costs=np.arange(1.0, 5.0))
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps([[*DECIDE, *NETWORKS], NAMES])],
        cwd=folder,
        env=without_torch(folder) | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, *json.loads(done.stdout)


@pytest.mark.parametrize("command", DECIDE)
def test_ledgers_and_policies_need_no_torch(asked, command):
    folder, answers, _ = asked
    code, out, err = answers[command]
    assert code == 0 and out, err
    assert all((folder / path).stat().st_size for path in DECIDE[command])


@pytest.mark.parametrize("command", NETWORKS)
def test_a_command_that_needs_torch_says_so_in_one_line(asked, command):
    code, out, err = asked[1][command]
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    (line,) = (line for line in err.splitlines() if line.startswith("offramp: "))
    assert "`torch` is not installed" in line
    assert "pip install 'offramp[torch]'" in line


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_needs_torch_says_so(asked, name):
    message = asked[2][name]
    assert message is not None and "pip install 'offramp[torch]'" in message


def test_every_name_of_the_front_door_is_there():
    for name in offramp.__all__:
        assert getattr(offramp, name) is not None
    assert set(offramp.__all__) <= set(dir(offramp))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        offramp.nonsense  # noqa: B018


def test_functions_stay_in_front_of_modules_of_the_same_name(monkeypatch):
    monkeypatch.delitem(sys.modules, "offramp.record", raising=False)
    assert isinstance(import_module("offramp.record"), ModuleType)
    assert callable(offramp.record)


@pytest.mark.parametrize("name", ["data", "networks", "onnx", "runtime", "serving", "training"])
def test_a_lazy_package_has_all_that_it_lists(name):
    package = import_module(f"offramp.{name}")
    assert isinstance(package, LazyPackage)
    assert set(package.__all__) <= set(dir(package))
    assert not any(isinstance(getattr(package, each), ModuleType) for each in package.__all__)


def test_a_broken_dependency_is_not_called_a_missing_extra(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import something_else_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_else_that_is_missing") as error:
        imports.require("half_there", "report")
    assert not isinstance(error.value, MissingExtraError)
    with (
        pytest.raises(ModuleNotFoundError, match="something_else") as error,
        imports.missing_torch(),
    ):
        import_module("half_there")
    assert not isinstance(error.value, MissingExtraError)


def test_the_command_installs_an_extra_and_no_package_of_its_name():
    with pytest.raises(MissingExtraError, match=r"pip install 'offramp\[report\]'"):
        imports.require("no_such_module", "report")
