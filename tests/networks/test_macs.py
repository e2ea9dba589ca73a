"""Counted costs: exact figures, attention, and operations nobody knows."""

import numpy as np
import pytest
import torch
from torch import nn

from offramp.errors import NetworkError
from offramp.networks import EarlyExitNetwork, attach, build, count_macs
from offramp.networks.heads import LinearHead, Pool
from offramp.networks.macs import counting, is_uncounted
from offramp.registry import BUILDERS


def test_msdnet_has_exactly_the_published_costs_and_parameters():
    network = build(
        "msdnet",
        num_classes=100,
        image_size=32,
        blocks=5,
        step_mode="lin_grow",
        step=1,
        base=1,
    )
    cumulative = count_macs(network).cumulative.tolist()
    assert cumulative == [6_792_704, 14_209_024, 27_278_848, 41_373_696, 58_087_936]
    parameters = sum(p.numel() for p in network.parameters())
    assert round(parameters / 1e6, 2) == 2.08


@pytest.mark.parametrize(
    ("name", "size", "parameters"),
    [
        ("resnet18", 224, 11_689_512),
        ("resnet34", 224, 21_797_672),
        ("vit-tiny", 224, 5_717_416),
        ("vit-small", 224, 22_050_664),
        ("efficientnet-b0", 224, 5_288_548),
        ("efficientnet-b2", 260, 9_109_994),
    ],
)
def test_imagenet_forms_have_the_published_number_of_parameters(name, size, parameters):
    with torch.device("meta"):  # numbers of weights, and no memory for them
        backbone = BUILDERS[name](num_classes=1000, image_size=size)
    assert sum(p.numel() for p in backbone.parameters()) == parameters


def test_costs_are_the_hand_count_of_a_small_network():
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 1))
    stages = [backbone, nn.Conv2d(8, 8, 2, stride=2)]
    heads = [LinearHead(Pool("map"), 8, 10) for _ in range(2)]
    costs = count_macs(EarlyExitNetwork(stages, heads, 10), torch.rand(2, 3, 6, 6))
    assert costs.stages.tolist() == [36 * (27 * 4 + 4 * 8), 9 * 32 * 8]
    assert costs.heads.tolist() == [80, 80]
    assert costs.unit == "macs"


