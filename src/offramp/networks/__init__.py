"""Networks with exits: attach them to any backbone, or build the paper's; count what they cost."""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

if TYPE_CHECKING:
    from offramp.networks.attach import attach
    from offramp.networks.backbones import register_builder
    from offramp.networks.build import build, build_for_data
    from offramp.networks.chain import chain
    from offramp.networks.heads import (
        CascadeHead,
        Head,
        LinearHead,
        MLPHead,
        Pool,
        SeparableHead,
        TwoConvHead,
    )
    from offramp.networks.inputs import ImageInput, Inputs, TensorInput, TextInput
    from offramp.networks.layout import Layout
    from offramp.networks.macs import count_macs
    from offramp.networks.network import EarlyExitNetwork
    from offramp.networks.state import Shared, State, take

__all__ = [
    "CascadeHead",
    "EarlyExitNetwork",
    "Head",
    "ImageInput",
    "Inputs",
    "Layout",
    "LinearHead",
    "MLPHead",
    "Pool",
    "SeparableHead",
    "Shared",
    "State",
    "TensorInput",
    "TextInput",
    "TwoConvHead",
    "attach",
    "build",
    "build_for_data",
    "chain",
    "count_macs",
    "register_builder",
    "take",
]

import_when_asked(__name__)
