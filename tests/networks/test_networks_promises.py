"""What holds for every architecture, adapter and way of cutting."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import offramp.onnx.modules  # noqa: F401 - lets torch.export know Shared
from offramp.networks import EarlyExitNetwork, Shared, attach, count_macs, take
from offramp.networks.architectures.resnet import ResNet
from offramp.networks.architectures.vit import VisionTransformer, fitting_patch
from offramp.networks.layout import Channels
from offramp.networks.state import batch_size, check_state, named_leaves

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def test_forward_gives_logits_of_all_exits(case):
    logits = case.network(case.batch)
    assert logits.shape == (4, case.network.num_exits, case.network.num_classes)
    assert case.network.num_exits >= 2


def test_last_exit_gives_the_backbone_logits_bitwise(case):
    with torch.no_grad():
        assert torch.equal(case.network(case.batch)[:, -1], case.backbone_logits())


def test_steps_give_the_same_logits_as_forward(case):
    network = case.network
    with torch.no_grad():
        whole = network(case.batch)
        state = network.begin(case.batch)
        for exit_index in range(network.num_exits):
            state = network.advance(exit_index, state)
            check_state(state, 4, f"exit {exit_index}")
            logits = network.head(exit_index, state, whole[:, :exit_index])
            assert torch.equal(logits, whole[:, exit_index])


def test_shrunk_batch_gives_survivors_the_same_logits(case):
    network, batch = case.network, case.batch
    staying = torch.tensor([3, 1])
    with torch.no_grad():
        whole = network(batch)
        state = network.begin(batch)
        for leave_at in range(network.num_exits - 1):
            state = network.advance(leave_at, state)
            smaller = network.trim(take(state, staying))
            assert batch_size(smaller) == 2
            for exit_index in range(leave_at, network.num_exits):
                if exit_index > leave_at:
                    smaller = network.advance(exit_index, smaller)
                logits = network.head(exit_index, smaller, whole[staying, :exit_index])
                torch.testing.assert_close(logits, whole[staying, exit_index], **TOLERANCE)


def test_one_training_step_gives_every_parameter_a_gradient(case):
    network = copy.deepcopy(case.network).train()
    loss = nn.functional.cross_entropy(
        network(case.batch).flatten(0, 1), torch.zeros(4 * network.num_exits, dtype=torch.long)
    )
    loss.backward()
    without = [name for name, p in network.named_parameters() if p.grad is None]
    assert without == []
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    assert torch.isfinite(network.eval()(case.batch)).all()


def test_save_and_load_is_exact(case, tmp_path):
    case.network.save(tmp_path)
    loaded = EarlyExitNetwork.load(tmp_path, backbone=case.backbone_for_load())
    assert not loaded.training
    with torch.no_grad():
        assert torch.equal(loaded(case.batch), case.network(case.batch))
    assert loaded.fingerprint() == case.network.fingerprint()
    assert loaded.exit_names == case.network.exit_names


def test_parameters_are_shared_with_the_backbone(case):
    ours = {id(parameter) for parameter in case.network.parameters()}
    assert any(True for _ in case.backbone.parameters())
    assert {id(parameter) for parameter in case.backbone.parameters()} <= ours


def test_attached_network_is_in_the_mode_of_the_backbone(make):
    backbone = make("ViTForImageClassification").backbone
    for mode in (True, False):
        network = attach(backbone.train(mode))
        assert {part.training for part in network.modules()} == {mode}


def test_costs_grow_from_exit_to_exit_and_do_not_depend_on_the_batch(case):
    costs = count_macs(case.network, case.batch)
    assert (np.diff(costs.cumulative) > 0).all()
    if not isinstance(case.batch, dict):
        assert count_macs(case.network, case.batch[:2]) == costs


def test_counting_leaves_the_network_as_it_was(case):
    network = copy.deepcopy(case.network).train()
    before = network.fingerprint()
    count_macs(network, case.batch)
    assert all(part.training for part in network.modules())
    assert network.fingerprint() == before


def test_copy_is_independent_and_the_same(case):
    twin = copy.deepcopy(case.network)
    with torch.no_grad():
        assert torch.equal(twin(case.batch), case.network(case.batch))
        next(twin.parameters()).add_(1)
    assert twin.fingerprint() != case.network.fingerprint()


@pytest.mark.parametrize("kind", ["convnet", "msdnet-short"])
def test_channels_last_survives_a_shrinking_batch(make, kind):
    case = make(kind)
    network = case.network.to(memory_format=torch.channels_last)
    batch = case.batch.to(memory_format=torch.channels_last)
    with torch.no_grad():
        state = network.advance(0, network.begin(batch))
    leaves = state if isinstance(state, list) else [state]
    for leaf in take(leaves, torch.tensor([2, 0])):
        assert leaf.is_contiguous(memory_format=torch.channels_last)


def any_size(state):
    """How sizes vary: the first dimension is free, and leaves that are shared have none."""
    if isinstance(state, torch.Tensor):
        return {0: torch.export.Dim.DYNAMIC}
    if isinstance(state, dict):
        return {key: any_size(value) for key, value in state.items()}
    return [None] if isinstance(state, Shared) else type(state)(map(any_size, state))


@pytest.mark.parametrize("kind", ["msdnet-short", "shared", "BertForSequenceClassification"])
def test_stages_can_be_exported_for_a_batch_of_any_size(make, kind):
    case = make(kind)
    state = case.network.begin(case.batch)
    for stage in case.network.stages:
        with torch.no_grad():
            exported = torch.export.export(
                stage, (state,), dynamic_shapes=(any_size(state),)
            ).module()
            whole, half = stage(state), exported(take(state, torch.tensor([0, 2])))
        for (_, ours), (_, theirs) in zip(
            named_leaves(take(whole, torch.tensor([0, 2]))), named_leaves(half), strict=True
        ):
            if isinstance(ours, torch.Tensor):
                torch.testing.assert_close(theirs, ours, **TOLERANCE)
        state = whole


@pytest.mark.parametrize(
    "network",
    [
        ResNet((1, 1), (8, 16), num_classes=5, image_size=16),
        VisionTransformer(num_classes=5, image_size=16, width=16, heads=2, depth=2),
    ],
)
def test_architectures_classify_without_exits(network):
    assert network(torch.rand(2, 3, 16, 16)).shape == (2, 5)


def test_patches_fit_the_image():
    assert [fitting_patch(size) for size in (32, 64, 224)] == [4, 8, 16]


def test_a_convolution_says_where_its_channels_are():
    assert Channels.of(nn.Conv2d(3, 8, 3)) == Channels(count=8, first=True)
