"""Attach to models of timm and torchvision; run by the Python of an environment that has them.

Prints one JSON object per model. Not a test by itself: see `test_other_libraries.py`.
"""

import json
import sys
import tempfile

import torch

from offramp.networks import EarlyExitNetwork, attach, count_macs, take
from offramp.networks.backbones import timm_model, torchvision_model

# torchvision needs its own build of torch to import; for models two empty operators will do.
_LIBRARY = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

torch.set_num_threads(1)


def check(source: str, name: str) -> dict[str, object]:
    """What is promised of every backbone, on one model."""
    torch.manual_seed(0)
    make = timm_model if source == "timm" else torchvision_model
    backbone = make(name).eval()
    network = attach(backbone, at=3).eval()
    x = network.example(2)
    with torch.no_grad():
        whole = network(x)
        state = network.advance(0, network.begin(x))
        state = take(state, torch.tensor([1]))
        for exit_index in (1, 2):
            state = network.advance(exit_index, state)
        shrunk = network.head(2, state)
        with tempfile.TemporaryDirectory() as folder:
            network.save(folder)
            loaded = EarlyExitNetwork.load(folder, backbone=make(name)).eval()
        return {
            "model": f"{source}/{name}",
            "exits": network.exit_names,
            "same_as_backbone": torch.equal(whole[:, -1], backbone(x)),
            "shrunk_differs_by": float((shrunk - whole[1:, -1]).abs().max()),
            "loaded_is_exact": torch.equal(loaded(x), whole),
            "widths": [head.settings.get("width") for head in network.heads],
            "macs": count_macs(network, x[:1]).stages.tolist(),
        }


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        source, _, name = argument.partition("/")
        sys.stdout.write(json.dumps(check(source, name)) + "\n")
        sys.stdout.flush()
