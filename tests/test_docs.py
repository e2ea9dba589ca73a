"""Every Python block in the docs runs, and what a page names is there: files, commands, extras."""

import doctest
import functools
import re
import shlex
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import typer

from offramp.cli.app import app
from offramp.errors import FileFormatError
from offramp.registry import GROUPS, METHODS, THRESHOLDS
from offramp.serving.gateway_config import ChatMember, GatewayConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MORE_PAGES = [
    *PAGES,
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "paper").rglob("*.md")),
]
CLUSTERS = ROOT / "docs" / "reference" / "ray.md"


def name(page):
    return str(page.relative_to(ROOT))


def run_blocks(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    names: dict[str, object] = {"__name__": "docs"}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if page != CLUSTERS], ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch, capsys):
    run_blocks(page, tmp_path, monkeypatch)


@pytest.mark.cluster
def test_python_blocks_run_on_a_cluster(cluster, tmp_path, monkeypatch, capsys):
    run_blocks(CLUSTERS, tmp_path, monkeypatch)


def test_the_readme_shows_what_its_python_prints(tmp_path, monkeypatch, capsys):
    code, shown = re.search(
        r"```python\n(.*?)```\s+```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ).groups()
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "docs"})
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    printed = capsys.readouterr().out
    assert doctest.OutputChecker().check_output(shown, printed, options), printed


def words(page):
    """The words of a page as it is read: no comments, link targets, rules or pipes of tables."""
    text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"\]\([^)]+\)", "]", text)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def test_the_readme_takes_a_minute():
    assert words(ROOT / "README.md") <= 700


def test_the_site_is_short():
    pages = (ROOT / "docs").rglob("*.md")
    assert sum(words(page) for page in pages if page.name != "cli.md") <= 30_000


@pytest.mark.parametrize("page", MORE_PAGES, ids=name)
def test_local_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@functools.cache
def commands():
    """The sub-commands of `offramp` by name."""
    return typer.main.get_command(app).commands


def options(command):
    """The options of a sub-command: `{"--help", "--out", ...}`."""
    return {"--help"} | {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("-")
    }


def shell_lines(text):
    """The commands of all shell blocks, one by one, continued lines joined."""
    for block in re.findall(r"^```(?:sh)?\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        yield from block.replace("\\\n", " ").splitlines()


def whole_calls(text):
    """Arguments of every `offramp ...` in a shell block."""
    for line in shell_lines(text):
        if found := re.search(r"(?:^\s*|-m )offramp (.*)", line):
            yield shlex.split(found[1], comments=True)


@pytest.mark.parametrize("page", MORE_PAGES, ids=name)
def test_commands_in_shell_blocks_would_be_accepted(page):
    for first, *rest in whole_calls(page.read_text()):
        assert first in commands(), f"there is no `offramp {first}`"
        with suppress(FileFormatError):  # the folders that pages name are not here
            commands()[first].make_context(first, rest)  # parses and checks, and runs nothing


@pytest.mark.parametrize("page", MORE_PAGES, ids=name)
def test_commands_in_running_text_exist(page):
    for span in re.findall(r"`offramp ([a-z][^`]*)`", page.read_text()):
        first, *rest = span.split()
        assert first in commands(), f"there is no `offramp {first}`"
        if commands()[first].context_settings.get("allow_extra_args"):
            continue  # of another package, which may not be installed
        named = {word.split("=")[0] for word in rest if word.startswith("--")}
        assert named <= options(commands()[first]), f"`offramp {span}`"


def test_every_method_threshold_and_group_is_on_the_page_of_methods():
    page = (ROOT / "docs" / "reference" / "methods.md").read_text()
    names = [*METHODS, *METHODS.paper, *THRESHOLDS, *THRESHOLDS.paper, *GROUPS]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_every_setting_of_a_gateway_is_on_the_page_of_servers():
    page = (ROOT / "docs" / "reference" / "http-and-onnx.md").read_text()
    fields = [*GatewayConfig.__struct_fields__, *ChatMember.__struct_fields__]
    assert [name for name in fields if not re.search(rf"\b{name}\b", page)] == []


def test_a_command_that_is_not_there_would_be_noticed():
    page = "```sh\nofframp fit logits.npz --buget 0.5   # a slip\n```"
    (call,) = whole_calls(page)
    assert call == ["fit", "logits.npz", "--buget", "0.5"]
    with pytest.raises(Exception, match="buget"):
        commands()["fit"].make_context("fit", call[1:])
    assert "--budget" in options(commands()["fit"])


@pytest.mark.parametrize("page", MORE_PAGES, ids=name)
def test_make_targets_extras_and_scripts_exist(page):
    text = page.read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:`|^)make ([\w-]+)", text, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile, f"make {target}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"pip install '(?:offramp|\.)\[([\w,]+)\]'", text):
        assert set(extras.split(",")) <= set(project["optional-dependencies"]), extras
    for script in re.findall(r"python ((?:benchmarks|examples|tools)/\w+\.py)", text):
        assert (ROOT / script).is_file(), script
