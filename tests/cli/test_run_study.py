"""The sub-commands run, studies, study and demo, as a user runs them."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from offramp.cli.app import app
from offramp.errors import ConfigError


def offramp(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)


def test_run_prints_tables_and_the_report_and_then_does_nothing(tiny, tmp_path):
    command = ("run", tiny, "--out", tmp_path / "out", "--cache", tmp_path / "cache")
    plan = offramp(*command, "--dry-run")
    assert "6 of 6 steps to do" in plan.stdout
    assert f"{tmp_path / 'out'}/: report.html" in plan.stdout
    first = offramp(*command, "--set", "train.epochs=1")
    assert first.exit_code == 0
    assert "Temperature scaling" in first.stdout
    assert f"report: {tmp_path / 'out' / 'report.html'}" in first.stdout
    plan = offramp(*command, "--set", "train.epochs=1", "--dry-run")
    assert "0 of 6 steps to do" in plan.stdout
    assert "done   network     convnet on cluttered-digits" in plan.stdout


def test_set_takes_toml_values_and_texts(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"`epochs` must be a whole number, got 'few'"):
        offramp("run", tiny, "--set", "train.epochs=few", "--dry-run")
    with pytest.raises(ConfigError, match=r"--set takes KEY=VALUE, such as .*, got 'x'"):
        offramp("run", tiny, "--set", "x", "--dry-run")
    result = offramp(
        "run", tiny, "--set", "compare.budgets=[0.3]", "--cache", tmp_path, "--dry-run"
    )
    assert result.exit_code == 0


def test_studies_lists_every_study(shipped, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    listed = offramp("studies", "--cache", tmp_path).stdout
    assert "metric-validity" in listed
    assert "    paper: tiny-imagenet, resnet34 (not run; data missing: tiny-imagenet)" in listed


def test_all_studies_are_read_in_a_fresh_process(tmp_path):
    """Where nothing has registered `auto` yet."""
    command = [sys.executable, "-m", "offramp", "studies", "--cache", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "beyond" in run.stdout


def test_a_study_runs_by_name(shipped, tmp_path):
    command = ("study", "history-ablation", "--out", tmp_path / "out", "--cache", tmp_path / "c")
    quick = ("--set", "compare.seeds=1", "--set", "compare.resamples=20")
    result = offramp(*command, *quick, "--set", "corrector.epochs=1")
    assert result.exit_code == 0
    for words in ("Paper and measured here", "50.82 ± 0.03", "EEFP, no history against temp"):
        assert words in result.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert "small scale" in page
    assert "tab:history_ablation_with_stds" in page
    with pytest.raises(ConfigError, match="there is no study `histry-ablation`; did you mean"):
        offramp("study", "histry-ablation")
