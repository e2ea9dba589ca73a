"""Folders: exact, and never able to run code."""

import json
import sys

import pytest
import torch
from torch import nn

from offramp.errors import FileFormatError, MissingExtraError, NetworkError
from offramp.files import kind_of, write_sealed
from offramp.networks import EarlyExitNetwork, Head, attach, build, register_builder
from offramp.networks.heads import LinearHead, Pool
from offramp.networks.inputs import TensorInput


@pytest.fixture
def saved(tmp_path):
    build("convnet", num_classes=3, image_size=16).save(tmp_path)
    return tmp_path


def rewrite(folder, change):
    path = folder / "network.json"
    meta = json.loads(path.read_text())
    change(meta)
    write_sealed(path, meta)


def test_folder_holds_json_and_safetensors_only(saved):
    assert kind_of(saved) == "network"
    assert sorted(path.suffix for path in saved.iterdir()) == [".json", ".safetensors"]


def test_fingerprint_changes_with_any_weight():
    network = build("convnet", num_classes=3, image_size=16)
    before = network.fingerprint()
    with torch.no_grad():
        network.heads[1].linear.bias[0] += 1e-3
    assert network.fingerprint() != before


def test_settings_of_the_architecture_are_kept(tmp_path):
    network = build("msdnet", 3, 16, blocks=2, base=2, factors=(1, 2), channels=1).eval()
    network.save(tmp_path)
    x = torch.rand(2, 1, 16, 16)
    assert torch.equal(EarlyExitNetwork.load(tmp_path).eval()(x), network(x))


def test_precision_is_kept(tmp_path):
    network = build("convnet", num_classes=3, image_size=16).to(torch.bfloat16)
    network.save(tmp_path)
    loaded = EarlyExitNetwork.load(tmp_path)
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    assert loaded.fingerprint() == network.fingerprint()


def test_int8_is_a_quarter_of_the_size_and_within_half_a_step(tmp_path):
    network = build("convnet", num_classes=3, image_size=16).eval()
    sizes = []
    for name, int8 in (("float32", False), ("int8", True)):
        network.save(tmp_path / name, int8=int8)
        sizes.append(next((tmp_path / name).glob("*.safetensors")).stat().st_size)
    loaded = EarlyExitNetwork.load(tmp_path / "int8")
    assert sizes[1] < 0.4 * sizes[0]  # names and norms weigh much in so small a network
    for before, after in zip(network.parameters(), loaded.parameters(), strict=True):
        assert after.dtype == torch.float32
        if before.ndim == 1:
            assert torch.equal(before, after)
            continue
        error = (before - after).flatten(1).abs().amax(1)
        step = before.flatten(1).abs().amax(1) / 127
        assert (error <= 0.501 * step).all()
    loaded.save(tmp_path / "again", int8=True)
    assert EarlyExitNetwork.load(tmp_path / "again").fingerprint() == loaded.fingerprint()


@pytest.mark.parametrize(
    "head", ["pooled-mlp", "two-conv", "separable", "mixed-pool", "mixed-cascade"]
)
def test_heads_are_kept(head, tmp_path):
    network = build("convnet", num_classes=3, image_size=16, head=head).eval()
    network.save(tmp_path)
    loaded = EarlyExitNetwork.load(tmp_path).eval()
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(loaded(x), network(x))


class ScaledHead(Head):
    """A user's own head."""

    def __init__(self, pool: Pool, width: int, num_classes: int) -> None:
        super().__init__(pool, width=width, num_classes=num_classes)
        self.linear = nn.Linear(width, num_classes)

    def classify(self, features, logits_so_far=None):
        return 2 * self.linear(features)


def test_own_subclass_of_head_is_kept(tmp_path):
    def make(state, num_classes, exit_index):
        return ScaledHead(Pool("map"), state.shape[1], num_classes)

    network = build("convnet", num_classes=3, image_size=16, head=make).eval()
    network.save(tmp_path)
    loaded = EarlyExitNetwork.load(tmp_path).eval()
    assert isinstance(loaded.heads[0], ScaledHead)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(loaded(x), network(x))


