"""The zoo says what is missing, and loads what is there."""

import pytest

from offramp import build, zoo
from offramp.errors import FileFormatError


def test_files_that_were_not_installed_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "files", lambda package: tmp_path)
    with pytest.raises(FileFormatError, match=r"`cifar100` is not installed: .* lacks held_out"):
        zoo.cifar100()


def test_ledgers_and_network_are_loaded(splits, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "files", lambda package: tmp_path)
    place = tmp_path / "zoo_data" / "cifar100"
    for split, ledger in splits.items():
        ledger.save(place / split)
    network = build("convnet", num_classes=10, image_size=16)
    network.save(place / "network")
    found = zoo.cifar100()
    assert len(found["val"]) == len(splits["val"])
    assert found["network"].fingerprint() == network.fingerprint()
