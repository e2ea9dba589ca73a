"""Folders on disk: damage is noticed, links are not followed, nothing is left behind."""

import json
import math
import os
import re
from dataclasses import asdict, dataclass, replace
from typing import Literal
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt
import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offramp import Ledger, Policy, files, synthetic
from offramp.errors import FileFormatError, OfframpError
from offramp.files import (
    Number,
    near_path,
    plain,
    read_folder,
    read_json,
    restore,
    sweep,
    write_folder,
    write_sealed,
)
from offramp.ledger import reading
from offramp.made import is_whole, once
from offramp.networks import EarlyExitNetwork, build
from offramp.report.inspect import whole_files
from offramp.scorers import MaxProbability
from offramp.training.checkpoint import Place, RunFiles, TrainHistory


def make_policy(folder):
    ledgers = synthetic.ledgers(seed=0, samples=60)
    Policy(MaxProbability()).fit(ledgers["held_out"]).tune(ledgers["val"]).save(folder)


MAKERS = {
    "ledger": lambda folder: synthetic.ledgers(seed=0, samples=60)["val"].save(folder),
    "policy": make_policy,
    "network": lambda folder: build("convnet", num_classes=3, image_size=16).save(folder),
    "checkpoint": lambda folder: RunFiles(folder.parent, {}).save(
        Place(), TrainHistory(), {"network.weight": torch.randn(8)}
    ),
}
LOADERS = {
    "ledger": Ledger.load,
    "policy": Policy.load,
    "network": EarlyExitNetwork.load,
    "checkpoint": lambda folder: RunFiles(folder.parent, {}).load(),
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
    write_sealed(path, meta)
    LOADERS[kind](saved)
    assert [file.sha256 for file in whole_files(saved).values()] == [None]


def test_large_tensors_are_left_to_inspect(tmp_path, monkeypatch):
    write_folder(tmp_path, "ledger", 1, {}, {"a": np.ones(4)})
    path = tensor_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(files, "CHECKED_BYTES", 0)
    assert read_folder(tmp_path, "ledger", 1)[1]["a"].tolist() != [1, 1, 1, 1]
    with pytest.raises(FileFormatError, match=f"{path} is damaged"):
        whole_files(tmp_path)


ARRAYS = {
    "single": np.array(1.5),
    "none": np.zeros((0, 3), np.float16),
    "across": np.arange(6.0).reshape(2, 3).T,
    "whole": np.arange(3, dtype=np.int16),
    "true": np.array([True, False]),
}


@pytest.mark.parametrize("names", [list(ARRAYS), ["none"]])
def test_arrays_and_tensors_are_the_same_in_a_folder(tmp_path, names):
    arrays = {name: ARRAYS[name] for name in names}
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    for content in (arrays, tensors):
        write_folder(tmp_path, "ledger", 1, {}, content)
        _, found = read_folder(tmp_path, "ledger", 1)
        _, as_tensors = read_folder(tmp_path, "ledger", 1, tensors=True)
        for name, array in arrays.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert np.array_equal(found[name], array)
            assert torch.equal(as_tensors[name], tensors[name])


def test_bfloat16_is_read_as_float32(tmp_path):
    tensor = torch.tensor([[1.0, -3.140625], [1e-30, 3e38]]).bfloat16()
    write_folder(tmp_path, "network", 1, {}, {"a": tensor})
    _, found = read_folder(tmp_path, "network", 1)
    assert found["a"].dtype == np.float32
    assert np.array_equal(found["a"], tensor.float().numpy())


def test_links_out_of_the_folder_are_not_followed(saved, kind, tmp_path):
    path = tensor_file(saved)
    moved = tmp_path / "elsewhere.safetensors"
    path.rename(moved)
    path.symlink_to(moved)
    with pytest.raises(FileFormatError, match="symbolic link out of its folder"):
        LOADERS[kind](saved)
    with pytest.raises(FileFormatError, match="symbolic link"):
        whole_files(saved)


def test_links_within_the_folder_and_to_whole_folders_are_followed(saved, kind, tmp_path):
    path = tensor_file(saved)
    path.rename(saved / "other.safetensors")
    path.symlink_to("other.safetensors")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "checkpoint").symlink_to(saved)
    LOADERS[kind](tmp_path / "links" / "checkpoint")


def test_a_damaged_result_is_not_taken_for_whole(tmp_path):
    files = [tmp_path / "comparison.json", tmp_path / "ledger"]

    def make(place):
        files[0].write_text('{"value": 1.25}')
        synthetic.ledgers(seed=0, samples=60)["val"].save(files[1])

    once(tmp_path, 1, make)
    assert is_whole(tmp_path, 1)
    assert sorted(path.suffix for path in whole_files(tmp_path)) == [
        ".json",
        ".json",
        ".safetensors",
    ]
    files[0].write_text('{"value": 1.75}')
    assert not is_whole(tmp_path, 1)
    with pytest.raises(FileFormatError, match=f"{files[0]} is damaged"):
        whole_files(tmp_path)


