"""The room stays where it is: what it imports, and how light it is."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import offramp.data

ROOM = Path(offramp.data.__file__).parent
ALLOWED = {"errors", "extras", "storage", "chunking", "costs", "component", "data"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.stem)
def test_data_import_only_from_the_rooms_above(path):
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("offramp.")}
    assert ours <= ALLOWED


def test_embedded_data_need_no_extra_and_import_none():
    code = (
        "import sys\n"
        "heavy = ('datasets', 'PIL', 'transformers', 'huggingface_hub')\n"
        "import offramp.data\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "sys.modules.update(dict.fromkeys(heavy))  # as if they were not installed\n"
        "print(offramp.data.load('cluttered-digits', val=9).val[0][0].shape)\n"
        "print(offramp.data.load('mixture').val[0][0].shape)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:3] == ["[]", "torch.Size([3, 20, 20])", "torch.Size([2])"]
