"""Networks on the Hugging Face hub, in our own format: safetensors and JSON, never pickle.

Only the base mixin of `huggingface_hub` is used. Its PyTorch mixin falls back to pickle files.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from offramp.extras import require
from offramp.networks.network import EarlyExitNetwork

__all__ = ["from_pretrained", "push_to_hub"]

_FILES = ("network.json", "*.safetensors")

_CARD = """---
library_name: offramp
tags:
- early-exit
---
# An early-exit network

{exits} exits, {classes} classes. Load it with:

```python
from offramp import EarlyExitNetwork

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