def test_what_a_killed_run_left_is_swept_and_nothing_else(tmp_path):
    write_folder(tmp_path, "checkpoint", 1, {}, {"a": np.ones(1)})
    kept = {path.name for path in tmp_path.iterdir()} | {"mine.tmp", ".hidden", "a.safetensors"}
    left = {".checkpoint.json.0123abcd.tmp", "checkpoint-0123abcd.safetensors"}
    for name in {*kept, *left}:
        (tmp_path / name).touch()
    write_folder(tmp_path, "checkpoint", 1, {}, {"a": np.ones(2)})
    sweep(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert not names & left
    assert {"mine.tmp", ".hidden", "a.safetensors", "checkpoint.json"} <= names
    assert len(read_folder(tmp_path, "checkpoint", 1)[1]["a"]) == 2


def places(value, path=()):
    """The paths to everything inside of JSON values."""
    yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


def test_a_number_that_was_changed_by_hand_is_noticed_and_can_be_accepted(saved, kind):
    path = saved / f"{kind}.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta))  # another layout is the same content
    LOADERS[kind](saved)
    path.write_text(json.dumps({**meta, "note": 1}))
    with pytest.raises(
        FileFormatError, match=rf"{path} was changed after it .*inspect {saved} --accept"
    ):
        LOADERS[kind](saved)
    with pytest.raises(FileFormatError, match="was changed after it"):
        whole_files(saved)
    assert files.accept(saved) == [path] and files.accept(saved) == []
    LOADERS[kind](saved)
    path.write_text(json.dumps({key: value for key, value in meta.items() if key != "sha256"}))
    with pytest.raises(FileFormatError, match="has no checksum since it was written"):
        LOADERS[kind](saved)
    assert files.accept(saved) == [path]
    LOADERS[kind](saved)


def test_files_of_others_are_not_accepted_and_stay(tmp_path):
    (tmp_path / "mine.json").write_text('{"format": "mine"}')
    assert files.accept(tmp_path) == []
    assert (tmp_path / "mine.json").read_text() == '{"format": "mine"}'


def test_links_in_a_circle_are_named(saved, kind):
    path = tensor_file(saved)
    path.unlink()
    path.symlink_to(path.name)
    with pytest.raises(FileFormatError, match=f"{path.name} is missing"):
        LOADERS[kind](saved)


def test_a_fingerprint_is_of_costs_and_thresholds_and_not_of_the_chosen_point():
    ledgers = synthetic.ledgers(seed=0, samples=60)
    policy = Policy(MaxProbability()).fit(ledgers["held_out"]).tune(ledgers["val"])
    before = policy.fingerprint()
    assert policy.at(budget=0.5).fingerprint() == policy.at(budget=1.0).fingerprint() == before
    dearer = replace(policy.cost_model, stages=2 * policy.cost_model.stages)
    policy.cost_model = dearer
    assert policy.fingerprint() != before


ODD = [None, True, -1, 10**30, 1.5, "", "x", [], [1], ["x"], {}, {"a": 1}, [[1, 2], [3]], 2**40]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_odd_values_in_a_description_give_an_error_of_our_own(saved, kind, data):
    path = saved / f"{kind}.json"
    text = path.read_text()
    meta = json.loads(text)
    *parents, last = data.draw(st.sampled_from([each for each in places(meta) if each]))
    table = meta
    for key in parents:
        table = table[key]
    table[last] = data.draw(st.sampled_from(ODD))
    write_sealed(path, meta)
    try:
        LOADERS[kind](saved)  # a harmless change may load
    except OfframpError as error:
        assert str(error)
    finally:
        path.write_text(text)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_tensors_of_another_type_or_shape_are_refused_when_a_policy_is_loaded(tmp_path, data):
    if not (tmp_path / "policy.json").exists():
        make_policy(tmp_path)
    meta, tensors = read_folder(tmp_path, "policy", 1)
    name = data.draw(st.sampled_from(sorted(tensors)))
    right = tensors[name]
    odd = [right[None], np.zeros_like(right, np.float16), right[:0]]
    changed = data.draw(st.sampled_from(odd))
    rest = {key: value for key, value in meta.items() if key not in ("format", "version")}
    del rest["tensors"]
    folder = write_folder(tmp_path / "odd", "policy", 1, rest, {**tensors, name: changed})
    if name.startswith("seen") and changed.dtype == np.int64 and changed.ndim == 1:
        return  # a step that has seen nothing
    with pytest.raises(FileFormatError, match="not a complete policy"):
        Policy.load(folder)


@dataclass
class Inner:
    seed: int
    share: Number = 0.5


@dataclass
class Outer:
    name: str
    inner: list[Inner]
    scores: npt.NDArray[np.float64]
    kind: Literal["a", "b"] | None = None


WHOLE = {"name": "x", "inner": [{"seed": 3}], "scores": [[1, None], ["-inf", 2.5]]}


def test_values_come_back_as_their_types_say():
    found = restore(Outer, {**WHOLE, "of a later version": 1})
    assert (found.name, found.inner, found.kind) == ("x", [Inner(3, 0.5)], None)
    np.testing.assert_array_equal(found.scores, [[1, np.nan], [-np.inf, 2.5]])
    assert found.scores.dtype == np.float64
    again = restore(Outer, plain(asdict(found)))
    assert again.inner == found.inner
    np.testing.assert_array_equal(again.scores, found.scores)
    assert restore(Number, "inf") == math.inf and math.isnan(restore(Number, None))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": None}, "`name` must be a text, got nothing"),
        ({"inner": [{"seed": 1}, {"seed": "two"}]}, "`inner[1].seed` must be a whole number, got"),
        ({"inner": [{"seed": 1, "share": "x"}]}, "`inner[0].share` must be a number, got 'x'"),
        ({"inner": [{}]}, "`inner[0].seed` is missing"),
        ({"inner": {"seed": 1}}, "`inner` must be a list, got an object"),
        ({"kind": "c"}, "`kind`: Invalid enum value 'c'"),
        ({"kind": True}, "`kind` must be a text or nothing, got true or false"),
        ({"scores": [[1, 2], [3]]}, "`scores` must be rows of numbers, all of one length, got [["),
        (
            {"scores": [1, "x"]},
            "`scores` must be rows of numbers, all of one length, got [1, 'x']",
        ),
    ],
)
def test_a_value_of_another_type_is_named_with_its_place(changes, sentence):
    with pytest.raises(FileFormatError, match=re.escape(f"a.json: {sentence}")):
        restore(Outer, {**WHOLE, **changes}, "a.json")


