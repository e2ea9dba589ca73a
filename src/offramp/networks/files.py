"""Networks on disk and on the hub: JSON that names registered builders and heads, and safetensors.

Loading runs no code of a file: a file can name what is known here, and nothing else.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from offramp.errors import FileFormatError, NetworkError, OfframpError
from offramp.files import read_folder, restore, write_folder
from offramp.imports import require
from offramp.networks.backbones import BackboneModules, Origin, find_layout, rebuild_backbone
from offramp.networks.chain import chain
from offramp.networks.heads import BackboneHead, Head
from offramp.networks.inputs import ImageInput, Inputs, TensorInput
from offramp.networks.layout import Layout
from offramp.networks.network import EarlyExitNetwork, distinct_tensors, hash_of

FORMAT_VERSION = 1
_SCALE = ".int8_scale"  # follows the name of a weight that is stored as int8

# The hub counts downloads of config.json; our own format does not need it.
_HUB_FILES = ("network.json", "*.safetensors", "config.json")

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


def save_network(network: EarlyExitNetwork, folder: str | Path, int8: bool = False) -> Path:
    """See `EarlyExitNetwork.save`."""
    tensors = distinct_tensors(network)
    stored = _to_int8(tensors) if int8 else tensors
    meta = _describe(network)
    meta["fingerprint"] = hash_of(_from_int8(stored) if int8 else tensors)
    return write_folder(folder, "network", FORMAT_VERSION, meta, stored)


def load_network(
    folder: str | Path, backbone: BackboneModules | None = None, links_into: Path | None = None
) -> EarlyExitNetwork:
    """See `EarlyExitNetwork.load`; files may be links into the folder `links_into`."""
    meta, tensors = read_folder(folder, "network", FORMAT_VERSION, links_into, tensors=True)
    try:
        network = _restore(meta, backbone, folder)
    except NetworkError as error:
        raise FileFormatError(f"{folder} does not fit the backbone: {error}") from error
    except OfframpError:
        raise
    # Builders and heads are anybody's, and what they do with odd settings is not known.
    except Exception as error:
        raise FileFormatError(f"{folder} does not describe a network: {error!r}") from error
    _load_tensors(network, _from_int8(tensors), folder)
    if network.fingerprint() != meta["fingerprint"]:
        raise FileFormatError(f"the weights in {folder} are not those that were saved there")
    return network.eval()


def download_network(
    name: str,
    backbone: BackboneModules | None = None,
    **download: Any,  # noqa: ANN401 - see huggingface_hub
) -> EarlyExitNetwork:
    """Load a network from the hub, see `EarlyExitNetwork.from_pretrained`."""
    hub = require("huggingface_hub", extra="train")
    folder = Path(hub.snapshot_download(name, allow_patterns=list(_HUB_FILES), **download))
    # In its cache, OWNER--NAME/snapshots/COMMIT/FILE is a link to OWNER--NAME/blobs/HASH.
    return load_network(folder, backbone, links_into=folder.parent.parent)


def upload_network(network: EarlyExitNetwork, repo_id: str, **upload: Any) -> str:  # noqa: ANN401
    """See `EarlyExitNetwork.push_to_hub`."""
    hub = require("huggingface_hub", extra="train")

    class Upload(hub.ModelHubMixin):  # type: ignore[misc, name-defined]
        def _save_pretrained(self, save_directory: Path) -> None:
            _save_with_card(network, save_directory)

    return str(Upload().push_to_hub(repo_id, **upload))


def _save_with_card(network: EarlyExitNetwork, folder: Path) -> None:
    save_network(network, folder)
    config = {"library_name": "offramp", "exit_names": network.exit_names}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    card = _CARD.format(exits=network.num_exits, classes=network.num_classes)
    (folder / "README.md").write_text(card)


def _describe(network: EarlyExitNetwork) -> dict[str, Any]:
    """How to make a network again, as JSON values."""
    if network.members:
        _check_members(network)
        return {"members": [_describe(member) for member in network.members]}
    origin = network.origin
    if origin is None:
        raise NetworkError(
            "only networks from `attach`, `build` and `chain` know how to be made again; attach "
            "to your list of stages, and pass the list to `load` as `backbone`"
        )
    return {
        "backbone": asdict(origin),
        "at": list(network.exit_names[:-1]),
        "num_classes": network.num_classes,
        "inputs": network.inputs.describe(),
        "heads": [_describe_head(head) for head in network.heads],
    }


def _check_members(network: EarlyExitNetwork) -> None:
    """Raise unless the networks of a chain can be made again without any help."""
    if any(member.origin is None or not member.origin.builder for member in network.members):
        raise NetworkError(
            "a chain can be saved if a file can name the backbones of all its networks: make "
            "yours known with offramp.networks.register_builder, and make the network with `build`"
        )
    if len(distinct_tensors(network)) < sum(len(distinct_tensors(m)) for m in network.members):
        raise NetworkError("a chain whose networks share weights cannot be saved")


def _describe_head(head: nn.Module) -> dict[str, Any] | None:
    if isinstance(head, BackboneHead):
        return None
    if not isinstance(head, Head):
        raise NetworkError(
            f"a {type(head).__name__} cannot be saved as a head; make it a subclass of "
            "offramp.networks.Head"
        )
    return head.describe()


class _Description(TypedDict):
    """What `save` writes."""

    backbone: Origin
    at: list[str]
    num_classes: int
    inputs: dict[str, Any]
    heads: list[dict[str, Any] | None]


class _ChainDescription(TypedDict):
    """The same of a chain."""

    members: list[dict[str, Any]]


def _restore(
    meta: dict[str, Any], backbone: BackboneModules | None, folder: str | Path
) -> EarlyExitNetwork:
    """The network that a file describes, with the backbone's or random weights."""
    is_chain, where = "members" in meta, f"{folder} does not describe a network"
    found = restore(_ChainDescription if is_chain else _Description, meta, where)
    if is_chain:
        if backbone is not None:
            raise NetworkError("it is a chain, which needs no backbone: its file names them all")
        return chain([_restore(member, None, folder) for member in found["members"]])
    inputs = Inputs.restore(found["inputs"])
    if backbone is None:
        backbone = rebuild_backbone(found["backbone"])
    # Only a traced module is probed with an example, which always is one tensor.
    example = inputs.example(2) if isinstance(inputs, TensorInput | ImageInput) else None
    layout = find_layout(backbone, found["at"], example)
    exits = layout.exits_after(found["at"])
    if exits != found["at"]:
        raise FileFormatError(
            f"the file's exits {found['at']} are not those of the backbone, {exits}"
        )
    heads = [
        _backbone_head(layout) if each is None else Head.restore(each) for each in found["heads"]
    ]
    names = (*exits, "last")
    network = EarlyExitNetwork(layout.stages(exits), heads, found["num_classes"], inputs, names)
    # New heads are made on the CPU, wherever the backbone is.
    network.heads.to(next((p.device for p in network.stages.parameters()), None))
    network.origin = found["backbone"]
    return network


