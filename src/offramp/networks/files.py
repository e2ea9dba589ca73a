"""Networks on disk: JSON that names registered builders and heads, and safetensors."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offramp.errors import FileFormatError, NetworkError
from offramp.extras import require
from offramp.networks.attach import joined_stages, lay_out
from offramp.networks.build import BUILDERS
from offramp.networks.heads import BackboneHead, Head
from offramp.networks.inputs import Inputs, TensorInput
from offramp.networks.layout import Layout
from offramp.networks.network import EarlyExitNetwork, Origin
from offramp.storage import read_folder, write_folder

VERSION = 1


def fingerprint(network: nn.Module) -> str:
    """A hash of all weights and buffers, and of their names, types and shapes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(_distinct(network).items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        plain = tensor.detach().cpu().contiguous().flatten()
        digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _distinct(network: nn.Module) -> dict[str, Tensor]:
    """The state dict, without further names of a tensor that is used in several places."""
    seen: set[int] = set()
    result = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            result[name] = tensor
    return result


def save(network: EarlyExitNetwork, folder: str | Path) -> Path:
    """Write a network; see `EarlyExitNetwork.save`."""
    origin = network.origin
    if origin is None:
        raise NetworkError(
            "only networks from `attach` and `build` know how to be made again; attach to your "
            "list of stages, and pass the list to `load` as `backbone`"
        )
    meta = {
        "backbone": {
            "builder": origin.builder,
            "settings": origin.settings,
            "class": origin.backbone,
        },
        "at": list(origin.at),
        "num_classes": network.num_classes,
        "inputs": network.inputs.describe(),
        "heads": [_describe(head) for head in network.heads],
        "fingerprint": fingerprint(network),
    }
    return write_folder(folder, "network", VERSION, meta, _distinct(network))


def _describe(head: nn.Module) -> dict[str, Any] | None:
    if isinstance(head, BackboneHead):
        return None
    if not isinstance(head, Head):
        raise NetworkError(
            f"a {type(head).__name__} cannot be saved as a head; make it a subclass of "
            "offramp.networks.Head"
        )
    return head.describe()


def load(
    folder: str | Path, backbone: nn.Module | Sequence[nn.Module] | None = None
) -> EarlyExitNetwork:
    """Read a network; see `EarlyExitNetwork.load`."""
    meta, tensors = read_folder(folder, "network", VERSION)
    try:
        network = _rebuild(meta, backbone)
    except (KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{folder} does not describe a network: {error!r}") from error
    except NetworkError as error:
        raise FileFormatError(f"{folder} does not fit the backbone: {error}") from error
    _fill(network, tensors, folder)
    if fingerprint(network) != meta["fingerprint"]:
        raise FileFormatError(f"the weights in {folder} are not those that were saved there")
    return network.eval()


def _rebuild(
    meta: dict[str, Any], backbone: nn.Module | Sequence[nn.Module] | None
) -> EarlyExitNetwork:
    told = meta["backbone"]
    origin = Origin(tuple(meta["at"]), told["builder"], told["settings"], told["class"])
    inputs = Inputs.restore(meta["inputs"])
    module = _build(origin) if backbone is None else backbone
    names = list(origin.at)
    # Only a traced module is probed with an example, and that always is one tensor.
    example = inputs.example(2) if isinstance(inputs, TensorInput) else None
    layout = lay_out(module, names, example)
    exits = layout.exits_after(names)
    if exits != names:
        raise FileFormatError(f"the file's exits {names} are not those of the backbone, {exits}")
    heads = [_own(layout) if each is None else Head.restore(each) for each in meta["heads"]]
    stages = joined_stages(layout, exits)
    network = EarlyExitNetwork(stages, heads, meta["num_classes"], inputs, (*exits, "last"))
    # New heads are made on the CPU, wherever the backbone is.
    network.heads.to(next((p.device for p in network.stages.parameters()), None))
    network.origin = origin
    return network


def _build(origin: Origin) -> nn.Module:
    if origin.builder is None:
        raise FileFormatError(
            f"this network was attached to a backbone of your own, a {origin.backbone}: pass "
            f"one as load(folder, backbone={origin.backbone}(...)). Commands cannot make it: run "
            "and export such a network from Python"
        )
    builder = BUILDERS.get(origin.builder)
    if builder is None:
        raise FileFormatError(
            f"the file names an unknown builder {origin.builder!r}; if it is your own, call "
            "register_builder before loading"
        )
    return builder(**origin.settings)


def _own(layout: Layout) -> BackboneHead:
    if layout.classifier is None:
        raise FileFormatError("the file wants the backbone's own classifier, and it has none")
    return BackboneHead(layout.classifier)


def _fill(network: EarlyExitNetwork, tensors: dict[str, Tensor], folder: str | Path) -> None:
    """Copy the file's tensors into the network, in place and in the file's precision."""
    targets = _distinct(network)
    for name in sorted(targets.keys() ^ tensors.keys()):
        place = "the file" if name in targets else "the network"
        raise FileFormatError(f"{folder} does not fit the backbone: {place} has no tensor {name}")
    for name, tensor in tensors.items():
        if targets[name].shape != tensor.shape:
            raise FileFormatError(
                f"{folder} does not fit the backbone: {name} has the shape "
                f"{list(tensor.shape)} in the file and {list(targets[name].shape)} in the network"
            )
    for name, tensor in tensors.items():
        # A copy, since the file is only mapped into memory.
        targets[name].data = tensor.to(targets[name].device, copy=True)


_FILES = ("network.json", "*.safetensors")

_CARD = """---
library_name: offramp
tags:
- early-exit
---
# An early-exit network

{exits} exits, {classes} classes. Load it with:

```python
from offramp.networks import EarlyExitNetwork

network = EarlyExitNetwork.from_pretrained("owner/name")
```
"""


def _shelf() -> Any:  # noqa: ANN401 - a class whose parent is imported when it is needed
    """The class that carries a network to the hub and back."""
    hub = require("huggingface_hub", extra="train")

    class Shelf(hub.ModelHubMixin):  # type: ignore[misc, name-defined]
        def __init__(self, network: EarlyExitNetwork) -> None:
            self.network = network

        def _save_pretrained(self, save_directory: Path) -> None:
            network = self.network
            network.save(save_directory)
            # The hub counts downloads of config.json; our own format does not need it.
            config = {"library_name": "offramp", "exit_names": network.exit_names}
            (save_directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
            card = _CARD.format(exits=network.num_exits, classes=network.num_classes)
            (save_directory / "README.md").write_text(card)

        @classmethod
        def _from_pretrained(
            cls,
            *,
            model_id: str,
            backbone: nn.Module | Sequence[nn.Module] | None = None,
            **download: Any,  # noqa: ANN401
        ) -> "Shelf":
            folder = hub.snapshot_download(model_id, allow_patterns=list(_FILES), **download)
            return cls(EarlyExitNetwork.load(folder, backbone))

    return Shelf


def from_pretrained(
    name: str | Path,
    backbone: nn.Module | Sequence[nn.Module] | None = None,
    **download: Any,  # noqa: ANN401
) -> EarlyExitNetwork:
    """Load a network from a folder or from the hub; see `EarlyExitNetwork.from_pretrained`."""
    if Path(name).is_dir():
        return EarlyExitNetwork.load(name, backbone)
    shelf = _shelf().from_pretrained(str(name), backbone=backbone, **download)
    network: EarlyExitNetwork = shelf.network
    return network


def push_to_hub(network: EarlyExitNetwork, repo_id: str, **upload: Any) -> str:  # noqa: ANN401
    """Save a network and upload it; see `EarlyExitNetwork.push_to_hub`."""
    return str(_shelf()(network).push_to_hub(repo_id, **upload))
