"""What someone meets first: the bare command, doctor, completion, Ctrl-C, the version."""

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import offramp
from offramp import imports
from offramp.cli import doctor

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
START = "import sys; sys.argv[0] = 'offramp'; from offramp.__main__ import main; main()"


def command(*arguments, **environment):
    """The installed command, wherever it is installed."""
    source = str(ROOT / "src")
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", START, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_COLOR": "1", "PYTHONPATH": path} | environment,
        timeout=300,
        check=False,
    )


def test_the_bare_command_says_what_to_do_next():
    result = command()
    assert result.returncode == 0, result.stderr
    text = result.stdout
    for word in ("offramp demo", "offramp compare", "offramp train", "offramp doctor", "--help"):
        assert word in text
    assert len(text.splitlines()) < 25, "short enough for one screen"
    names = {each.name for each in offramp_app().registered_commands}
    for word in re.findall(r"^  offramp (\w+)", text, flags=re.MULTILINE):
        assert word in names


def offramp_app():
    from offramp.cli.app import app

    return app


def test_doctor_says_what_is_there_and_what_is_missing_and_imports_nothing_optional(tmp_path):
    (tmp_path / "pacs").mkdir()
    heavy = "transformers datasets accelerate matplotlib plotly onnx onnxruntime starlette ray"
    code = (
        "import atexit, sys; sys.argv[1:] = ['doctor']; from offramp.__main__ import main; "
        f"atexit.register(lambda: print([m for m in {heavy.split()!r} if m in sys.modules])); "
        "main()"
    )
    environment = os.environ | {"OFFRAMP_DATA": str(tmp_path), "NO_COLOR": "1"}
    text = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert text.endswith("\n[]\n")
    assert version("torch") in text
    assert f"+ pacs              {tmp_path / 'pacs'}" in text
    assert "- sst2 " in text
    assert "hf download stanfordnlp/sst2 --repo-type dataset" in text
    assert "bfloat16" in text
    assert "cluttered-digits" in text


def test_doctor_names_the_command_for_what_is_missing(monkeypatch):
    lines = ["numpy>=2", 'onnx>=1; extra == "onnx"', 'no-such-thing; extra == "onnx"']
    monkeypatch.setattr(doctor, "requires", lambda _: lines)
    (finding,) = [f for f in doctor.diagnosis()["features"] if f.name.startswith("onnx")]
    assert not finding.good
    assert finding.text.startswith("lacks no-such-thing: pip install 'offramp[onnx]'")
    assert f"pip install -e '{ROOT}[onnx]'" in finding.text


def test_doctor_works_without_torch(monkeypatch):
    monkeypatch.setattr(doctor, "requires", lambda _: ['torch>=2; extra == "torch"'])
    monkeypatch.setattr(doctor, "installed_version", lambda package: None)
    sections = doctor.diagnosis()
    assert [finding.text for finding in sections["machine"]] == ["known once torch is installed"]
    (finding,) = [f for f in sections["features"] if f.name.startswith("torch:")]
    assert finding.text.startswith("lacks torch: pip install 'offramp[torch]'")


def test_doctor_works_where_the_package_is_not_installed(monkeypatch):
    def missing(package):
        raise imports.PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "requires", missing)
    monkeypatch.setattr(imports, "version", missing)
    sections = doctor.diagnosis()
    assert "not installed as a package" in sections["versions"][0].text
    assert all(not finding.good for finding in sections["features"])


def test_doctor_names_the_variable_for_data(monkeypatch):
    monkeypatch.delenv("OFFRAMP_DATA", raising=False)
    first = doctor.diagnosis()["data sets"][0]
    assert (first.name, first.good) == ("OFFRAMP_DATA", False)
    assert "not set" in first.text


def test_every_extra_is_explained():
    declared = set(PYPROJECT["optional-dependencies"]) - {"all", "dev"}
    assert declared == set(doctor.FEATURES)


def test_completion_knows_the_commands():
    environment = {"COMP_WORDS": "offramp do", "COMP_CWORD": "1"}
    result = command(_OFFRAMP_COMPLETE="complete_bash", **environment)
    assert result.stdout.split() == ["doctor"], result.stderr
    assert "--install-completion" in command("--help").stdout


@pytest.fixture
def slow_package(tmp_path):
    """Something that the command line needs, and that is on a slow disk."""
    text = "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "typer.py").write_text(text)
    return tmp_path


def test_ctrl_c_while_importing_is_quiet(slow_package):
    path = os.pathsep.join([str(slow_package), str(ROOT / "src")])
    process = subprocess.Popen(
        [sys.executable, "-c", START],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert process.stdout.readline() == "importing\n"
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=50)
    assert time.monotonic() - start < 30
    assert process.returncode == 130
    assert said.strip() == "offramp: interrupted before anything was done"


def test_the_installed_command_is_the_quiet_one():
    assert PYPROJECT["scripts"] == {"offramp": "offramp.__main__:main"}


def test_the_version_is_in_one_place():
    assert PYPROJECT["dynamic"] == ["version"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {offramp.__version__}\n" in citation
