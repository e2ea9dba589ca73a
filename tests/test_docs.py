"""Every Python block in the docs runs, and every local link leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CLUSTERS = ROOT / "docs" / "clusters.md"


def run_blocks(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    names: dict[str, object] = {"__name__": "docs"}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != CLUSTERS], ids=lambda p: str(p.relative_to(ROOT))
)
def test_python_blocks_run(page, tmp_path, monkeypatch, capsys):
    run_blocks(page, tmp_path, monkeypatch)


@pytest.mark.cluster
def test_python_blocks_run_on_a_cluster(cluster, tmp_path, monkeypatch, capsys):
    run_blocks(CLUSTERS, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_local_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_names_commands_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake (\w+)", (ROOT / "README.md").read_text()):
        assert f"\n{target}:" in makefile