def test_registered_builder_can_be_loaded(tmp_path):
    register_builder("pair", lambda num_classes, image_size: _pair())
    network = attach(_pair(), example=torch.rand(2, 4)).eval()
    network.save(tmp_path)
    described = {"builder": "pair", "settings": {"num_classes": 2, "image_size": 1}}
    rewrite(tmp_path, lambda meta: meta.update(backbone=described))
    x = torch.rand(3, 4)
    assert torch.equal(EarlyExitNetwork.load(tmp_path).eval()(x), network(x))


def _pair():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))


def test_list_of_stages_is_loaded_into_a_list_of_stages(tmp_path):
    def stages():
        return [nn.Linear(4, 8), nn.Linear(8, 8)]

    network = attach(stages(), num_classes=3, example=torch.rand(2, 4))
    network.save(tmp_path)
    x = torch.rand(3, 4)
    assert torch.equal(EarlyExitNetwork.load(tmp_path, backbone=stages())(x), network(x))


def test_library_that_a_file_needs_is_named(tmp_path, monkeypatch):
    network = build("convnet", num_classes=3, image_size=16)
    network.save(tmp_path)
    described = {"builder": "timm", "settings": {"model": "resnet18"}}
    rewrite(tmp_path, lambda meta: meta.update(backbone=described))
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'offramp\[timm\]'"):
        EarlyExitNetwork.load(tmp_path)


def test_own_backbone_has_to_be_passed_in(tmp_path):
    attach(_pair(), example=torch.rand(2, 4)).save(tmp_path)
    with pytest.raises(FileFormatError, match=r"pass one as load\(folder, backbone=Sequential"):
        EarlyExitNetwork.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["backbone"].update(builder="os.system"), "unknown builder 'os.system'"),
        (lambda m: m["heads"][0].update(name="Popen"), "unknown head 'Popen'"),
        (lambda m: m["heads"][0].update(hidden=3), "settings do not fit LinearHead"),
        (lambda m: m["heads"][0].pop("pool"), "settings do not fit LinearHead"),
        (lambda m: m["inputs"].update(kind="pickle"), "unknown inputs"),
        (lambda m: m["inputs"].update(colour=1), "inputs do not fit image"),
        (lambda m: m.update(at=["blocks.9"]), "does not fit the backbone.*no module `blocks.9`"),
        (lambda m: m.update(at=["blocks.3"]), "exits .* are not those of the backbone"),
        (lambda m: m["backbone"]["settings"].update(width=8), "in the file and floats"),
        (lambda m: m["backbone"]["settings"].update(depth=5), "is missing in the file"),
        (lambda m: m["backbone"]["settings"].update(run=1), "does not describe a network"),
        (lambda m: m.update(fingerprint="0"), "are not those that were saved"),
        (lambda m: m.pop("heads"), "does not describe a network"),
    ],
)
def test_file_that_names_something_unknown_is_refused(saved, change, message):
    rewrite(saved, change)
    with pytest.raises(FileFormatError, match=message):
        EarlyExitNetwork.load(saved)


def test_backbone_of_another_shape_is_refused(tmp_path):
    attach(_pair(), example=torch.rand(2, 4)).save(tmp_path)
    other = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 5), nn.Linear(5, 2))
    before = other[0].weight.clone()
    with pytest.raises(FileFormatError, match=r"\[2, 4\] in the file and floats \[2, 5\] in the"):
        EarlyExitNetwork.load(tmp_path, backbone=other)
    assert torch.equal(other[0].weight, before)
    with pytest.raises(FileFormatError, match="wants the backbone's own classifier"):
        EarlyExitNetwork.load(tmp_path, backbone=[nn.Linear(4, 4) for _ in range(3)])


def test_network_put_together_by_hand_says_how_to_be_saved(tmp_path):
    network = EarlyExitNetwork([nn.Linear(4, 4)], [LinearHead(Pool("flat"), 4, 2)], 2)
    with pytest.raises(NetworkError, match="only networks from `attach`, `build` and `chain`"):
        network.save(tmp_path)


def test_head_that_is_no_head_cannot_be_saved(tmp_path):
    network = attach([nn.Linear(4, 2)], 1, 2, lambda *_: nn.Identity(), torch.rand(2, 4))
    with pytest.raises(NetworkError, match=r"an? Identity cannot be saved as a head"):
        network.save(tmp_path)


def test_unknown_dtype_in_a_file_is_refused():
    with pytest.raises(FileFormatError, match="unknown dtype 'load'"):
        TensorInput((3,), "load").example()
