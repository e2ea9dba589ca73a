"""`offramp theory` as a user runs it."""

import os
import subprocess
import sys

import pytest

from offramp.errors import ConfigError, FileFormatError
from offramp_paper.theory import STATEMENTS
from offramp_paper.theory.command import main


def offramp_theory(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "offramp", "theory", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"NO_COLOR": "1"},
        timeout=300,
        check=False,
    )


def assert_refused(result, *words):
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("offramp: ")]
    for word in words:
        assert word in line


@pytest.fixture(scope="module")
def some():
    return offramp_theory(
        "--worlds", 50, "--statement", "anytime-pointwise", "--statement", "canonical"
    )


def test_the_table_says_what_holds_and_what_was_tried(some):
    assert some.returncode == 0, some.stderr
    assert "canonical: canonically calibrated exits" in some.stdout
    assert "holds   50 + 36,000" in some.stdout
    assert "fails   50 + 27,000" in some.stdout
    assert "3 x 2 x 2" in some.stdout


def test_what_fails_is_shown_with_its_smallest_world(some):
    assert "at any single point, next ≤ this (exact, log loss) fails:" in some.stdout
    assert "exit 0: {0,1,2}" in some.stdout
    assert "0.1438 <= 0.05889 is false" in some.stdout


def test_worlds_can_be_left_out(capsys):
    main(["--worlds=20", "--statement=non-trivial", "--no-examples"])
    assert "is false" not in capsys.readouterr().out


def test_help_names_every_statement():
    shown = "".join(offramp_theory("--help").stdout.split())
    for name in STATEMENTS:
        assert name.replace("-", "") in shown.replace("-", "").replace("│", "")


def test_wrong_input_is_one_line_and_exit_code_two():
    assert_refused(offramp_theory("--statement", "anyhow"), "no statement 'anyhow'", "canonical")


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
