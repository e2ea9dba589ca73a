"""Where exits go, which heads they get, and the message for a wrong request."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from offramp.errors import MissingExtraError, NetworkError
from offramp.networks import (
    CascadeHead,
    EarlyExitNetwork,
    LinearHead,
    MLPHead,
    SeparableHead,
    TwoConvHead,
    attach,
    build,
    register_builder,
)
from offramp.networks.backbones import Origin, rebuild_backbone
from offramp.networks.heads import BackboneHead, Pool

ROWS = torch.rand(2, 4)
EXAMPLE = torch.rand(2, 3, 8, 8)


def plain():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def test_block_of_plain_layers_reaches_to_the_next_layer_with_weights():
    assert attach(plain(), example=EXAMPLE).exit_names == ("2", "last")


def test_layer_that_is_used_twice_runs_twice():
    tanh = nn.Tanh()
    backbone = nn.Sequential(nn.Linear(4, 4), tanh, nn.Linear(4, 4), tanh, nn.Linear(4, 2)).eval()
    network = attach(backbone, example=ROWS)
    assert network.exit_names == ("1", "last")
    assert torch.equal(network(ROWS)[:, -1], backbone(ROWS))


def test_child_with_children_is_a_block():
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)]
    network = attach(nn.Sequential(*blocks, nn.Linear(4, 2)), example=torch.rand(2, 4))
    assert network.exit_names == ("0.1", "1.1", "last")


def test_a_single_child_with_children_is_cut_at_its_layers():
    child = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    network = attach(nn.Sequential(child, nn.Linear(4, 2)), example=ROWS)
    assert network.exit_names == ("0.1", "last")


def test_module_that_units_make_up_may_be_named():
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)]
    backbone = nn.Sequential(*blocks, nn.Linear(4, 2))
    assert attach(backbone, at="1", example=torch.rand(2, 4)).exit_names == ("1.1", "last")


def test_exit_after_the_last_block_is_the_last_exit():
    network = build("convnet", 10, 16, at=["blocks.1", "blocks.3"])
    assert network.exit_names == ("blocks.1", "last")


def test_list_of_stages_gets_a_head_each():
    stages = [nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 6)]
    network = attach(stages, num_classes=3, example=torch.rand(2, 4))
    assert network.exit_names == ("0", "1", "last")
    assert [type(head) for head in network.heads] == [LinearHead] * 3
    assert network(torch.rand(5, 4)).shape == (5, 3, 3)


def test_new_number_of_classes_gives_the_last_exit_a_new_head():
    backbone = plain()
    same, new = (attach(backbone, num_classes=k, example=EXAMPLE) for k in (3, 7))
    assert isinstance(same.heads[-1], BackboneHead)
    assert isinstance(new.heads[-1], LinearHead)
    assert new(EXAMPLE).shape == (2, 2, 7)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("pooled-linear", LinearHead),
        ("pooled-mlp", MLPHead),
        ("two-conv", TwoConvHead),
        ("separable", SeparableHead),
        ("mixed-pool", LinearHead),
        ("cascade", CascadeHead),
        ("mixed-cascade", CascadeHead),
    ],
)
def test_head_by_name(head, kind):
    network = build("convnet", num_classes=3, image_size=16, head=head)
    assert all(isinstance(each, kind) for each in list(network.heads)[:-1])
    assert [each.settings["width"] for each in list(network.heads)[:-1]] == [16, 32, 64]
    assert network(torch.rand(2, 3, 16, 16)).shape == (2, 4, 3)


def residual_like():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(16, 5),
    )


def test_maps_get_cells_by_default_where_that_is_more_than_the_mean_and_not_too_many_weights():
    x = torch.rand(2, 3, 16, 16)
    kinds = [head.pool.kind for head in attach(residual_like(), example=x).heads]
    assert kinds == ["max-mean", "max-mean", "whole"]  # the last is the backbone's own
    many = attach(residual_like(), num_classes=10_000, example=x)
    assert [head.pool.kind for head in many.heads] == ["map", "map", "flat"]
    small = attach(residual_like(), example=torch.rand(2, 3, 8, 8))
    assert [head.pool.kind for head in small.heads] == ["max-mean", "map", "whole"]


class Gives(nn.Module):
    """A network whose forward does something else than take one tensor and return logits."""

    def __init__(self, kind):
        super().__init__()
        self.body, self.kind = residual_like(), kind

    def forward(self, x):
        logits = self.body(x)
        return {"logits": logits} if self.kind == "dict" else (logits, x)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda x: attach(plain(), example=(x, x)), "`example` has 2 inputs, .* takes one: a te"),
        (lambda x: attach(Gives("dict"), example=x), "it returns a dict: return the logits alone"),
        (lambda x: attach(Gives("pair"), example=x), "it returns a tuple: return the logits al"),
        (
            lambda x: attach(nn.Sequential(*residual_like()[:-1], nn.Linear(16, 1)), example=x),
            "two classes or more, and this backbone has 1: .* whose softmax is its sigmoid",
        ),
        (
            lambda x: attach(residual_like().bfloat16(), example=x)(x),
            r"in bfloat16 and the batch in float32: call network.float\(\), and say precision",
        ),
    ],
)
def test_what_cannot_have_exits_is_told_what_to_do(made, message):
    with pytest.raises(NetworkError, match=message):
        made(torch.rand(2, 3, 16, 16))


def test_networks_that_are_trained_with_their_exits_keep_the_heads_of_the_paper():
    network = build("convnet", num_classes=3, image_size=16)
    assert {head.pool.kind for head in list(network.heads)[:-1]} == {"map"}


def test_mixed_pooling_sees_maxima_and_means_in_four_by_four_cells():
    network = build("convnet", num_classes=3, image_size=16, head="mixed-pool")
    head, state = network.heads[0], torch.rand(2, 16, 8, 8)
    cells = state.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)  # [2, 16, 4, 4, 4]
    expected = 0.3 * cells.amax(4) + 0.7 * cells.mean(4)
    with torch.no_grad():
        head.mix.weight.fill_(0.3)
        torch.testing.assert_close(head(state), head.linear(expected.flatten(1)))


@pytest.mark.parametrize("size", [(8, 8), (14, 9), (3, 2)])
def test_cells_are_those_of_adaptive_pooling(size):
    state = torch.rand(2, 5, *size)
    maxima, means = Pool("max-mean")(state).unbind(1)
    assert torch.equal(maxima, nn.functional.adaptive_max_pool2d(state, 4).flatten(1))
    assert torch.equal(means, nn.functional.adaptive_avg_pool2d(state, 4).flatten(1))


@pytest.mark.parametrize(
    ("head", "new"), [("mixed-pool", LinearHead), ("mixed-cascade", CascadeHead)]
)
def test_a_new_last_head_pools_to_one_cell(head, new):
    stages = [nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 3)]
    network = attach(stages, num_classes=7, head=head, example=torch.rand(2, 3, 12, 12))
    assert [each.pool.kind for each in network.heads] == ["max-mean", "map"]
    assert isinstance(network.heads[-1], new)
    assert network(torch.rand(2, 3, 12, 12)).shape == (2, 2, 7)


@pytest.mark.parametrize(("head", "pool"), [("cls-token", "first"), ("mean-token", "mean")])
def test_token_heads(head, pool):
    network = build("vit-tiny", num_classes=3, image_size=16, head=head, depth=2)
    assert network.heads[0].pool.kind == pool
    assert network(torch.rand(2, 3, 16, 16)).shape == (2, 2, 3)


def test_head_by_function():
    made = []

    def make(state, num_classes, exit_index):
        made.append((tuple(state.shape), num_classes, exit_index))
        return LinearHead(Pool("map"), state.shape[1], num_classes)

    build("convnet", num_classes=3, image_size=16, head=make)
    assert made == [((2, 16, 16, 16), 3, 0), ((2, 32, 8, 8), 3, 1), ((2, 64, 4, 4), 3, 2)]


def test_cascade_head_reads_the_exit_before_without_training_it():
    head = CascadeHead(Pool("flat"), width=4, num_classes=3)
    before = torch.rand(2, 1, 3, requires_grad=True)
    first, second = head(torch.ones(2, 4), before), head(torch.ones(2, 4), before + 1)
    assert not torch.equal(first, second)
    first.sum().backward()
    assert before.grad is None


def test_cascade_head_asks_for_the_logits_so_far():
    head = CascadeHead(Pool("flat"), width=4, num_classes=3)
    with pytest.raises(NetworkError, match="pass `logits_so_far` of shape"):
        head(torch.rand(2, 4))


def test_masked_mean_does_not_see_padding():
    pool = Pool("mean", leaf=("hidden",), mask=("mask",))
    hidden = torch.rand(1, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0]])
    torch.testing.assert_close(
        pool({"hidden": hidden, "mask": mask}), hidden[:, :2].mean(1), rtol=1e-6, atol=1e-6
    )


def test_features_are_drawn_without_parameters():
    network = build("convnet", num_classes=3, image_size=16)
    state = network.advance(0, network.begin(torch.rand(2, 3, 16, 16)))
    head = network.heads[0]
    features = head.features(state)
    assert features.shape == (2, 16)
    assert torch.equal(head.classify(features), network.head(0, state))


def test_half_precision_backbone_gets_heads_of_its_own_precision():
    network = attach(plain().to(torch.bfloat16), example=EXAMPLE)
    assert {p.dtype for p in network.parameters()} == {torch.bfloat16}
    assert network.eval()(EXAMPLE.to(torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (["blocks.1", "block.2"], r"no module `block.2` to put an exit after; did you mean"),
        (["blocks.2", "blocks.1"], r"`blocks.1` comes before `blocks.2`; swap them"),
        (["blocks.1", "blocks.1"], r"name the same exit; leave one out"),
        (["blocks.1.conv1"], r"lies inside `blocks.1`.*put the exit after `blocks.1`"),
    ],
)
def test_impossible_exits_say_what_to_do(at, message):
    with pytest.raises(NetworkError, match=message):
        build("thin-resnet", num_classes=10, image_size=16, at=at, depth=8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attach(plain()), "does not say what it takes: pass `example=`"),
        (lambda: attach([nn.Linear(4, 4)], example=torch.rand(2, 4)), "pass `num_classes=`"),
        (lambda: attach([], num_classes=2), r"at least one nn.Module.*an empty list"),
        (lambda: attach([nn.ReLU(), "relu"], num_classes=2), r"nothing else, got \['str'\]"),
        (lambda: attach(3), "`backbone` must be an nn.Module, a list of them, or a name, got int"),
        (lambda: attach(nn.Sequential(nn.ReLU())), "no layer with weights to put an exit after"),
        (lambda: attach(nn.Sequential(nn.Linear(2, 2))), "so no exit can save anything"),
        (lambda: build("resnet35", 10, 32), "no network `resnet35`; did you mean `resnet34`"),
        (lambda: build("convnet", 10, 32, colour=1), "`convnet` does not take these settings"),
        (lambda: build("convnet", 10, 4), "`image_size` must be at least 8"),
        (lambda: build("resnet18", 10, 4), "`image_size` must be at least 8, got 4"),
        (lambda: build("thin-resnet", 10, 32, depth=21), r"`depth` must be 6 n \+ 2.*got 21"),
        (lambda: build("thin-resnet", 10, 96), "up to 64 px, got 96; resize"),
        (lambda: build("vit-tiny", 10, 30, patch_size=4), "multiple of the patch size 4, got 30"),
        (lambda: build("vit-tiny", 10, 7), "at least 8x8 patches"),
        (lambda: build("vit-mini", 10, 36, patch_size=6), "patch size must be 1, 2, 4, ..."),
        (lambda: build("efficientnet-b0", 10, 16), "must be at least 32, got 16"),
        (lambda: build("msdnet", 10, 30), "`image_size` must be a multiple of 4, got 30"),
        (
            lambda: build("msdnet", 10, 32, step_mode="odd"),
            "`step_mode` must be one of even, lin_grow",
        ),
        (
            lambda: build("msdnet", 10, 32, blocks=0),
            "`blocks` must be a whole number of at least 1, got 0",
        ),
        (lambda: build("msdnet", 10, 32, factors=(1, 3), growth=5), "must be even, got 5"),
        (lambda: build("convnet", 10, 32, head="oracle"), "`head` must be one of pooled-linear"),
        (lambda: build("convnet", 10, 32, head="cls-token"), r"`cls-token` reads tokens"),
        (lambda: build("vit-tiny", 10, 16, head="two-conv"), r"`two-conv` reads feature maps"),
    ],
)
def test_wrong_request_says_what_to_do(call, message):
    with pytest.raises(NetworkError, match=message):
        call()


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = x[0] if isinstance(x, tuple) else x
        return self.linear(x), x


class Bias(nn.Module):
    def forward(self, x):
        return x, torch.ones(1, 3)


def test_state_that_may_mean_several_things_asks_for_a_head():
    with pytest.raises(NetworkError, match=r"holds several tensors.*pass `head=`"):
        attach([Pair(), Pair()], num_classes=2, example=torch.rand(2, 4))
    with pytest.raises(NetworkError, match=r"may be tokens \[N, T, C\] or a sequence"):
        attach([nn.Linear(4, 4)], num_classes=2, example=torch.rand(2, 3, 4))
    network = attach(
        [nn.Linear(4, 4)], num_classes=2, head="mean-token", example=torch.rand(2, 3, 4)
    )
    assert network.heads[0].pool.kind == "mean"


def test_state_without_a_row_per_sample_is_named():
    with pytest.raises(NetworkError, match=r"after exit 0 \(last\) must have one row per sample"):
        attach([Bias()], num_classes=2, example=torch.rand(2, 4), head=lambda *_: nn.Identity())


def test_backbone_without_logits_is_refused():
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    with pytest.raises(NetworkError, match=r"must give logits of the shape \[N, K\].*\[2, 5\]"):
        attach(backbone, num_classes=5, example=EXAMPLE)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.rand(2, 3, 32, 32), r"takes images of the shape \[N, 3, 16, 16\].*resize"),
        (torch.rand(2, 1, 16, 16), r"must be a tensor \[N, 3, .*got \[2, 1, 16, 16\]"),
        (torch.rand(3, 16, 16), r"images must be a tensor \[N, 3, height, width\]"),
        ([1, 2], "got list"),
    ],
)
def test_wrong_images_say_what_to_do(batch, message):
    network = build("convnet", num_classes=10, image_size=16)
    with pytest.raises(NetworkError, match=message):
        network(batch)


def test_images_may_come_as_pixel_values():
    network = build("convnet", num_classes=10, image_size=16).eval()
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(network({"pixel_values": x}), network(x))


def test_wrong_tensor_says_what_is_taken():
    images = attach(plain(), example=EXAMPLE)
    with pytest.raises(NetworkError, match=r"a tensor \[N, 3, height, width\].*, got \[2, 3\]"):
        images(torch.rand(2, 3))
    rows = attach(nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2)), example=ROWS)
    with pytest.raises(NetworkError, match=r"a tensor like \[N, 4\], got \[4\]"):
        rows(torch.rand(4))


def test_stages_and_heads_must_match():
    with pytest.raises(NetworkError, match="got 1 stages and 0 heads"):
        EarlyExitNetwork([nn.Linear(2, 2)], [], 2)
    with pytest.raises(NetworkError, match="name for each of the 1 exits, got 2"):
        EarlyExitNetwork([nn.Linear(2, 2)], [nn.Linear(2, 2)], 2, exit_names=("a", "b"))


def test_network_of_unknown_inputs_asks_for_an_example():
    network = attach([Pair()], num_classes=2, example=(torch.rand(2, 4),), head=_first)
    with pytest.raises(NetworkError, match="does not know its inputs: pass `example=`"):
        network.example()


def _first(state, num_classes, exit_index):
    return LinearHead(Pool("flat", leaf=(0,)), 4, num_classes)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_missing_library_is_named(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'offramp\[{library}\]'"):
        attach(f"{library}/resnet18")


def test_registered_name_cannot_be_taken_twice():
    with pytest.raises(NetworkError, match="there is a builder 'resnet34' already"):
        register_builder("resnet34", plain)


@pytest.fixture
def fake_libraries(monkeypatch):
    """timm and torchvision with one small model each."""

    def make(name, pretrained=False):
        torch.manual_seed(7 if pretrained else 8)
        return plain()

    weights = SimpleNamespace(
        get_state_dict=lambda **_: make("tiny", pretrained=True).state_dict()
    )
    models = SimpleNamespace(
        list_models=lambda: ["tiny"],
        get_model=make,
        get_model_weights=lambda name: SimpleNamespace(DEFAULT=weights),
    )
    timm = SimpleNamespace(list_models=lambda: ["tiny"], create_model=make)
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_named_model_is_pretrained_and_loads_by_itself(fake_libraries, library, tmp_path):
    network = attach(f"{library}/tiny", example=EXAMPLE)
    torch.manual_seed(7)
    assert torch.equal(network.stages[0][0].weight, plain()[0].weight)
    network.save(tmp_path)
    assert EarlyExitNetwork.load(tmp_path).fingerprint() == network.fingerprint()


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_file_cannot_ask_for_pretrained_weights(fake_libraries, library):
    settings = {"model": "tiny", "pretrained": True}
    rebuilt = rebuild_backbone(Origin("Sequential", library, settings))
    torch.manual_seed(8)
    assert torch.equal(rebuilt[0].weight, plain()[0].weight)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_unknown_model_of_a_library_is_refused(fake_libraries, library):
    with pytest.raises(NetworkError, match=rf"{library} has no model `hf-hub:owner/x`; see"):
        attach(f"{library}/hf-hub:owner/x")


def test_msdnet_with_fewer_exits_has_heads_that_fit_where_they_are():
    network = build("msdnet", num_classes=5, image_size=8, at=2, blocks=3)
    assert network(torch.rand(2, 3, 8, 8)).shape == (2, 2, 5)


def test_few_exits_are_placed_by_the_seconds_of_the_blocks(monkeypatch):
    seconds = [5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 5.0]
    module = sys.modules["offramp.networks.attach"]
    monkeypatch.setattr(module, "stage_seconds", lambda stages, state: seconds)
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in seconds]
    network = attach(nn.Sequential(*blocks, nn.Linear(4, 3)), "auto", example=torch.rand(2, 4))
    assert network.num_exits == 4
    assert network.exit_names == ("0.1", "5.1", "6.1", "last")  # after 5, 10 and 15 of 20


def test_seconds_are_measured_block_by_block():
    network = build("convnet", num_classes=3, image_size=8, at="auto")
    assert network.num_exits == 4
