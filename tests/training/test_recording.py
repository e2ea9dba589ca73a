"""Ledgers from networks and data."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from offramp.errors import ConfigError, LedgerError, NetworkError, SplitError
from offramp.networks import EarlyExitNetwork, LinearHead, Pool, count_macs
from offramp.record import record


class Named(TensorDataset):
    split = "test"
    class_names = ("a", "b", "c")

    @property
    def sample_ids(self):
        return [f"image-{index}" for index in range(len(self))]


def test_a_ledger_holds_what_the_network_says_in_the_datas_order(convnet, data):
    ledger = record(convnet, data, split="val", batch_size=10, progress=False)
    convnet.eval()
    with torch.no_grad():
        expected = convnet(data.tensors[0])
    np.testing.assert_allclose(ledger.logits, expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(ledger.labels, data.tensors[1])
    assert ledger.network == convnet.fingerprint()
    assert ledger.cost_model == count_macs(convnet)
    assert ledger.unit == "macs"


def test_what_the_data_know_goes_into_the_ledger(convnet, data):
    ledger = record(convnet, Named(*data.tensors), progress=False)
    assert ledger.split == "test"
    assert ledger.class_names == ["a", "b", "c"]
    assert ledger.sample_ids[:2] == ["image-0", "image-1"]
    with pytest.raises(SplitError, match="the data are the split 'test', and split='val'"):
        record(convnet, Named(*data.tensors), split="val", progress=False)


def test_recording_leaves_the_mode_of_the_network(convnet, data):
    convnet.train()
    before = convnet.fingerprint()
    record(convnet, data, split="val", progress=False)
    assert convnet.training
    assert convnet.fingerprint() == before


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_precisions(convnet, data, dtype, precision):
    ledger = record(convnet, data, split="val", dtype=dtype, precision=precision, progress=False)
    assert ledger.dtype == dtype
    exact = record(convnet, data, split="val", progress=False)
    np.testing.assert_allclose(ledger.logits, exact.logits, atol=0.05, rtol=0.05)


class Listing(nn.Module):
    """Somebody else's network: a list of logits."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(192, 3), nn.Linear(192, 3)

    def forward(self, x):
        return [self.first(x.flatten(1)), self.second(x.flatten(1))]


def test_any_module_that_returns_a_list_of_logits(data):
    ledger = record(Listing(), data, split="val", costs=[0.5, 1.0], progress=False)
    assert ledger.logits.shape == (64, 2, 3)
    assert ledger.unit == "relative"
    assert ledger.network is not None
    with pytest.raises(ConfigError, match="the costs of a Listing are not known: pass costs="):
        record(Listing(), data, split="val", progress=False)


class Routing(nn.Module):
    """Behaves as the wrapper of earlyon: stops by itself, one sample at a time, unless asked."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, mode="inference"):
        if mode == "training":
            return list(self.network(x).unbind(1))
        if len(x) != 1:
            raise RuntimeError("single-sample inference requires batch_size=1")
        return {"prediction": self.network(x)[:, 0], "exit_taken": 0}


def test_a_wrapper_that_stops_by_itself_is_asked_for_all_its_exits(convnet, data):
    own = record(convnet, data, split="val", progress=False)
    routing = Routing(convnet).train()
    options = {"costs": own.costs.tolist(), "batch_size": 6, "progress": False}
    ledger = record(routing, data, split="val", **options)
    # in eval mode, or norms would differ
    np.testing.assert_allclose(ledger.logits, own.logits, rtol=1e-5, atol=1e-5)
    assert routing.training  # and left as it was


def test_a_shuffling_loader_is_recorded_in_the_datas_order(convnet, data):
    plain = record(convnet, data, split="val", progress=False)
    loader = DataLoader(data, batch_size=7, shuffle=True)
    shuffled = record(convnet, loader, split="val", progress=False)
    assert np.array_equal(shuffled.logits, plain.logits)


def test_a_network_without_known_inputs_is_counted_on_the_data():
    network = EarlyExitNetwork(
        [nn.Linear(4, 8), nn.Linear(8, 8)],
        [LinearHead(Pool("flat"), 8, 3) for _ in range(2)],
        num_classes=3,
    )
    data = TensorDataset(torch.rand(9, 4), torch.arange(9) % 3)
    assert record(network, data, split="val", progress=False).costs.tolist() == [56.0, 144.0]


def test_impossible_requests_are_named(convnet, data):
    images, labels = data.tensors
    for error, settings, message in (
        (SplitError, {}, "the data do not say which split they are"),
        (
            ConfigError,
            {"split": "val", "dtype": "int8"},
            "`dtype` must be one of float16, float32",
        ),
        (
            ConfigError,
            {"split": "val", "precision": "int8"},
            "`precision` must be one of auto, float32",
        ),
        (
            ConfigError,
            {"split": "val", "batch_size": 0},
            "`batch_size` must be a whole number of at least 1",
        ),
    ):
        with pytest.raises(error, match=message):
            record(convnet, data, progress=False, **settings)
    with pytest.raises(LedgerError, match=r"labels must lie in 0\.\.2"):
        record(convnet, TensorDataset(images, labels + 3), "val", progress=False)
    with pytest.raises(LedgerError, match="the data have soft targets"):
        record(convnet, TensorDataset(images, torch.rand(64, 3)), "val", progress=False)
    with pytest.raises(NetworkError, match="must return a list of logits"):
        record(nn.Flatten(), data, "val", costs=[1.0], progress=False)