def test_a_document_of_another_type_is_named():
    with pytest.raises(FileFormatError, match=r"^`name` is missing"):
        restore(Outer, {})
    with pytest.raises(FileFormatError, match=r"^the content must be an object, got a list"):
        restore(Outer, [])


def test_whole_numbers_beyond_64_bits_are_refused(tmp_path):
    path = tmp_path / "a.json"
    for text in (str(2**63), f"[-{2**70}]"):
        path.write_text(text)
        with pytest.raises(FileFormatError, match="is more than any count here"):
            read_json(path)
    path.write_text(f"[{2**63 - 1}]")
    assert read_json(path) == [2**63 - 1]


def test_a_missing_path_is_named_with_a_similar_one(tmp_path):
    (tmp_path / "runs" / "policy").mkdir(parents=True)
    for missing, similar in (("runs/polcy", "runs/policy"), ("rusn/policy", "runs")):
        assert near_path(tmp_path / missing) == f"; did you mean {tmp_path / similar}?"
        with pytest.raises(FileFormatError, match=f"there is nothing; did you mean {tmp_path}"):
            Policy.load(tmp_path / missing)
    assert near_path(tmp_path / "elsewhere") == ""


def test_archives_that_declare_more_than_they_hold_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    header = np.lib.format.magic(1, 0)
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 8, 1000)}".ljust(117)
    with ZipFile(path, "w") as archive:
        archive.writestr(
            "logits.npy", header + (118).to_bytes(2, "little") + text + b"\n" + b"0" * 64
        )
    with pytest.raises(FileFormatError, match="declares 32,000,000,000 bytes, and the file has"):
        Ledger.load(path, split="val")


def test_archives_that_unpack_to_far_more_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, logits=np.zeros((1000, 10, 100), np.float32))
    monkeypatch.setattr(reading, "MOST_UNPACKED", 1 << 20)
    with pytest.raises(FileFormatError, match="would unpack from"):
        Ledger.load(path, split="val")


def test_the_folder_of_a_result_that_is_a_file_is_named(tmp_path):
    (tmp_path / "made").write_text("")
    with pytest.raises(FileFormatError, match="made is a file, not a folder"):
        once(tmp_path / "made", 1, lambda place: None)


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, '{"version": ' + "9" * 10_000 + "}", "\udce4"]
)
def test_what_is_no_json_is_said_to_be_none(tmp_path, text):
    (tmp_path / "policy.json").write_bytes(os.fsencode(text))
    with pytest.raises(FileFormatError, match=r"policy\.json is not valid JSON"):
        Policy.load(tmp_path)


def test_a_full_disk_is_an_error_of_the_system(tmp_path, monkeypatch):
    def full(tensors, path):
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(OSError, match=r"cannot write .*: I/O error: No space left on device"):
        files.write_folder(tmp_path / "made", "policy", 1, {}, {"a": np.zeros(2)})


def test_nothing_is_written_among_somebodys_own_files(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(FileFormatError, match=r"holds other things \(thesis.tex\) and no export"):
        files.check_alone(tmp_path, "export")
    files.check_alone(tmp_path / "new", "export")
    (tmp_path / "export.json").write_text('{"format": "offramp-export"}')
    files.check_alone(tmp_path, "export")


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(FileFormatError, match=r"cannot write .*a\.json: it is a folder"):
        files.write_text(tmp_path / "a.json", "")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
