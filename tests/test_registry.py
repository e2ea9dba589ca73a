"""Every name stands for something, and is listed, completed and checked without it."""

import json
import os
import subprocess
import sys

import pytest

from offramp import registry
from offramp.cli.options import complete_methods
from offramp.errors import ConfigError
from offramp.registry import CANDIDATES, METHODS, OBJECTIVES, Names, check_methods

TABLES = {name: table for name, table in vars(registry).items() if isinstance(table, Names)}

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
]
ALL_IN_ONE_PROCESS = """
import json, sys
from offramp.__main__ import main
heavy = ["torch", "numpy", "scipy", "sklearn", "safetensors", "matplotlib", "transformers"]
heavy += ["starlette", "uvicorn", "prometheus_client", "ray", "onnx", "onnxruntime", "PIL"]
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["offramp", *arguments]
    try:
        main()
    except SystemExit as end:
        code = end.code
    print(json.dumps([arguments, code, [m for m in heavy if m in sys.modules]]), file=sys.stderr)
"""


@pytest.mark.parametrize("name", TABLES)
def test_every_name_stands_for_something(name):
    for named in TABLES[name].values():
        assert not isinstance(named, str)


def test_what_has_a_name_of_its_own_is_listed_by_it():
    assert {name: method.name for name, method in METHODS.items()} == {n: n for n in METHODS}
    assert {name: each.name for name, each in OBJECTIVES.items()} == {n: n for n in OBJECTIVES}


def test_candidates_are_names():
    check_methods(CANDIDATES)


def test_a_taken_name_is_refused():
    names = Names("number", {"pi": "math:pi"})
    names.add("tau", 6.28)
    names.add("tau", 6.28)  # the same one again is no trouble
    with pytest.raises(ConfigError, match="there is a number 'pi' already; choose another name"):
        names.add("pi", 3)
    assert list(names) == ["pi", "tau"]


def test_help_and_mistakes_need_no_heavy_import(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", ALL_IN_ONE_PROCESS, json.dumps([each for each, _ in LIGHT])],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in found.stderr.splitlines() if line.startswith("[[")]
    assert lines == [[arguments, code, []] for arguments, code in LIGHT], found.stderr


def test_tab_completes_names_also_after_a_comma():
    assert complete_methods("ent") == ["entropy"]
    assert complete_methods("baseline,marg") == ["baseline,margin"]
