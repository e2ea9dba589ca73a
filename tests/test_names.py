"""The lists of names are those of the registries, and need none of the code behind them."""

import inspect
import json
import os
import subprocess
import sys

import pytest

import offramp
from offramp import names
from offramp.advice import CANDIDATES
from offramp.cli import export_serve
from offramp.cli.options import complete_methods, complete_studies
from offramp.data import CATALOG, EMBEDDED
from offramp.data.augmentation import AUGMENTATIONS
from offramp.guarantees import LOSSES
from offramp.methods import GROUPS, METHODS, find_methods
from offramp.networks import ARCHITECTURES
from offramp.serving import ServeConfig
from offramp.studies import NAMES
from offramp.thresholds import THRESHOLD_METHODS
from offramp.training import OBJECTIVES
from offramp.training.config import RECIPES

LIGHT = [
    (["--version"], 0),
    (["--help"], 0),
    (["train", "--help"], 0),
    (["serve", "--help"], 0),
    (["comprae"], 2),
    (["fit", "missing", "--budget", "0.5"], 2),
    (["fit", ".", "--budget", "50"], 2),
    (["compare", ".", "--methods", "eepf"], 2),
    (["predict", ".", "polcy", "a.png"], 2),
    (["train", "--data", "cifar", "--network", "convnet", "--out", "x"], 2),
    (["study", "topk"], 2),
    (["run", "missing.toml"], 2),
]
START = """
import atexit, json, os, sys
heavy = ("torch", "numpy", "scipy", "sklearn", "safetensors", "matplotlib", "transformers")
atexit.register(lambda: print(json.dumps([m for m in heavy if m in sys.modules]), file=sys.stderr))
sys.argv = ["offramp", *json.loads(sys.argv[1])]
import offramp_command
offramp_command.main()
"""


def test_names_are_those_of_the_registries():
    find_methods(["auto"], 10)  # a room below registers it when it is asked for
    ours = {name: set(getattr(names, name)) for name in ("METHODS", "GROUPS", "THRESHOLDS")}
    assert ours["METHODS"] == set(METHODS)
    assert ours["GROUPS"] == set(GROUPS)
    assert ours["THRESHOLDS"] == set(THRESHOLD_METHODS)
    assert tuple(ARCHITECTURES) == names.ARCHITECTURES
    assert tuple(OBJECTIVES) == names.OBJECTIVES
    assert tuple(RECIPES) == names.RECIPES
    assert set(names.AUGMENTATIONS) == set(AUGMENTATIONS)
    assert (*EMBEDDED, *CATALOG) == names.DATA_SETS
    assert names.STUDIES == NAMES
    assert set(names.LOSSES) == set(LOSSES)
    names.check_methods(CANDIDATES)


def test_serve_has_the_defaults_of_its_configuration():
    parameters = inspect.signature(export_serve.serve_command).parameters
    defaults = {
        name: each.default for name, each in parameters.items() if hasattr(ServeConfig, name)
    }
    assert defaults
    assert defaults == {name: getattr(ServeConfig, name) for name in defaults}


@pytest.mark.parametrize(("arguments", "code"), LIGHT, ids=lambda value: str(value))
def test_help_and_mistakes_need_no_heavy_import(arguments, code, tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", START, json.dumps(arguments)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == code, found.stderr
    assert found.stderr.splitlines()[-1] == "[]"


def test_tab_completes_names_also_after_a_comma():
    assert complete_methods("ent") == ["entropy"]
    assert complete_methods("baseline,marg") == ["baseline,margin"]
    assert complete_studies("topk") == ["topk-ablation"]


def test_every_name_of_the_front_door_is_there():
    for name in offramp.__all__:
        assert getattr(offramp, name) is not None
    assert set(offramp.__all__) <= set(dir(offramp))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        offramp.nonsense  # noqa: B018


def test_functions_stay_in_front_of_modules_of_the_same_name():
    code = "from offramp.timing.profile import Profile; import offramp.record, offramp as o; "
    code += "assert callable(o.record) and callable(o.profile)"
    subprocess.run([sys.executable, "-c", code], check=True)
