"""The state: nesting, shared leaves, and taking samples."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import Tensor

from offramp.errors import NetworkError
from offramp.networks import Shared, take
from offramp.networks.state import (
    batch_size,
    check_state,
    join,
    join_key,
    leaf_at,
    map_leaves,
    named_leaves,
    tensors,
)


def nested():
    return {
        "scales": [torch.arange(8.0).view(4, 2), torch.arange(4.0).view(4, 1)],
        "pair": (torch.arange(4), Shared(torch.ones(7))),
    }


def test_take_keeps_rows_and_structure():
    taken = take(nested(), torch.tensor([3, 0]))
    assert torch.equal(taken["scales"][0], torch.tensor([[6.0, 7.0], [0.0, 1.0]]))
    assert isinstance(taken["scales"], list)
    assert isinstance(taken["pair"], tuple)
    assert torch.equal(taken["pair"][0], torch.tensor([3, 0]))


def test_take_leaves_shared_leaves_whole():
    assert len(take(nested(), torch.tensor([1]))["pair"][1].value) == 7


def test_take_with_a_mask_is_take_with_positions():
    mask = torch.tensor([True, False, False, True])
    by_mask, by_position = take(nested(), mask), take(nested(), torch.tensor([0, 3]))
    assert torch.equal(by_mask["scales"][0], by_position["scales"][0])


def test_take_of_nobody_gives_empty_tensors():
    assert batch_size(take(nested(), torch.empty(0, dtype=torch.long))) == 0


@pytest.mark.parametrize("shape", [(5, 4, 3, 2), (5, 4, 3, 2, 2)])
def test_take_keeps_the_memory_format(shape):
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    tensor = torch.rand(shape).contiguous(memory_format=last)
    taken = take(tensor, torch.tensor([4, 2]))
    assert taken.is_contiguous(memory_format=last)
    assert torch.equal(taken, tensor[[4, 2]])


def test_take_of_a_transposed_tensor_gives_its_rows():
    tensor = torch.rand(6, 5, 4, 3).transpose(0, 2)
    assert torch.equal(take(tensor, torch.tensor([2, 1])), tensor[[2, 1]])


@pytest.mark.parametrize(
    "index", [torch.tensor([0.5]), torch.tensor([[0]]), torch.tensor([1], dtype=torch.uint8)]
)
def test_index_that_is_none_is_refused(index):
    with pytest.raises(NetworkError, match=r"`index` must be int64 positions or a bool mask"):
        take(torch.rand(3, 2), index)


def test_mask_of_another_length_is_refused():
    with pytest.raises(NetworkError, match="got 2 entries for 3 samples"):
        take(torch.rand(3, 2), torch.tensor([True, False]))


def test_named_tuple_stays_one():
    pair = namedtuple("pair", "left right")(torch.arange(3), torch.arange(3) + 3)
    assert torch.equal(take(pair, torch.tensor([1])).right, torch.tensor([4]))


def test_leaf_that_is_no_tensor_must_be_shared():
    with pytest.raises(NetworkError, match=r"wrap anything else in Shared\(...\), got int"):
        take({"size": 4}, torch.tensor([0]))
    with pytest.raises(NetworkError, match="got int"):
        list(named_leaves([4]))


def test_leaves_are_named_by_their_path():
    state = nested()
    for path, leaf in named_leaves(state):
        assert leaf_at(state, path) is leaf


def test_state_without_samples_has_no_batch_size():
    with pytest.raises(NetworkError, match="no tensor that belongs to samples"):
        batch_size([Shared(1)])


def test_leaf_without_a_row_per_sample_is_named():
    state = {"hidden": torch.rand(4, 2), "bias": torch.rand(1, 2)}
    with pytest.raises(
        NetworkError, match=r"state\['bias'\] has the shape \[1, 2\] for 4 samples"
    ):
        check_state(state, 4, "stage 0")


def as_arrays(state):
    return map_leaves(Tensor.numpy, state)


@pytest.mark.parametrize(
    "index", [[3, 0], [True, False, False, True], []], ids=["positions", "mask", "none"]
)
def test_arrays_are_taken_as_tensors_are_by_either_kind_of_index(index):
    index = np.array(index, dtype=None if index else np.int64)
    wanted = take(nested(), torch.from_numpy(index))
    for state in (nested(), as_arrays(nested())):
        found = take(state, index)
        assert [type(leaf) for leaf in tensors(found)] == [type(leaf) for leaf in tensors(state)]
        for one, other in zip(tensors(found), tensors(wanted), strict=True):
            assert np.array_equal(one, other)
        assert len(found["pair"][1].value) == 7


def test_arrays_are_joined_as_tensors_are():
    parts = [take(as_arrays(nested()), np.array(rows)) for rows in ([0], [1, 2, 3])]
    whole = join(parts)
    for one, other in zip(tensors(whole), tensors(nested()), strict=True):
        assert isinstance(one, np.ndarray) and np.array_equal(one, other)
    assert repr(join_key(parts[0])) == repr(join_key(parts[1]))
    check_state(whole, 4, "stage 0")


def test_arrays_and_tensors_are_not_joined():
    one, other = nested(), as_arrays(nested())
    assert repr(join_key(one)) != repr(join_key(other))
