"""Two processes run one study, and end."""

import subprocess
import sys

import pytest

from offramp.studies import run


def test_two_processes_run_a_study(tiny, tmp_path):
    pytest.importorskip("accelerate")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    folders = ["--out", tmp_path / "out", "--cache", tmp_path / "cache"]
    ended = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", "-m", "offramp", "run", tiny, *folders],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("report: ") == 1
    assert ended.stderr.count("[1/6] network: ") == 1
    assert "waiting for another process" not in ended.stderr
    # What they left behind is whole: one process finds nothing left to do.
    assert run(tiny, tmp_path / "out", cache=tmp_path / "cache", progress=False).done == []
