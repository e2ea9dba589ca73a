"""What steps work with: data that are cut and normalised as asked, networks, and the cache."""

import os

import pytest
import torch

from offramp.errors import ConfigError, NetworkError
from offramp.studies.cache import Cache, declare_done, digest, is_whole, read_done
from offramp.studies.context import Context, make_network
from offramp.studies.settings import DataSettings, NetworkSettings, RecordSettings
from offramp.studies.toml import filled


@pytest.fixture
def context(tmp_path):
    return Context(Cache(tmp_path / "cache"), shown=False)


def test_a_limit_takes_the_first_samples_and_keeps_what_they_are(context):
    whole = context.splits(DataSettings("cluttered-digits")).val
    few = context.splits(DataSettings("cluttered-digits", limit=7)).val
    assert len(few) == 7
    assert few.sample_ids == whole.sample_ids[:7]
    assert torch.equal(few[3][0], whole[3][0])
    inputs, labels = few.batch(torch.tensor([6, 0]))
    assert torch.equal(labels, whole.labels[[6, 0]])
    assert inputs.shape == (2, 3, 20, 20)
    with pytest.raises(IndexError):
        few[7]


def test_data_are_opened_once(context):
    data = DataSettings("mixture")
    assert context.splits(data) is context.splits(DataSettings("mixture"))


def test_images_are_normalised_as_asked(context):
    plain = context.splits(DataSettings("cluttered-digits", limit=2)).val
    settings = DataSettings("cluttered-digits", limit=2, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    raw = context.splits(settings).val[0][0]
    pixels = plain.samples.pixels[torch.tensor([0])][0]
    assert torch.allclose(raw, pixels / 255)
    other = DataSettings("mixture", mean=(0.0,), std=(1.0,))
    with pytest.raises(
        ConfigError, match="`mean` and `std` are for images, and mixture has no images"
    ):
        context.splits(other)


def test_data_on_disk_count_by_their_content(context, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    folder = tmp_path / "cifar100"
    assert context.identity(DataSettings("cifar100")) == "hub cifar100"
    assert context.identity(DataSettings("mixture")) == "embedded mixture"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "a.parquet").write_bytes(b"one")
    first = context.identity(DataSettings("cifar100"))
    os.utime(folder / "train" / "a.parquet", (1, 1))
    assert context.identity(DataSettings("cifar100")) == first, "the time is not the content"
    (folder / "train" / "a.parquet").write_bytes(b"two")
    assert context.identity(DataSettings("cifar100")) != first


def test_first_weights_follow_from_the_seed(context):
    samples = context.splits(DataSettings("cluttered-digits", limit=2)).train
    settings = NetworkSettings("convnet", exits=2, settings={"width": 4})
    one, again, other = (make_network(settings, samples, seed) for seed in (0, 0, 1))
    assert one.num_exits == 2
    assert one.fingerprint() == again.fingerprint() != other.fingerprint()


def test_exits_can_be_named(context):
    samples = context.splits(DataSettings("cluttered-digits", limit=2)).train
    settings = filled(NetworkSettings, {"name": "convnet", "exits": ["blocks.1"]}, "[network]")
    assert make_network(settings, samples, 0).exit_names == ("blocks.1", "last")


def test_pretrained_models_of_other_libraries_get_exits(context, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=5
    )
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path / "model")
    samples = context.splits(DataSettings("cluttered-digits", limit=2, image_size=32)).train
    made = make_network(NetworkSettings(str(tmp_path / "model")), samples, 0)
    assert (made.num_exits, made.num_classes) == (2, 10)
    missing = NetworkSettings(str(tmp_path / "nothing"))
    with pytest.raises(NetworkError, match="there is no network"):
        make_network(missing, samples, 0)


def test_a_folder_counts_as_done_only_while_it_is_whole(tmp_path):
    assert not is_whole(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("12345")
    declare_done(tmp_path, [tmp_path / "a"], {"x": 1}, 1.5)
    assert is_whole(tmp_path)
    assert read_done(tmp_path)["settings"] == {"x": 1}
    (tmp_path / "a" / "b.txt").write_text("1234")
    assert not is_whole(tmp_path)
    (tmp_path / "done.json").write_text("{")
    assert read_done(tmp_path) is None


def test_a_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": (1, 2), "b": None}) == digest({"b": None, "a": [1, 2]})
    assert digest({"a": 1}) != digest({"a": 1.5})


def test_numbers_are_numbers_and_lists_are_lists():
    assert filled(DataSettings, {"name": "x", "mean": [0], "std": [1]}, "[data]").mean == (0.0,)
    assert filled(RecordSettings, {}, "[record]") == RecordSettings()
