"""One small network with its policy, in every form in which it can be served."""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import offramp
from offramp.data.decoding import Normalization
from offramp.serving import ImageReader, Model
from offramp.serving.images import Reading

SIZE = 8
NORMALIZATION = Normalization((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
READING = Reading(ImageReader(SIZE, normalization=NORMALIZATION), ("ant", "bee", "cat", "dog"))


def pixels(samples=4, seed=0):
    return np.random.default_rng(seed).integers(256, size=(samples, 3, SIZE, SIZE), dtype=np.uint8)


@dataclass
class Small:
    """A network with two exits; tests read its folder, and never write there."""

    network: offramp.networks.EarlyExitNetwork
    policy: offramp.Policy
    folder: Path

    @property
    def model(self):
        return Model(self.folder / "network", self.folder / "policy", reading=READING)

    @cached_property
    def runner(self):
        return offramp.Runner(self.network, self.policy)

    @cached_property
    def export(self):
        """The folder of the export, which knows how images are read."""
        pytest.importorskip("onnxruntime")
        options = {"points": "all", "full": False, "notes": asdict(READING)}
        return offramp.export(self.network, self.policy, self.folder / "export", **options)


def policy_of(network, scorer=None):
    inputs = torch.from_numpy(NORMALIZATION(pixels(150)))
    data = TensorDataset(inputs, torch.arange(150) % 4)
    held_out, val, _ = offramp.record(network, data, split="all", progress=False).partition()
    return offramp.Policy(scorer or offramp.MaxProbability()).fit(held_out).tune(val, "geometric")


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    torch.manual_seed(0)
    network = offramp.build("convnet", num_classes=4, image_size=SIZE, at=2).eval()
    for weight in network.heads.parameters():
        weight.data.mul_(20)
    made = Small(network, policy_of(network).at(budget=0.75), tmp_path_factory.mktemp("small"))
    network.save(made.folder / "network")
    made.policy.save(made.folder / "policy")
    return made
