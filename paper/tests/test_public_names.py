"""The package uses offramp through its public names and plug-in points only."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

PAPER = Path(__file__).parents[1]
PAGE = PAPER.parent / "docs" / "api.md"
DOCUMENTED = set(re.findall(r"^::: (\S+)", PAGE.read_text(), re.MULTILINE))
SOURCES = [*PAPER.glob("src/**/*.py"), *PAPER.glob("tests/**/*.py")]


def is_public(module, name):
    """Whether a name is in the `__all__` of where it is from, or in the API reference."""
    return (
        name in getattr(import_module(module), "__all__", ())
        or module in DOCUMENTED
        or f"{module}.{name}" in DOCUMENTED
    )


def private_names(source):
    """What a file imports from offramp that is not public."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and re.match(r"offramp(\.|$)", node.module or ""):
            private = [each.name for each in node.names if not is_public(node.module, each.name)]
            yield from (f"{node.module}.{name}" for name in private)
        elif isinstance(node, ast.Import):
            modules = [each.name for each in node.names if each.name.startswith("offramp.")]
            yield from (name for name in modules if name not in DOCUMENTED)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PAPER).as_posix())
def test_only_public_names_are_imported(path):
    assert list(private_names(path.read_text())) == []


def test_a_private_name_would_be_noticed():
    source = "from offramp import Policy\nfrom offramp.ledger.reading import MOST_UNPACKED\n"
    assert list(private_names(source)) == ["offramp.ledger.reading.MOST_UNPACKED"]
    assert list(private_names("import offramp.ledger.reading")) == ["offramp.ledger.reading"]
    assert list(private_names("from offramp.answers.base import Answer")) != []
