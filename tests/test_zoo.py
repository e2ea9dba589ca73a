"""The shipped network and ledgers: whole, of one origin, and what their label says."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import offramp
from offramp import zoo
from offramp.data import load
from offramp.errors import FileFormatError

FOLDER = Path(zoo.__file__).parent / "zoo_data"


@pytest.fixture(scope="module")
def shipped():
    return zoo.cifar100()


def accuracies(ledger):
    return 100 * (ledger.logits.argmax(2) == ledger.labels[:, None]).mean(axis=0)


def test_sizes_are_those_that_are_promised(shipped):
    sizes = {split: len(shipped[split]) for split in ("held_out", "val", "test")}
    assert sizes == {"held_out": 1500, "val": 1500, "test": 2000}
    assert all(shipped[split].dtype == np.float16 for split in sizes)
    assert 7 <= shipped["test"].num_exits <= 10


def test_all_of_it_is_small_enough_for_a_package():
    total = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    assert total <= 13e6


def test_ledgers_need_no_torch():
    code = "import sys; from offramp import zoo; print(zoo.cifar100(), 'torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "network" not in found.stdout and found.stdout.endswith("False\n")


def test_the_network_is_loaded_once(shipped):
    assert shipped["network"] is shipped["network"]
    assert set(shipped) == {"held_out", "val", "test"}
    with pytest.raises(KeyError, match="train"):
        _ = shipped["train"]


def test_the_ledgers_are_of_the_shipped_network(shipped):
    network = shipped["network"]
    assert {shipped[split].network for split in ("held_out", "val", "test")} == {
        network.fingerprint()
    }
    assert shipped["test"].cost_model == offramp.networks.count_macs(network)


def test_no_sample_is_in_two_splits(shipped):
    ids = [name for split in ("held_out", "val", "test") for name in shipped[split].sample_ids]
    assert len(ids) == len(set(ids)) == 5_000


def test_the_label_says_what_the_ledgers_show(shipped):
    about = zoo.about_cifar100()
    for split, samples in about["samples_behind_accuracy"].items():
        said = np.array(about["accuracy"][split])
        shares = said / 100
        # The label speaks of all samples, the ledger holds some of them.
        error = 100 * np.sqrt(shares * (1 - shares) / len(shipped[split]))
        assert samples > len(shipped[split])
        assert (np.abs(accuracies(shipped[split]) - said) < 4 * error).all()


def test_a_whole_comparison_needs_nothing_else(shipped):
    table = offramp.compare(**shipped, methods=["baseline", "temperature"], resamples=50)
    assert table["temperature"].figures["ece"].value < table["baseline"].figures["ece"].value


def test_ledgers_are_a_modest_part_of_a_package():
    sizes = [path.stat().st_size for path in FOLDER.rglob("ledger-*.safetensors")]
    assert len(sizes) == 3
    assert sum(sizes) <= 8e6


@pytest.mark.real
def test_the_thin_network_answers_real_images():
    if not (Path(os.environ.get("OFFRAMP_DATA") or "nowhere") / "cifar100").is_dir():
        pytest.skip("OFFRAMP_DATA has no cifar100")
    network = zoo.cifar100_thin()
    inputs, labels = load("cifar100").test.batch(torch.arange(200))
    with torch.inference_mode():
        right = network.eval()(inputs).argmax(2) == labels[:, None]
    assert network.num_exits == 9
    assert right[:, -1].double().mean() > 0.5
    assert right[:, 0].double().mean() < 0.3


def test_files_that_were_not_installed_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "files", lambda package: tmp_path)
    with pytest.raises(FileFormatError, match=r"`cifar100` is not installed: .* lacks held_out"):
        zoo.cifar100()


@pytest.mark.real
def test_recording_the_images_again_gives_the_shipped_logits(shipped):
    if not (Path(os.environ.get("OFFRAMP_DATA") or "nowhere") / "cifar100").is_dir():
        pytest.skip("OFFRAMP_DATA has no cifar100")
    data = load("cifar100", image_size=shipped["network"].example().shape[-1]).test
    rows = {name: row for row, name in enumerate(data.sample_ids)}
    some = shipped["test"].take(np.arange(64))
    inputs, labels = data.batch(torch.tensor([rows[name] for name in some.sample_ids]))
    assert np.array_equal(labels, some.labels)
    with torch.inference_mode():
        logits = shipped["network"].eval()(inputs)
    assert np.allclose(logits, some.logits, atol=0.02)
