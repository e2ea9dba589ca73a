"""Modules that torch.fx can trace: cutting, carrying, branches, and the two modes."""

import pytest
import torch
from torch import nn

from offramp.errors import NetworkError
from offramp.networks import Shared, attach, build, count_macs, take
from offramp.networks.architectures.resnet import ResNet

IMAGES = torch.rand(4, 3, 8, 8)


class Traceable(nn.Module):
    """A ResNet that hides its layout, so that it has to be traced."""

    def __init__(self):
        super().__init__()
        network = ResNet((1, 2), (4, 8), num_classes=3, image_size=8)
        self.stem, self.blocks, self.classifier = network.stem, network.blocks, network.classifier

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.classifier(x)


def test_blocks_of_a_traced_module_are_found():
    network = attach(Traceable(), example=IMAGES)
    assert network.exit_names == ("blocks.0", "blocks.1", "last")


class ShortSequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.up = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.up(self.down(x)))


class LongSequence(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()) for _ in range(4)]
        self.features = nn.Sequential(*(layer for group in layers for layer in group))
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.features(x).clamp(-1, 1))


@pytest.mark.parametrize(
    ("backbone", "names"),
    [
        (ShortSequences, ("down", "last")),
        (LongSequence, ("features.2", "features.5", "features.8", "last")),
    ],
)
def test_layers_are_joined_to_blocks_where_there_are_no_larger_modules(backbone, names):
    assert attach(backbone(), example=torch.rand(2, 4)).exit_names == names


def test_traced_network_costs_what_the_handwritten_layout_costs():
    traced = attach(Traceable(), example=IMAGES)
    layout = attach(ResNet((1, 2), (4, 8), num_classes=3, image_size=8))
    assert count_macs(traced, IMAGES) == count_macs(layout, IMAGES)


def test_tensor_that_skips_over_the_cut_is_carried(skip_net):
    network = attach(skip_net, at=["second"], example=IMAGES).eval()
    state = network.advance(0, network.begin(IMAGES))
    assert [tuple(leaf.shape) for leaf in state] == [(4, 8, 8, 8), (4, 8, 8, 8)]
    assert torch.equal(network(IMAGES)[:, -1], skip_net.eval()(IMAGES))


def test_training_mode_still_switches_functional_dropout(skip_net):
    network = attach(skip_net, at=["second"], example=IMAGES)
    state = network.eval().advance(0, network.begin(IMAGES))
    assert torch.equal(network.advance(1, state), network.advance(1, state))
    network.train()
    assert not torch.equal(network.advance(1, state), network.advance(1, state))


def test_training_mode_still_switches_batch_norm(skip_net):
    network = attach(skip_net, at=["second"], example=IMAGES)
    before = skip_net.norm.running_mean.clone()
    network.eval()(IMAGES)
    assert torch.equal(skip_net.norm.running_mean, before)
    network.train()(IMAGES)
    assert not torch.equal(skip_net.norm.running_mean, before)


class Switching(nn.Module):
    """What runs depends on the mode, and so does a module's own dropout."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        self.second = nn.Linear(4, 4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        x = self.dropout(self.first(x))
        if self.training:
            x = x + 100
        return self.fc(self.second(x))


@pytest.mark.parametrize("mode_at_attach", [True, False])
def test_branch_on_the_mode_is_kept_whatever_the_mode_was(mode_at_attach):
    backbone = Switching().train(mode_at_attach)
    network = attach(backbone, at=["first"], example=torch.rand(2, 4))
    assert network.training is mode_at_attach
    assert backbone.training is mode_at_attach
    x = torch.rand(3, 4)
    with torch.no_grad():
        assert torch.equal(network.eval()(x)[:, -1], backbone.eval()(x))
        torch.manual_seed(1)
        ours = network.train()(x)[:, -1]
        torch.manual_seed(1)
        assert torch.equal(ours, backbone.train()(x))


def test_frozen_part_of_a_training_backbone_stays_frozen(skip_net):
    skip_net.train().norm.eval()
    network = attach(skip_net, at=["second"], example=IMAGES)
    assert network.training
    assert not skip_net.norm.training


class Single(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x)


def test_module_without_blocks_is_refused():
    with pytest.raises(NetworkError, match=r"no block of Single was found.*name some with at="):
        attach(Single(), example=torch.rand(2, 4))


def test_attaching_changes_no_statistics_and_no_random_numbers(skip_net):
    before = {key: value.clone() for key, value in skip_net.state_dict().items()}
    torch.manual_seed(3)
    attach(skip_net, at=["second"], example=IMAGES, head=lambda *_: nn.Identity())
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), drawn)
    assert all(torch.equal(value, before[key]) for key, value in skip_net.state_dict().items())


class WithBias(nn.Module):
    """Carries a size and a tensor that are the same for all samples."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.fc = nn.Linear(4, 2)
        self.bias = nn.Parameter(torch.rand(4))

    def forward(self, x):
        width = x.shape[1]
        scaled = self.bias * 2
        x = self.first(x)
        return self.fc(self.second(x) * scaled / width)


