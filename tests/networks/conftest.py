"""Small networks of every kind, made once per test, in a process that never asks the hub."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from offramp.networks import EarlyExitNetwork, attach
from offramp.networks.backbones import Origin
from offramp.registry import BUILDERS

NUM_CLASSES = 5

# Run by the Python of another environment.
collect_ignore = ["elsewhere"]


@dataclass
class Case:
    """A backbone, the network that was attached to it, and a batch for both."""

    backbone: Any
    network: EarlyExitNetwork
    batch: Any
    backbone_for_load: Callable[[], Any]

    def backbone_logits(self) -> Tensor:
        if isinstance(self.batch, dict):
            return self.backbone(**self.batch).logits
        output = self.backbone(self.batch)
        return output if isinstance(output, Tensor) else output.logits


class SkipNet(nn.Module):
    """A skip over the second exit, functional dropout, and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.norm(self.first(x)).relu()
        y = nn.functional.dropout(self.second(kept), 0.5, self.training)
        y = self.third(y) + kept
        return self.fc(y.mean((2, 3)))


class SharedNet(nn.Module):
    """Carries a scaled parameter, which is the same for all samples, over the first exit."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.fc = nn.Linear(8, NUM_CLASSES)
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale * 2
        return self.fc(self.second(self.first(x)) * scale)


def sequential() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, NUM_CLASSES),
    )


def images(size: int, rows: int = 4) -> Tensor:
    return torch.rand(rows, 3, size, size)


def texts(rows: int = 4) -> dict[str, Tensor]:
    """Token ids with padding of 1 on the right of every sentence but the first."""
    ids = torch.randint(3, 50, (rows, 9))
    lengths = torch.tensor([9, 5, 7, 3])[:rows]
    mask = (torch.arange(9) < lengths.unsqueeze(1)).long()
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}


# Name of the builder, where the exits go, settings.
BUILT = {
    "convnet": ("convnet", "every-block", {"image_size": 16}),
    "resnet": ("thin-resnet", 2, {"image_size": 16, "depth": 8}),
    "vit": ("vit-tiny", "every-block", {"image_size": 16, "depth": 2}),
    "vit-stem": ("vit-mini", "every-block", {"image_size": 16, "depth": 2}),
    "efficientnet": (
        "efficientnet-b0",
        ["blocks.0", "blocks.3", "blocks.8"],
        {"image_size": 32, "width_factor": 0.25, "depth_factor": 0.5},
    ),
    "efficientnet-lite": (
        "efficientnet-b0",
        3,
        {"image_size": 32, "depth_factor": 0.3, "lite": True},
    ),
    "msdnet": ("msdnet", "every-block", {"image_size": 16, "blocks": 3}),
    "msdnet-large": (
        "msdnet",
        "every-block",
        {"image_size": 96, "blocks": 3, "width": 8, "growth": 4, "step_mode": "even"},
    ),
    "msdnet-short": (
        "msdnet",
        "every-block",
        {"image_size": 16, "blocks": 2, "base": 2, "bottleneck": False},
    ),
}

_VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": NUM_CLASSES,
}
_BERT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 20,
    "pad_token_id": 1,
    "num_labels": NUM_CLASSES,
}
_DISTILBERT = {
    "vocab_size": 50,
    "dim": 16,
    "n_layers": 3,
    "n_heads": 2,
    "hidden_dim": 32,
    "max_position_embeddings": 20,
    "pad_token_id": 1,
    "num_labels": NUM_CLASSES,
}
_RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 2],
    "layer_type": "basic",
    "num_labels": NUM_CLASSES,
}
_CONVNEXT = {"hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2, "num_labels": NUM_CLASSES}
_EFFICIENTNET = {
    "image_size": 32,
    "width_coefficient": 0.25,
    "depth_coefficient": 0.5,
    "hidden_dim": 320,
    "num_labels": NUM_CLASSES,
}

_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "window_size": 4,
    "num_labels": NUM_CLASSES,
}

IMAGE_MODELS = {
    "ResNetForImageClassification": _RESNET,
    "ViTForImageClassification": _VIT,
    "DeiTForImageClassification": _VIT,
    "DeiTForImageClassificationWithTeacher": _VIT,
    "ConvNextForImageClassification": _CONVNEXT,
    "SwinForImageClassification": _SWIN,
    "EfficientNetForImageClassification": _EFFICIENTNET,
}
TEXT_MODELS = {
    "BertForSequenceClassification": _BERT,
    "RobertaForSequenceClassification": _BERT,
    "ElectraForSequenceClassification": {**_BERT, "embedding_size": 8},
    "DistilBertForSequenceClassification": _DISTILBERT,
}
OWN = {
    "sequential": (sequential, "every-block"),
    "skip": (SkipNet, "every-block"),
    "skip-named": (SkipNet, ["second"]),
    "shared": (SharedNet, ["first"]),
}
KINDS = (*BUILT, *IMAGE_MODELS, *TEXT_MODELS, *OWN)


def transformers_model(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    model_class = getattr(transformers, name)
    settings = {**IMAGE_MODELS, **TEXT_MODELS}[name]
    return model_class(model_class.config_class(**settings))


def _own(kind: str) -> Case:
    make, at = OWN[kind]
    backbone, batch = make(), torch.rand(4, 8) if kind == "shared" else images(8)
    return Case(backbone, attach(backbone, at=at, example=batch), batch, make)


def _built(kind: str) -> Case:
    name, at, settings = BUILT[kind]
    settings = {**settings, "num_classes": NUM_CLASSES}
    backbone = BUILDERS[name](**settings)
    network = attach(backbone, at)
    network.origin = Origin(type(backbone).__name__, name, settings)
    return Case(backbone, network, images(settings["image_size"]), lambda: None)


def make_case(kind: str) -> Case:
    """The small network of this kind, in eval mode, with batch norms that have seen data."""
    torch.manual_seed(0)
    if kind in BUILT:
        case = _built(kind)
    elif kind in OWN:
        case = _own(kind)
    else:
        backbone = transformers_model(kind)
        batch = texts() if kind in TEXT_MODELS else images(32)
        case = Case(backbone, attach(backbone), batch, lambda: None)
    with torch.no_grad():
        case.network.train()(case.batch)
    case.network.eval()
    case.backbone.eval()
    return case


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=KINDS, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    """One for all tests of a module, which leave it as it was."""
    return make_case(request.param)


@pytest.fixture
def make() -> Callable[..., Case]:
    return make_case


@pytest.fixture(params=TEXT_MODELS, scope="module")
def text_case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


@pytest.fixture
def skip_net() -> nn.Module:
    return SkipNet()