class Attention(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_attention_is_counted_on_the_cpu():
    heads = [LinearHead(Pool("map"), 2, 3)]
    network = EarlyExitNetwork([Attention()], heads, 3)
    # Two heads, five tokens of size four: queries x keys, and weights x values.
    assert count_macs(network, torch.rand(1, 2, 5, 4)).stages.tolist() == [2 * 2 * 5 * 5 * 4]


def test_fast_path_of_multihead_attention_is_counted():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    network = EarlyExitNetwork([layer], [LinearHead(Pool("mean"), 8, 3)], 3)
    projections, products, mlp = 4 * 8 * 8 * 5, 2 * 5 * 5 * 8, 2 * 8 * 16 * 5
    assert count_macs(network, torch.rand(1, 5, 8)).stages.tolist() == [
        projections + products + mlp
    ]
    assert torch.backends.mha.get_fastpath_enabled()


class Vectors(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.rand(8, 8))

    def forward(self, x):
        ours = torch.mv(self.matrix, x[0])
        return x + torch.addmv(ours, self.matrix, x[0]) + torch.dot(ours, x[0])


def test_products_with_vectors_are_counted():
    network = EarlyExitNetwork([Vectors()], [LinearHead(Pool("flat"), 8, 3)], 3)
    assert count_macs(network, torch.rand(1, 8)).stages.tolist() == [64 + 64 + 8]


class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.fft.fft(self.linear(x)).real


def test_operation_of_unknown_cost_is_an_error_with_its_name():
    network = EarlyExitNetwork([Fourier()], [LinearHead(Pool("flat"), 8, 3)], 3)
    with pytest.raises(NetworkError, match=r"cost of the operation `aten\._fft_.*` is not known"):
        count_macs(network, torch.rand(2, 8))


def test_formula_of_the_user_counts_an_operation():
    network = EarlyExitNetwork([Fourier()], [LinearHead(Pool("flat"), 8, 3)], 3)
    formulas = {torch.ops.aten._fft_r2c: lambda *_, **__: 2 * 100}
    costs = count_macs(network, torch.rand(1, 8), formulas=formulas)
    assert costs.stages.tolist() == [8 * 8 + 100]


def test_stage_without_cost_says_to_move_the_exit():
    stages = [nn.Linear(4, 4), nn.ReLU()]
    heads = [LinearHead(Pool("flat"), 4, 3) for _ in range(2)]
    with pytest.raises(NetworkError, match=r"stage before exit 1 \(stages.1\) has no operation"):
        count_macs(EarlyExitNetwork(stages, heads, 3), torch.rand(2, 4))


def test_cascade_heads_cost_the_logits_that_they_read():
    network = build("convnet", num_classes=10, image_size=16, head="cascade")
    heads = count_macs(network).heads
    assert heads[0] == 16 * 10
    assert heads[1] == (32 + 10) * 10


def test_number_of_exits_is_spread_evenly_in_cost():
    network = build("thin-resnet", num_classes=10, image_size=8, at=4, depth=38, width=4)
    costs = count_macs(network)
    ends = costs.stages.cumsum() / costs.stages.sum()
    # No block is more than a tenth of the whole, so that each quarter is met to half of that.
    assert np.abs(ends - [0.25, 0.5, 0.75, 1.0]).max() < 0.05


def test_number_of_exits_is_not_spread_evenly_in_depth():
    wide = nn.Sequential(nn.Linear(4, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    narrow = [nn.Sequential(nn.Linear(n, 8), nn.ReLU()) for n in (512, 8, 8, 8)]
    network = attach(nn.Sequential(wide, *narrow, nn.Linear(8, 3)), at=2, example=torch.rand(2, 4))
    assert network.exit_names == ("0.3", "last")


@pytest.mark.parametrize("at", [0, 4])
def test_impossible_number_of_exits_is_refused(at):
    with pytest.raises(NetworkError, match=rf"`at` must lie in \[1, 3\].*got {at}"):
        build("thin-resnet", num_classes=10, image_size=16, at=at, depth=8)


def test_made_up_example_has_the_precision_of_the_network():
    network = build("convnet", num_classes=10, image_size=16)
    costs = count_macs(network)
    assert count_macs(network.to(torch.bfloat16)) == costs


ACTIVATIONS = [
    *("ReLU", "ReLU6", "LeakyReLU", "PReLU", "RReLU", "ELU", "CELU", "SELU", "GELU", "SiLU"),
    *("Mish", "Hardswish", "Hardsigmoid", "Hardtanh", "Tanh", "Sigmoid", "Softplus", "Softsign"),
    *("LogSigmoid", "Softmax2d", "Tanhshrink", "Softshrink", "Hardshrink", "Dropout", "Identity"),
]
LAYERS = [
    *(getattr(nn, name)() for name in ACTIVATIONS),
    nn.GLU(dim=1),
    nn.Hardswish(inplace=True),
    nn.SiLU(inplace=True),
    nn.BatchNorm2d(4),
    nn.InstanceNorm2d(4),
    nn.GroupNorm(2, 4),
    nn.LayerNorm(8),
    nn.RMSNorm(8),
    nn.LocalResponseNorm(2),
    nn.MaxPool2d(2),
    nn.AvgPool2d(2),
    nn.LPPool2d(2, 2),
    nn.AdaptiveAvgPool2d(2),
    nn.AdaptiveMaxPool2d(2),
    nn.PixelShuffle(2),
    nn.PixelUnshuffle(2),
    nn.ChannelShuffle(2),
    nn.ZeroPad2d(1),
    nn.ReflectionPad2d(1),
    nn.ReplicationPad2d(1),
    nn.Upsample(scale_factor=2),
    nn.Upsample(scale_factor=2, mode="bilinear"),
    nn.Upsample(scale_factor=2, mode="bicubic"),
    nn.Flatten(),
    nn.Unfold(2),
]


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_common_layers_are_known_to_cost_next_to_nothing(layer):
    with torch.no_grad(), counting() as counter:
        layer.eval()(torch.rand(2, 4, 8, 8))
    assert counter.get_total_flops() == 0


def test_only_convolutions_and_products_count():
    assert is_uncounted(torch.ops.aten.relu.default)
    assert not is_uncounted(torch.ops.aten.mm.default)
