"""The real CIFAR-100, PACS and SST-2, where OFFRAMP_DATA has them."""

import os
from pathlib import Path

import pytest
import torch

from offramp.data import load

from .conftest import count_letters

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def _only_where_they_are(request):
    name = request.getfixturevalue("name")
    root = os.environ.get("OFFRAMP_DATA")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"OFFRAMP_DATA has no {name}")


def whole(data, count=500):
    index = torch.linspace(0, len(data) - 1, count).long()
    return data.batch(index)


@pytest.mark.parametrize("name", ["cifar100"])
def test_cifar100(name):
    splits = load(name)
    assert [len(data) for data in splits.values()] == [40_000, 5_000, 5_000, 10_000]
    assert splits.test.sample_ids == [f"test/{row}" for row in range(10_000)]
    assert splits.test.num_classes == 100 and splits.test.class_names[0] == "apple"
    assert splits.test.labels.bincount().tolist() == [100] * 100
    inputs, _ = whole(splits.train)
    assert inputs.shape == (500, 3, 32, 32)
    assert inputs.mean().abs() < 0.1 and 0.9 < inputs.std() < 1.1
    # Recorded: these are the splits that published figures belong to
    assert splits.fingerprint == "ad41a1321c0043ab"


@pytest.mark.parametrize("name", ["pacs"])
def test_pacs(name):
    sizes = {"art_painting": 2048, "cartoon": 2344, "sketch": 3929}
    home = load(name)
    for domain, size in sizes.items():
        splits = load(name, domain=domain)
        assert len(splits.test) == size
        assert splits.train.sample_ids == home.train.sample_ids
        assert whole(splits.test, 20)[0].shape == (20, 3, 96, 96)
    assert sum(len(data) for data in home.values()) == 1670
    assert home.test.num_classes == 7


@pytest.mark.parametrize("name", ["sst2"])
def test_sst2(name):
    splits = load(name, tokenizer=count_letters)
    assert splits.test.class_names == ["negative", "positive"]
    assert len(splits.held_out) == len(splits.val) == (len(splits.train) + 2 * 692) // 10
    inputs, labels = whole(splits.val, 40)
    assert inputs["input_ids"].shape[0] == 40 and set(labels.tolist()) == {0, 1}
