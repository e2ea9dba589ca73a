"""The four splits are disjoint, fixed by the seed, and the same in every process."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offramp.data import MixtureData, Splits, load, mixture
from offramp.data.splits import SPLITS, Data, assign_splits
from offramp.errors import SplitError


@given(st.integers(4, 60), st.integers(1, 5), st.integers(1, 5), st.integers(0, 9))
def test_dealing_gives_every_sample_to_one_split(count, held_out, val, seed):
    ids = [f"train/{row}" for row in range(count)]
    if held_out + val >= count:
        return
    dealt = assign_splits(ids, {"held_out": held_out, "val": val}, seed)
    assert sorted(chain(*dealt.values())) == list(range(count))
    assert (len(dealt["held_out"]), len(dealt["val"])) == (held_out, val)


def test_dealing_does_not_depend_on_the_order_of_the_ids():
    ids = [f"image {index}" for index in range(30)]
    there = assign_splits(ids, {"val": 10}, seed=0)
    back = assign_splits(ids[::-1], {"val": 10}, seed=0)
    assert {ids[at] for at in there["val"]} == {ids[::-1][at] for at in back["val"]}


def test_another_seed_deals_otherwise():
    ids = [str(index) for index in range(100)]
    assert assign_splits(ids, {"val": 50}, seed=0) != assign_splits(ids, {"val": 50}, seed=1)


def test_splits_are_the_same_in_every_process_and_on_every_machine(cifar_like):
    assert load("cifar10", held_out=5, val=5).fingerprint == "61617a6c809c9aaa"


def test_too_large_splits_are_refused():
    with pytest.raises(SplitError, match="held_out=3, val=2 leave none of the 5 samples"):
        assign_splits(list("abcde"), {"held_out": 3, "val": 2}, seed=0)


def test_splits_that_share_a_sample_are_refused():
    splits = mixture(sizes=dict.fromkeys(SPLITS, 4))
    leaking = {**splits, "test": splits["val"]}
    with pytest.raises(SplitError, match="sample val-0 is in val and in test"):
        Splits(name="leaky", seed=0, **leaking)


def test_splits_are_a_mapping_by_name():
    splits = load("mixture")
    assert list(splits) == list(SPLITS) and len(splits) == 4
    assert all(data.split == name for name, data in splits.items())
    with pytest.raises(KeyError):
        splits["dev"]


@pytest.mark.parametrize("name", ["mixture", "cluttered-digits"])
def test_every_split_keeps_the_contract(name, monkeypatch):
    monkeypatch.setattr("offramp.data.embedded.DIGIT_SIZES", dict.fromkeys(SPLITS, 100))
    for split, data in load(name, held_out=20, val=20).items():
        assert isinstance(data, Data)
        assert data.split == split
        assert len(data) == len(data.sample_ids) == len(set(data.sample_ids)) == len(data.labels)
        inputs, labels = data.batch(torch.tensor([3, 0]))
        assert inputs.dtype == torch.float32 and labels.dtype == torch.int64
        one, label = data[3]
        assert torch.equal(one, inputs[0]) and label == labels[0]
        assert data.num_classes > int(data.labels.max())


def test_a_fingerprint_is_that_of_the_samples_in_each_split():
    splits = mixture(seed=0, sizes={"val": 7})
    assert mixture(seed=0, sizes={"val": 7}).fingerprint == splits.fingerprint
    assert mixture(seed=0, sizes={"val": 8}).fingerprint != splits.fingerprint


def test_splits_work_in_a_data_loader():
    data = load("mixture").val
    assert isinstance(data, MixtureData)
    inputs, labels = next(iter(torch.utils.data.DataLoader(data, batch_size=8)))
    assert inputs.shape == (8, 2) and labels.shape == (8,)
