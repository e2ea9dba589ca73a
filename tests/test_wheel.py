"""The wheel stands alone: built, installed elsewhere, and used without the source tree."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parents[1]

# Put into the new environment: whatever it opens in the source tree is noted. The libraries of the
# developer's environment may lie in there, and are not meant.
WATCH = """
import os, sys
_root, _libraries, _notes = {root!r}, {libraries!r}, {notes!r}


def _watch(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path.startswith(_root + os.sep) and not path.startswith(_libraries):
            note = os.open(_notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(note, (path + chr(10)).encode())
            os.close(note)


sys.addaudithook(_watch)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *flags, "--wheel-dir", folder, ROOT], check=True
    )
    (found,) = folder.glob("offramp-*.whl")
    return found


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    """An environment outside of the repository with the wheel, and all else borrowed."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    flags = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", *flags, wheel],
        env=clean_environment(),
        check=True,
    )
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    # A path in a .pth is searched, but the .pth files in there are not: an editable offramp of the
    # developer's environment stays unseen.
    libraries = sysconfig.get_path("purelib")
    (packages / "libraries.pth").write_text(f"{libraries}\n")
    notes = folder / "opened"
    where = {"root": str(ROOT), "libraries": sys.prefix, "notes": str(notes)}
    (packages / "sitecustomize.py").write_text(WATCH.format(**where))
    return folder


def clean_environment():
    """Without what would lead back to the source tree, or to a developer's data."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OFFRAMP", "COV"))}


def run(elsewhere, *command, cwd):
    """A command of the new environment, without anything of this one's."""
    path = f"{elsewhere / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        env=clean_environment() | {"PATH": path, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def assert_source_tree_was_not_opened(elsewhere):
    notes = elsewhere / "opened"
    assert not notes.exists(), f"opened in the source tree: {notes.read_text()}"


def test_the_wheel_holds_what_is_used_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (*("offramp/py.typed", "offramp/zoo_data/", "offramp/report/page_charts/"),):
        assert any(name.startswith(needed) for name in names), needed
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"offramp"}
    modules = {path.relative_to(ROOT / "src").as_posix() for path in ROOT.glob("src/**/*.py")}
    assert modules <= set(names)


def test_the_installed_package_is_the_wheels(elsewhere, tmp_path):
    code = (
        "import json, offramp, importlib.metadata as m; "
        "print(json.dumps([offramp.__file__, offramp.__version__, m.version('offramp')]))"
    )
    file, version, metadata = json.loads(run(elsewhere, "python", "-c", code, cwd=tmp_path))
    assert file.startswith(str(elsewhere))
    assert version == metadata
    assert_source_tree_was_not_opened(elsewhere)


def test_doctor_and_the_bare_command_run(elsewhere, tmp_path):
    assert "offramp demo" in run(elsewhere, "offramp", cwd=tmp_path)
    assert str(elsewhere) in run(elsewhere, "offramp", "doctor", cwd=tmp_path)
    assert_source_tree_was_not_opened(elsewhere)


def test_the_readmes_example_runs(elsewhere, tmp_path):
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "readme.py").write_text("\n".join(blocks))
    assert "accuracy" in run(elsewhere, "python", "readme.py", cwd=tmp_path)
    assert (tmp_path / "policy" / "policy.json").is_file()
    assert_source_tree_was_not_opened(elsewhere)


def test_the_demo_runs(elsewhere, tmp_path, record_testsuite_property):
    start = time.monotonic()
    said = run(elsewhere, "offramp", "demo", cwd=tmp_path)
    record_testsuite_property("demo_seconds", time.monotonic() - start)
    assert "report: " in said
    assert (tmp_path / "runs" / "demo" / "report.html").stat().st_size > 100_000
    assert_source_tree_was_not_opened(elsewhere)