def _backbone_head(layout: Layout) -> BackboneHead:
    if layout.classifier is None:
        raise FileFormatError("the file wants the backbone's own classifier, and it has none")
    return BackboneHead(layout.classifier)


def _to_int8(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices and kernels as int8 with a scale per row, all else as it is."""
    stored = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or not tensor.is_floating_point():
            stored[name] = tensor
            continue
        rows = tensor.detach().float().flatten(1)
        scale = rows.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
        stored[name] = (rows / scale).round().to(torch.int8).view(tensor.shape)
        stored[name + _SCALE] = scale.squeeze(1)
    return stored


def _from_int8(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """What `_to_int8` stands for, in float32; other tensors as they are."""
    tensors = {}
    for name, tensor in stored.items():
        scale = stored.get(name + _SCALE)
        if scale is not None:
            tensor = (tensor.flatten(1).float() * scale[:, None]).view(tensor.shape)
        if not name.endswith(_SCALE):
            tensors[name] = tensor
    return tensors


def _load_tensors(network: nn.Module, tensors: dict[str, Tensor], folder: str | Path) -> None:
    """Put the file's tensors into the network, in the file's precision."""
    targets = distinct_tensors(network)
    for name in sorted(targets.keys() | tensors.keys()):
        there, here = (_kind(each.get(name)) for each in (tensors, targets))
        if there != here:
            raise FileFormatError(
                f"{folder} does not fit the backbone: {name} is {there} in the file and {here} in "
                "the network"
            )
    for name, tensor in tensors.items():
        # a copy, since the file is only mapped into memory.
        targets[name].data = tensor.to(targets[name].device, copy=True)


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "missing"
    return f"{'floats' if tensor.is_floating_point() else 'whole numbers'} {list(tensor.shape)}"
