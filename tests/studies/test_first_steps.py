"""Every network of the paper's scale takes its first training step, from the hub's files."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from offramp import studies
from offramp.networks import EarlyExitNetwork
from offramp.studies import read_study
from offramp.studies.cache import Cache
from offramp.studies.context import Context, make_network
from offramp.studies.steps import TrainStep

from ..data.conftest import _own_cache, encoded, write_parquet  # noqa: F401 - a fixture, autouse

EXITS = {"resnet34": 8, "vit-tiny": 12, "msdnet": 5, "vit-small": 12, "efficientnet-b2": 23}
# One step: one image in five is held back to decide on stopping.
FEW = {"data.held_out": 4, "data.val": 4, "data.limit": 5, "train.epochs": 1}
FEW |= {"train.batch_size": 4, "train.workers": 0, "train.tensorboard": False}


def networks():
    """The networks of all studies at paper scale, each once, for a few images."""
    found = {}
    for name in studies.NAMES:
        for entry in read_study(studies.find_study(name), "paper", FEW).networks:
            found.setdefault((str(entry.network), entry.data.name), entry)
    return {f"{e.name}-{e.data.name}": e for e in found.values()}


# Files, columns, classes and the size of images in the hub's repositories.
HUB = {
    "cifar100": ("cifar100/{}", "train test", {"img": None, "fine_label": 100}, (32, 32)),
    "tiny-imagenet": ("data/{}", "train valid", {"image": None, "label": 200}, (64, 64)),
    "imagenet-1k": ("data/{}", "train validation", {"image": None, "label": 1000}, (300, 280)),
    "domainnet": ("data/{}", "train test", {"image": None, "label": 345, "domain": 6}, (250, 240)),
}


def write_data(folder, name):
    """Two dozen images of a data set, in the layout that `hf download` leaves behind."""
    datasets = pytest.importorskip("datasets")
    pattern, splits, columns, size = HUB[name]
    (image, _), *labels = columns.items()
    domains = ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]
    kinds = {
        column: datasets.ClassLabel(names=domains if column == "domain" else None, num_classes=n)
        for column, n in labels
    }
    for split in splits.split():
        rows = [
            {image: {"bytes": encoded(row, size, "JPEG"), "path": None}}
            | {column: 4 if column == "domain" else (37 * row) % n for column, n in labels}
            for row in range(24)
        ]
        path = folder / name / pattern.format(f"{split}-00000-of-00001.parquet")
        write_parquet(path, rows, **{image: datasets.Image()}, **kinds)


def write_pretrained(folder, name):
    """A folder as `hf download` makes it: the architecture of that name, with random weights."""
    transformers = pytest.importorskip("transformers")
    if name == "google/efficientnet-b2":
        config = transformers.EfficientNetConfig(
            width_coefficient=1.1, depth_coefficient=1.2, hidden_dim=1408, image_size=260
        )
        model = transformers.EfficientNetForImageClassification
    else:
        assert name == "WinKawaks/vit-small-patch16-224"
        config = transformers.ViTConfig(
            hidden_size=384, num_attention_heads=6, intermediate_size=1536
        )
        model = transformers.ViTForImageClassification
    config.num_labels = 1000
    model(config).save_pretrained(folder / name)
    return str(folder / name)


def first_step(entry, folder):
    """Train as the study says, and return the network before and after, and the loss."""
    context = Context(Cache(folder / "cache"), shown=False)
    step = TrainStep(entry.data, "made for a test", entry.network, entry.train)
    place = folder / "trained"
    place.mkdir()
    step.run(context, place)
    before = make_network(entry.network, context.splits(entry.data).train, entry.train.seed)
    last = (place / "history.jsonl").read_text().splitlines()[-1]
    return before, EarlyExitNetwork.load(place / "network"), json.loads(last)["loss"]


def check_step(before, after, loss):
    assert torch.isfinite(torch.tensor(loss))
    pairs = zip(before.named_parameters(), after.parameters(), strict=True)
    moved = {name for (name, old), new in pairs if not torch.equal(old, new)}
    assert all(parameter.isfinite().all() for parameter in after.parameters())
    assert any(name.startswith("stages.0.") for name in moved)
    for exit_index in range(after.num_exits):
        assert any(name.startswith(f"heads.{exit_index}.") for name in moved)


@pytest.mark.slow
@pytest.mark.parametrize("entry", networks().values(), ids=networks())
def test_a_network_of_the_paper_takes_its_first_training_step(entry, tmp_path, monkeypatch):
    write_data(tmp_path, entry.data.name)
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    if not entry.network.is_built:
        name = write_pretrained(tmp_path, entry.network.name)
        entry = replace(entry, network=replace(entry.network, name=name))
    before, after, loss = first_step(entry, tmp_path)
    check_step(before, after, loss)
    assert after.num_exits == EXITS.get(entry.network.name, EXITS.get(entry.name))


@pytest.mark.real
def test_the_studies_on_tiny_imagenet_load_it_for_real(tmp_path):
    folder = Path(os.environ.get("OFFRAMP_DATA", "")) / "tiny-imagenet"
    if not folder.is_dir():
        pytest.skip("OFFRAMP_DATA has no tiny-imagenet")
    entry = read_study(studies.find_study("vit-tiny-tinyimagenet"), "paper").networks[0]
    splits = Context(Cache(tmp_path), shown=False).splits(entry.data)
    image, label = splits.train[0]
    assert image.shape == (3, 64, 64) and 0 <= label < 200 == splits.train.num_classes
    assert len(splits.test) == 10_000
    assert len(splits.train) + len(splits.held_out) + len(splits.val) in (50_000, 100_000)
    few = networks()["vit-tiny-tiny-imagenet"]
    check_step(*first_step(few, tmp_path))
