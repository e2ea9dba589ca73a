"""The size and type of inputs: stated once, remembered, and nothing else is answered."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import offramp
from offramp.errors import NetworkError
from offramp.networks import EarlyExitNetwork, build, count_macs, register_builder


class Residual(nn.Module):
    def __init__(self, channels, num_classes):
        super().__init__()
        self.stem = nn.Conv2d(channels, 4, 3, padding=1)
        self.block = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, num_classes)

    def forward(self, x):
        x = self.stem(x).relu()
        x = x + self.block(x).relu()
        return self.head(x.mean((2, 3)))


def residual(num_classes, channels=3):
    return Residual(channels, num_classes)


register_builder("residual", residual)


@pytest.mark.parametrize("channels", [3, 1])
def test_a_traced_module_is_built_by_name_and_loads_from_its_file(tmp_path, channels):
    more = {} if channels == 3 else {"channels": channels}
    network = build("residual", num_classes=5, image_size=16, **more).eval()
    assert network.inputs == offramp.networks.ImageInput(16, 16, channels)
    again = EarlyExitNetwork.load(network.save(tmp_path / "network"))
    images = torch.rand(2, channels, 16, 16)
    torch.testing.assert_close(again(images), network(images))


def resnet(example=None):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3
    )
    return offramp.attach(transformers.ResNetForImageClassification(config), example=example)


def samples(size, dtype=torch.float32):
    return TensorDataset(torch.rand(30, 3, size, size).to(dtype), torch.arange(30) % 3)


def test_a_model_without_a_size_takes_that_of_its_data_for_good(tmp_path):
    network = resnet()
    assert network.inputs.assumed
    with pytest.raises(NetworkError, match="224x224 is a guess, and these have 32x32: record"):
        network.inputs.begin(samples(32)[:2][0], counted=True)
    ledger = offramp.record(network, samples(32), "all", progress=False)
    loaded = EarlyExitNetwork.load(network.save(tmp_path / "network"))
    assert (loaded.inputs.height, loaded.inputs.assumed) == (32, False)
    assert np.array_equal(count_macs(loaded).cumulative, ledger.costs)
    with pytest.raises(NetworkError, match="counted for images of 32x32, got 40x40: resize"):
        offramp.record(network, samples(40), "all", progress=False)


def test_an_example_states_the_size():
    inputs = resnet(torch.rand(1, 3, 24, 32)).inputs
    assert (inputs.height, inputs.width, inputs.assumed) == (24, 32, False)


def test_training_states_the_size_too():
    network = resnet()
    config = offramp.TrainConfig(epochs=1, patience=None)
    offramp.train(network, samples(24), config=config)
    assert network.inputs.height == 24 and not network.inputs.assumed


@pytest.fixture(scope="module")
def runner():
    network = build("residual", num_classes=3, image_size=16)
    held_out, val, _ = offramp.record(network, samples(16), "all", progress=False).partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val, "geometric")
    return offramp.Runner(network, policy.at(budget=1.0))


def test_a_runner_takes_numpy_arrays_and_dicts(runner):
    images = torch.rand(4, 3, 16, 16)
    expected = runner(images).logits
    frozen = images.numpy().copy()
    frozen.flags.writeable = False
    torch.testing.assert_close(
        runner({"pixel_values": images, "labels": torch.zeros(4)}).logits, expected
    )
    for batch in (images.numpy(), frozen):
        found = runner(batch).logits
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 3, 16, 16, dtype=torch.uint8), "must be float32, got uint8: pixels have"),
        (np.zeros((2, 3, 16, 16)), r"must be float32, got float64: convert them, .*float32"),
        (torch.zeros(2, 1, 16, 16), r"images must be a tensor \[N, 3, .* got \[2, 1, 16, 16\]"),
        (torch.zeros(2, 3, 14, 14), r"takes images of the shape \[N, 3, 16, 16\], got"),
        (torch.zeros(3, 16, 16), r"images must be a tensor \[N, 3, height, width\]"),
        (np.array([None, "a"]), "a batch must be numbers, got an array of object"),
    ],
)
def test_other_inputs_get_a_message(runner, images, message):
    with pytest.raises(NetworkError, match=message):
        runner(images)


def test_dicts_with_labels_are_batches():
    class Rows(torch.utils.data.Dataset):
        def __init__(self, label):
            self.label = label

        def __len__(self):
            return 6

        def __getitem__(self, row):
            return {"pixel_values": torch.full((3, 16, 16), row / 6), self.label: row % 3}

    network = build("residual", num_classes=3, image_size=16)
    for label in ("labels", "label"):
        ledger = offramp.record(network, Rows(label), "val", progress=False)
        assert ledger.labels.tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(offramp.errors.ConfigError, match=r"with pixel_values, y: .* `collate_fn`"):
        offramp.record(network, Rows("y"), "val", progress=False)
