"""`offramp theory` as a user runs it."""

import os
import subprocess
import sys

import pytest

from offramp.errors import ConfigError, FileFormatError
from offramp_paper.theory import STATEMENTS
from offramp_paper.theory.command import main


def test_the_table_says_what_holds_and_what_fails_with_its_smallest_world(capsys):
    main(["--worlds=50", "--statement=anytime-pointwise", "--statement=canonical"])
    printed = capsys.readouterr().out
    assert "canonical: canonically calibrated exits" in printed
    assert "holds   50 + 36,000" in printed
    assert "fails   50 + 27,000" in printed
    assert "3 x 2 x 2" in printed
    assert "at any single point, next ≤ this (exact, log loss) fails:" in printed
    assert "exit 0: {0,1,2}" in printed
    assert "0.1438 <= 0.05889 is false" in printed


def test_worlds_can_be_left_out(capsys):
    main(["--worlds=20", "--statement=non-trivial", "--no-examples"])
    assert "is false" not in capsys.readouterr().out


def test_help_names_every_statement(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = "".join(capsys.readouterr().out.split())
    for name in STATEMENTS:
        assert name.replace("-", "") in shown.replace("-", "")


def test_the_command_line_refuses_in_one_line_and_with_exit_code_two():
    ended = subprocess.run(
        [sys.executable, "-m", "offramp", "theory", "--statement", "anyhow"],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
        check=False,
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("offramp: there is no statement 'anyhow'") and "canonical" in line


def test_wrong_settings_are_named(tmp_path):
    with pytest.raises(ConfigError, match="--worlds must be at least 1, got 0"):
        main(["--worlds=0"])
    with pytest.raises(ConfigError, match="--trained-network checks no statements"):
        main(["--trained-network", "--statement=floor"])
    with pytest.raises(ConfigError, match=r"`seed` must be .* at least 0, got -1"):
        main(["--worlds=5", "--seed=-1", "--statement=floor"])
    (tmp_path / "file").write_text("")
    with pytest.raises(FileFormatError, match="file is a file, not a folder"):
        main([f"--figures={tmp_path / 'file'}"])


def test_figures_are_written_where_they_are_asked_for(tmp_path, capsys):
    main(["--worlds=10", "--statement=non-trivial", f"--figures={tmp_path / 'figures'}"])
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["theory-floor.svg", "theory-worse.svg"]