def test_what_is_the_same_for_all_samples_is_carried_as_shared():
    network = attach(WithBias(), at=["first"], example=torch.rand(2, 4))
    state = take(network.advance(0, network.begin(torch.rand(3, 4))), torch.tensor([0]))
    assert sorted(type(leaf).__name__ for leaf in state) == ["Shared", "Shared", "Tensor"]
    assert 4 in [leaf.value for leaf in state if isinstance(leaf, Shared)]
    assert network.advance(1, state).shape == (1, 4)


class ReadsRows(WithBias):
    def forward(self, x):
        rows = x.size(0)
        return self.fc(self.second(self.first(x)).view(rows, -1))


def test_number_of_rows_is_read_again_after_the_exit():
    backbone = ReadsRows().eval()
    network = attach(backbone, at=["first"], example=torch.rand(2, 4))
    x = torch.rand(5, 4)
    assert torch.equal(network(x)[:, -1], backbone(x))
    state = network.advance(0, network.begin(x))
    assert isinstance(state, torch.Tensor)
    shrunk = network.advance(1, take(state, torch.tensor([4, 2])))
    torch.testing.assert_close(network.head(1, shrunk), backbone(x)[[4, 2]])


class StaleSize(WithBias):
    def forward(self, x):
        size = x.numel()
        return self.fc(self.second(self.first(x)).view(size).view(-1, 4))


class BatchMean(WithBias):
    def forward(self, x):
        mean = x.mean(0)
        return self.fc(self.second(self.first(x)) - mean)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (
            StaleSize,
            r"`numel`, int made by `numel` and read by `view`, cannot be carried over the",
        ),
        (BatchMean, r"`mean`, a tensor \[4\] made by `mean` and read by `sub`, cannot be carried"),
    ],
)
def test_value_that_cannot_be_carried_is_named_with_the_modules(backbone, message):
    with pytest.raises(NetworkError, match=message):
        attach(backbone(), at=["first"], example=torch.rand(2, 4))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)
        self.join = nn.Linear(4, 4)
        self.after = nn.Linear(4, 4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.after(self.join(self.left(x) + self.right(x))))


@pytest.mark.parametrize(("name", "other"), [("left", "right"), ("right", "left")])
def test_exit_inside_a_branch_says_where_to_put_it(name, other):
    message = rf"`{name}` lies inside a branch: `{other}` runs on another one.*after `join`"
    with pytest.raises(NetworkError, match=message):
        attach(Branches(), at=[name], example=torch.rand(2, 4))


def test_exit_inside_a_residual_block_says_to_put_it_after_the_block():
    message = r"`blocks.1.conv1` lies inside a branch of `blocks.1`.*put the exit after `blocks.1`"
    with pytest.raises(NetworkError, match=message):
        attach(Traceable(), at=["blocks.1.conv1"], example=IMAGES)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (["blocks.1", "blocks.0"], r"`blocks.0` comes before `blocks.1`; swap"),
        (["blocks.0", "blocks.0"], r"name the same exit; leave one out"),
        (["stem.2", "stem"], r"`stem.2` lies inside `stem`.*put the exit after `stem`"),
    ],
)
def test_exits_in_the_wrong_order_are_refused(at, message):
    with pytest.raises(NetworkError, match=message):
        attach(Traceable(), at=at, example=IMAGES)


