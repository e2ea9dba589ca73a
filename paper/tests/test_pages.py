"""What the paper's pages say is run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_python_blocks_of_the_theory_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "docs"}
    text = (ROOT / "docs" / "theory.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, "theory.md", "exec"), names)
