"""A wrapper from earlyon, first with thresholds from this library, then converted to it.

    pip install earlyon

Three steps, each useful on its own: record the wrapper, write thresholds chosen here back into it,
and convert its backbone and heads, after which the samples of a batch leave one by one. Network
and images are random; the point is how the two libraries fit together.
"""

import numpy as np
import torch
from earlyon.models import custom_ee
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import offramp
from offramp.arrays import sigmoid

torch.manual_seed(0)
images, labels = torch.randn(900, 3, 32, 32), torch.arange(900) % 10
backbone = nn.Sequential(
    nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU()),
    nn.Sequential(nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
    nn.Sequential(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
    nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
)
wrapper = custom_ee(backbone, ["0", "1"], num_classes=10, input_shape=(1, 3, 32, 32)).eval()

# Record: the wrapper returns all exits. Its own FLOPs estimate does not include the heads.
shares = [*wrapper.flops_estimate.fractions.values(), 1.0]
data = TensorDataset(images, labels)
ledger = offramp.record(wrapper, data, "all", costs=shares, progress=False)
held_out, val, test = ledger.partition()
policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val).at(budget=0.7)
print(offramp.evaluate(policy, test))

# Write back: max-probability scores are log-odds, while earlyon compares probabilities.
thresholds = policy.thresholds[:-1]
wrapper.config.confidence_thresholds = sigmoid(thresholds).tolist()
wrapper.config.enabled_exits = np.isfinite(thresholds).tolist()
rows = test.sample_ids[:50]
taken = [wrapper(image[None]).exit_taken for image in images[rows]]
same = (np.array(taken) % 3 == policy.decide(test)[:50]).sum()  # -1 is the last of three
print(f"{same} of 50 images leave earlyon's wrapper at the exit that the ledger predicts")


# Convert: the same backbone and the same heads, as separate stages.
class EarlyonHead(nn.Module):
    """A head of earlyon with the interface of a head of this library."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, state: Tensor, logits_so_far: Tensor | None = None) -> Tensor:
        """Logits `[n, K]`."""
        logits: Tensor = self.head(state)
        return logits


heads = list(wrapper.exit_heads.values())
network = offramp.attach(
    wrapper.backbone,
    at=[point.layer_name for point in wrapper.config.exit_points],
    example=images[:2],
    head=lambda state, num_classes, exit_index: EarlyonHead(heads[exit_index]),
).eval()
with torch.no_grad():
    theirs = torch.stack(wrapper(images[:8], mode="training"), 1)
    print("same logits:", torch.equal(network(images[:8]), theirs))

ledger = offramp.record(network, data, "all", progress=False)  # MACs are counted, heads included
held_out, val, test = ledger.partition()
policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val).at(budget=0.7)
output = offramp.Runner(network, policy)(images[:64])
print("left at exits 0, 1, 2:", torch.bincount(output.exits, minlength=3).tolist())