def test_unknown_module_is_refused():
    with pytest.raises(NetworkError, match=r"no module `blocks.9`.*did you mean blocks"):
        attach(Traceable(), at=["blocks.9"], example=IMAGES)


def test_exit_right_before_the_classifier_is_the_last_exit():
    network = attach(Branches(), at=["join", "after"], example=torch.rand(2, 4))
    assert network.exit_names == ("join", "last")


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else x


def test_module_that_cannot_be_traced_is_refused_with_the_ways_out():
    with pytest.raises(
        NetworkError, match=r"cannot trace Untraceable.*list of stages.*layout\(\)"
    ):
        attach(Untraceable(), example=torch.rand(2, 4))


class Traced(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.two(self.one(x).mean((2, 3)))


@pytest.mark.parametrize("backbone", [Traced(), nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())])
def test_an_example_that_the_backbone_does_not_take_is_named(backbone):
    with pytest.raises(NetworkError, match=r"cannot be run on `example`.*to have 3 channels"):
        attach(backbone, num_classes=2, example=torch.zeros(2, 1, 8, 8))


def test_tracing_needs_an_example():
    with pytest.raises(NetworkError, match=r"Branches is cut by tracing.*pass `example=`"):
        attach(Branches())


class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.pair = nn.LSTM(4, 4)
        self.unused = nn.Linear(4, 4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        x, _ = self.pair(self.first(self.first(x)))
        return self.fc(nn.functional.relu(x))


@pytest.mark.parametrize(("name", "times"), [("first", "2 times"), ("unused", "never")])
def test_module_that_is_not_called_once_is_refused(name, times):
    with pytest.raises(NetworkError, match=rf"`{name}` is called {times} in forward"):
        attach(Repeated(), at=[name], example=torch.rand(2, 4))


class ReturnsTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x), x


class UsesTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.two = ReturnsTwo()
        self.after = nn.Linear(4, 4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        y, x = self.two(x)
        return self.fc(self.after(x + y))


def test_module_that_returns_several_values_is_refused():
    with pytest.raises(NetworkError, match="`two` returns a tuple and not one tensor"):
        attach(UsesTwo(), at=["two"], example=torch.rand(2, 4))


class TwoInputs(Branches):
    def forward(self, x, y):
        return super().forward(x) + y


def test_module_with_two_inputs_is_refused():
    with pytest.raises(NetworkError, match=r"reads several arguments \(y\)"):
        attach(TwoInputs(), example=torch.rand(2, 4))


class Tied(nn.Module):
    """The same layer before and after the exit."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.between = nn.Linear(4, 4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.shared(self.between(self.shared(x))))


def test_weights_used_in_two_stages_are_saved_once_and_loaded_exactly(tmp_path):
    network = attach(Tied(), at=["between"], example=torch.rand(2, 4)).eval()
    network.save(tmp_path)
    other = type(network).load(tmp_path, backbone=Tied()).eval()
    x = torch.rand(3, 4)
    assert torch.equal(network(x), other(x))


def test_named_exit_inside_a_child_of_a_sequential_is_traced():
    network = build("convnet", num_classes=3, image_size=8)
    backbone = nn.Sequential(Branches(), nn.ReLU(), nn.Linear(2, 3))
    network = attach(backbone, at=["0.join"], example=torch.rand(2, 4)).eval()
    assert network.exit_names == ("0.join", "last")
    x = torch.rand(3, 4)
    assert torch.equal(network(x)[:, -1], backbone.eval()(x))


class WithDefaults(Branches):
    def forward(self, x, scale=None, twice=False):
        x = x if scale is None else x * scale
        return super().forward(x + x if twice else x)


def test_further_arguments_keep_their_defaults():
    backbone = WithDefaults().eval()
    network = attach(backbone, at=["join"], example=torch.rand(2, 4))
    x = torch.rand(3, 4)
    assert torch.equal(network(x)[:, -1], backbone(x))


class Ends(nn.Module):
    """Three linear layers and some way to end."""

    def __init__(self, end):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.between = nn.Linear(4, 4)
        self.second = nn.Linear(4, 3)
        self.softmax = nn.LogSoftmax(dim=1)
        self.end = end

    def forward(self, x):
        return self.end(self, self.second(self.between(torch.relu(self.first(x)))))


def test_classifier_may_be_followed_by_operations_without_weights():
    backbone = Ends(lambda self, x: self.softmax(x) * 2).eval()
    network = attach(backbone, at=["first"], num_classes=7, example=torch.rand(2, 4))
    assert network(torch.rand(2, 4)).shape == (2, 2, 7)
    same = attach(backbone, at=["first"], example=torch.rand(2, 4))
    assert same.num_classes == 3
    x = torch.rand(2, 4)
    assert torch.equal(same(x)[:, -1], backbone(x))


def test_end_that_is_no_linear_layer_needs_the_number_of_classes():
    backbone = Ends(lambda self, x: x * self.second.weight.sum()).eval()
    with pytest.raises(NetworkError, match="pass `num_classes=`"):
        attach(backbone, at=["first"], example=torch.rand(2, 4))
    network = attach(backbone, at=["first"], num_classes=3, example=torch.rand(2, 4))
    x = torch.rand(2, 4)
    assert torch.equal(network(x)[:, -1], backbone(x))
    with pytest.raises(NetworkError, match=r"must give logits of the shape \[N, K\]"):
        attach(backbone, at=["first"], num_classes=9, example=torch.rand(2, 4))


def test_module_that_ends_differently_in_training_is_refused():
    backbone = Ends(lambda self, x: (x, x) if self.training else x)
    with pytest.raises(
        NetworkError, match="in training mode it returns a tuple: return the logits alone"
    ):
        attach(backbone, at=["first"], example=torch.rand(2, 4))
    backbone = Ends(lambda self, x: x * self.second.weight.sum() if self.training else x)
    with pytest.raises(NetworkError, match="ends differently in training and in eval mode"):
        attach(backbone, at=["first"], example=torch.rand(2, 4))


class Words(nn.Module):
    """Takes whole numbers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.mix = nn.Linear(4, 4)
        self.after = nn.Linear(4, 4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.after(torch.relu(self.mix(self.embedding(x)))).mean(1))


def test_whole_numbers_may_come_in_and_tokens_are_known_by_their_layer(tmp_path):
    backbone = Words().eval()
    words = torch.randint(0, 10, (3, 5))
    network = attach(backbone, at=["mix"], example=words)
    assert network.heads[0].pool.kind == "mean"
    assert torch.equal(network(words)[:, -1], backbone(words))
    network.save(tmp_path)
    assert torch.equal(type(network).load(tmp_path, backbone=Words())(words), network(words))


class ChannelsLast(nn.Module):
    """Feature maps [N, H, W, C], as in Swin."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.second = nn.Linear(width, width)
        self.fc = nn.Linear(width, 2)

    def forward(self, x):
        x = torch.relu(self.first(x.permute(0, 2, 3, 1)))
        return self.fc(torch.relu(self.second(x)).mean((1, 2)))


class MovedChannels(nn.Module):
    """A convolution, and then its channels at the end."""

    def __init__(self, width):
        super().__init__()
        self.convolution = nn.Conv2d(3, width, 3, padding=1)

    def forward(self, x):
        return self.convolution(x).permute(0, 2, 3, 1)


class WithMovedChannels(ChannelsLast):
    def __init__(self, width):
        super().__init__(width)
        self.first = MovedChannels(width)

    def forward(self, x):
        return self.fc(torch.relu(self.second(self.first(x))).mean((1, 2)))


@pytest.mark.parametrize(
    ("backbone", "width"),
    [
        (ChannelsLast, 6),
        (ChannelsLast, 8),  # as many as pixels: then the layer alone decides
        (WithMovedChannels, 6),
    ],
)
def test_channels_are_found_where_the_layer_puts_them(backbone, width):
    network = attach(backbone(width), at=["first"], example=IMAGES)
    assert network.heads[0].pool.kind == "mean"
    assert network.heads[0].settings["width"] == width
