"""Put exits on a vision model from transformers, and print what each exit costs.

The model has a small configuration and random weights, so this runs offline within seconds. With a
folder or a hub id instead, as in `attach("microsoft/resnet-50")`, pretrained weights are kept.
"""

import torch
from transformers import ResNetConfig, ResNetForImageClassification

import offramp
from offramp.networks import attach, count_macs, take

torch.manual_seed(0)
config = ResNetConfig(
    embedding_size=16, hidden_sizes=[16, 32, 64], depths=[2, 2, 2], layer_type="basic"
)
config.num_labels = 10
backbone = ResNetForImageClassification(config).eval()

# Four exits, evenly spaced in cost; the last one is the model's own classifier.
network = attach(backbone, at=4).eval()
images = torch.rand(8, 3, 64, 64)
with torch.no_grad():
    assert torch.equal(network(images)[:, -1], backbone(images).logits)

macs = count_macs(network, images)
seconds = offramp.profile(network, batch_size=8, inputs=images, seconds=1).at(batch_size=8).costs
print(f"{'exit':32} {'MACs':>12} {'of the whole':>13} {'microseconds':>13}")
for name, cost, time in zip(network.exit_names, macs.cumulative, seconds.cumulative, strict=True):
    share = cost / macs.mean_reference
    print(f"{name:32} {int(cost):12,} {share:13.0%} {time * 1e6:13.0f}")

# The steps that a runtime loops over: here the more confident half of the images leaves.
with torch.no_grad():
    state = network.advance(0, network.begin(images))
    confidence = network.head(0, state).softmax(1).amax(1)
    staying = (confidence < confidence.median()).nonzero().flatten()
    state = network.advance(1, take(state, staying))
print(f"\n{len(images)} images entered, {len(staying)} continued to the second stage")
