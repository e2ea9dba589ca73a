"""Put exits on your own module, with a skip connection that bypasses an exit.

torch.fx traces the module and splits it after the named submodules. A tensor that skips over the
split is carried in the state, so a batch can still shrink there. Saving needs no pickle: the file
holds weights and names, and the module itself is passed in when loading.
"""

import tempfile

import torch
from torch import Tensor, nn

from offramp.networks import EarlyExitNetwork, attach, count_macs


class LongSkip(nn.Module):
    """Three convolutions; the output of the first is added again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.classifier = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[N, 10]` from images."""
        kept = self.stem(x)
        x = torch.relu(self.last(self.middle(kept)) + kept)
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


torch.manual_seed(0)
backbone = LongSkip().eval()
images = torch.rand(4, 3, 32, 32)
network = attach(backbone, at=["stem", "middle"], example=images).eval()

with torch.no_grad():
    assert torch.equal(network(images)[:, -1], backbone(images))
    state = network.advance(1, network.advance(0, network.begin(images)))
print("carried past the exit after `middle`:", [tuple(each.shape) for each in state])
print("MACs up to each exit:", [int(cost) for cost in count_macs(network).cumulative])

with tempfile.TemporaryDirectory() as folder:
    network.save(folder)
    again = EarlyExitNetwork.load(folder, backbone=LongSkip()).eval()
with torch.no_grad():
    assert torch.equal(again(images), network(images))
print("saved and loaded exactly; fingerprint", network.fingerprint()[:12])
