"""An experiment goes from data to a page; a second run does nothing; a change repeats its part."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from offramp.errors import ConfigError, DataError, FileFormatError
from offramp_paper.experiments import domain_shift, strong_networks, topk_ablation
from offramp_paper.experiments.network import Network
from offramp_paper.experiments.run import Options, Run

from . import tiny
from .tiny import tiny_run

WHOLE = ["training", *["recording"] * 3, "comparing"]


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def files(folder):
    """Every file and when it was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_run_goes_from_data_to_a_page(finished):
    folder, done = finished
    assert done == WHOLE
    page = (folder / "out" / "report.html").read_text()
    for words in ("<h1>Tiny (small scale)</h1>", "Paper and measured here", "73.27 ± 0.05"):
        assert words in page
    assert "data:image/png" in page, "samples that no exit gets right are pictured"
    about = json.loads((folder / "out" / "study.json").read_text())
    assert about["about"].startswith("A study. It repeats the paper's tab:additional_results")
    assert about["command"] == "offramp x"
    assert about["networks"]["tiny"]["config"]["epochs"] == 2
    assert about["networks"]["tiny"]["config"]["weight_decay"] == 0.05, "defaults, too"
    assert about["recorded on"] == {"tiny": "cpu, float32"}
    assert {"python", "torch", "offramp"} <= about["versions"].keys()
    (run,) = (folder / "networks").iterdir()
    assert {"network", "ledgers", "history.jsonl"} <= {path.name for path in run.iterdir()}


def test_a_second_run_does_nothing(copy):
    before = files(copy)
    assert tiny_run(copy) == []
    assert files(copy) == before


@pytest.mark.parametrize(
    ("changed", "repeated"),
    [
        ({"title": "Another"}, []),
        ({"methods": ("baseline", "temperature")}, ["comparing"]),
        ({"resamples": 21}, ["comparing"]),
        ({"out": "other"}, ["comparing"]),  # the network is shared
        ({"log_odds": False}, ["comparing"]),
        ({"epochs": 1}, WHOLE),
        ({"limit": 120}, WHOLE),
        ({"seed": 1}, WHOLE),
    ],
    ids=str,
)
def test_a_change_repeats_only_what_depends_on_it(copy, changed, repeated):
    page = copy / "out" / "report.html"
    before = page.read_bytes()
    assert tiny_run(copy, **changed) == repeated
    assert "out" in changed or page.read_bytes() != before


def test_a_result_that_was_damaged_is_made_again(copy):
    (copy / "out" / "report.html").write_text("short")
    assert tiny_run(copy) == []
    assert (copy / "out" / "report.html").stat().st_size > 10_000
    (copy / "out" / "tiny" / "comparison.json").unlink()
    assert tiny_run(copy) == ["comparing"]


def test_two_processes_share_a_run_and_one_of_them_writes(tmp_path):
    pytest.importorskip("accelerate")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ended = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", tiny.__file__, tmp_path],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("report: ") == 1
    assert ended.stderr.count("training in ") == 1
    assert tiny_run(tmp_path) == [], "what they left behind is whole"


def test_only_some_networks_and_the_options_are_taken(options):
    photo = Options(**{**vars(options), "only": ("photo",), "epochs": 2, "seed": 3, "limit": 2})
    networks = {"small": [tiny.TINY, replace(tiny.TINY, name="photo")]}
    (network,) = Run("x", photo).networks(networks)
    assert (network.name, network.config.epochs, network.config.seed) == ("photo", 2, 3)
    splits = Run("x", photo).splits(network)
    assert [len(splits[name]) for name in splits] == [2] * 4
    assert splits.val[1][1] == splits.val.labels[1]
    with pytest.raises(IndexError):
        splits.val[2]


@pytest.mark.parametrize(
    ("given", "networks", "error", "message"),
    [
        ({"only": ("tow",)}, tiny.NETWORKS, ConfigError, "has no network `tow`"),
        ({"only": ("tinny",)}, tiny.NETWORKS, ConfigError, "did you mean `tiny`"),
        ({"epochs": 0}, tiny.NETWORKS, ConfigError, "--epochs must be at least 1, got 0"),
        ({"seeds": 0}, tiny.NETWORKS, ConfigError, "--seeds must be at least 1, got 0"),
        ({"device": "gpu"}, tiny.NETWORKS, ConfigError, "`device` must be auto or one of"),
        ({"limit": 9}, topk_ablation.NETWORKS, ConfigError, "would change nothing: the ledgers"),
        ({"scale": "paper"}, strong_networks.NETWORKS, ConfigError, "has the scale small alone"),
        (
            {},
            strong_networks.NETWORKS,
            FileFormatError,
            "there are no ledgers at .*lite0/ledgers: write them with `offramp record`, and set",
        ),
        (
            {},
            {"small": [tiny.TINY, replace(tiny.TINY, name="b", settings={"colour": 3})]},
            DataError,
            "nothing was started: `convnet` does not take these settings",
        ),
        (
            {"scale": "paper"},
            {"paper": [*domain_shift.NETWORKS["paper"], *topk_ablation.NETWORKS["paper"]]},
            DataError,
            "nothing was started: .*`domainnet`.*hf download.*`tiny-imagenet`",
        ),
    ],
)
def test_what_is_wrong_or_missing_is_named_at_once(
    options, given, networks, error, message, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    with pytest.raises(error, match=message):
        run = Run("x", Options(**{**vars(options), **given}))
        for network in run.networks(networks):
            run.record(network)
    assert list(tmp_path.iterdir()) == [], "nothing was trained"


def test_recorded_ledgers_are_compared_and_other_logits_are_another_comparison(
    splits, options, tmp_path, monkeypatch
):
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    for split, ledger in splits.items():
        ledger.save(tmp_path / "mine" / split)
    run = tiny.Noted("x", options)
    stored = Network("mine", "Mine", ledgers="mine")
    for _ in range(2):
        run.compare(run.record(stored), ["baseline"])
    assert run.done == ["comparing"]
    splits["test"].take(range(500)).save(tmp_path / "mine" / "test")
    found = run.compare(run.record(stored), ["baseline"])
    assert run.done == ["comparing"] * 2
    assert found.comparison.setting["samples"]["test"] == 500
