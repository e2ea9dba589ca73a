"""Folders on disk: damage is noticed, links are not followed, nothing is left behind."""

import json
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offramp import Ledger, Policy, storage, synthetic
from offramp.errors import FileFormatError
from offramp.networks import EarlyExitNetwork, build
from offramp.scorers import MaxProbability
from offramp.storage import read_folder, sweep, verify, write_folder
from offramp.studies.cache import declare_done, is_whole
from offramp.training.checkpoint import Checkpoints, Place


def make_policy(folder):
    ledgers = synthetic.ledgers(seed=0, samples=60)
    Policy(MaxProbability()).fit(ledgers["held_out"]).tune(ledgers["val"]).save(folder)


MAKERS = {
    "ledger": lambda folder: synthetic.ledgers(seed=0, samples=60)["val"].save(folder),
    "policy": make_policy,
    "network": lambda folder: build("convnet", num_classes=3, image_size=16).save(folder),
    "checkpoint": lambda folder: Checkpoints(folder.parent, {}).save(
        Place(), {}, {"network.weight": torch.randn(8)}
    ),
}
LOADERS = {
    "ledger": Ledger.load,
    "policy": Policy.load,
    "network": EarlyExitNetwork.load,
    "checkpoint": lambda folder: Checkpoints(folder.parent, {}).load(),
}


@pytest.fixture(params=MAKERS)
def kind(request):
    return request.param


@pytest.fixture
def saved(kind, tmp_path):
    folder = tmp_path / "checkpoint"
    MAKERS[kind](folder)
    return folder


def tensor_file(folder):
    (path,) = folder.glob("*.safetensors")
    return path


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_one_flipped_bit_is_noticed_and_the_file_named(saved, kind, place, bit):
    path = tensor_file(saved)
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[int(place * len(content))] ^= 1 << bit
    path.write_bytes(damaged)
    with pytest.raises(FileFormatError, match=rf"{path.name} is damaged.*good copy"):
        LOADERS[kind](saved)
    path.write_bytes(content)
    LOADERS[kind](saved)


def test_folders_without_a_checksum_still_load(saved, kind):
    path = saved / f"{kind}.json"
    meta = json.loads(path.read_text())
    del meta["tensors"]["sha256"]
    path.write_text(json.dumps(meta))
    LOADERS[kind](saved)
    assert [(file.damage, file.has_checksum) for file in verify(saved)] == [(None, False)]


def test_large_tensors_are_left_to_verify(tmp_path, monkeypatch):
    write_folder(tmp_path, "ledger", 1, {}, {"a": torch.ones(4)})
    path = tensor_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(storage, "CHECKED_BYTES", 0)
    assert read_folder(tmp_path, "ledger", 1)[1]["a"].tolist() != [1, 1, 1, 1]
    (file,) = verify(tmp_path)
    assert f"{path} is damaged" in file.damage


def test_links_out_of_the_folder_are_not_followed(saved, kind, tmp_path):
    path = tensor_file(saved)
    moved = tmp_path / "elsewhere.safetensors"
    path.rename(moved)
    path.symlink_to(moved)
    with pytest.raises(FileFormatError, match="symbolic link out of its folder"):
        LOADERS[kind](saved)
    assert "symbolic link" in next(verify(saved)).damage


def test_links_within_the_folder_and_to_whole_folders_are_followed(saved, kind, tmp_path):
    path = tensor_file(saved)
    path.rename(saved / "other.safetensors")
    path.symlink_to("other.safetensors")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "checkpoint").symlink_to(saved)
    LOADERS[kind](tmp_path / "links" / "checkpoint")


def test_a_damaged_result_in_the_cache_is_not_taken_for_whole(tmp_path):
    files = [tmp_path / "comparison.json", tmp_path / "ledger"]
    files[0].write_text('{"value": 1.25}')
    synthetic.ledgers(seed=0, samples=60)["val"].save(files[1])
    declare_done(tmp_path, files, {}, 0.0)
    assert is_whole(tmp_path)
    assert sorted(file.path.suffix for file in verify(tmp_path)) == [
        ".json",
        ".json",
        ".safetensors",
    ]
    files[0].write_text('{"value": 1.75}')
    assert not is_whole(tmp_path)
    assert [file.path for file in verify(tmp_path) if file.damage] == [files[0]]


def test_results_that_an_older_version_cached_are_whole(tmp_path):
    (tmp_path / "comparison.json").write_text("{}")
    done = {"settings": {}, "files": {"comparison.json": 2}}
    (tmp_path / "done.json").write_text(json.dumps(done))
    assert is_whole(tmp_path)


def test_what_a_killed_run_left_is_swept_and_nothing_else(tmp_path):
    write_folder(tmp_path, "checkpoint", 1, {}, {"a": torch.ones(1)})
    kept = {path.name for path in tmp_path.iterdir()} | {"mine.tmp", ".hidden", "a.safetensors"}
    left = {".checkpoint.json.0123abcd.tmp", "checkpoint-0123abcd.safetensors"}
    for name in {*kept, *left}:
        (tmp_path / name).touch()
    write_folder(tmp_path, "checkpoint", 1, {}, {"a": torch.ones(2)})
    sweep(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert not names & left
    assert {"mine.tmp", ".hidden", "a.safetensors", "checkpoint.json"} <= names
    assert len(read_folder(tmp_path, "checkpoint", 1)[1]["a"]) == 2


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, '{"version": ' + "9" * 10_000 + "}", "\udce4"]
)
def test_what_is_no_json_is_said_to_be_none(tmp_path, text):
    (tmp_path / "policy.json").write_bytes(os.fsencode(text))
    with pytest.raises(FileFormatError, match=r"policy\.json is not valid JSON"):
        Policy.load(tmp_path)
