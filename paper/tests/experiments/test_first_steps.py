"""Every network of the paper's scale takes its first training step, from the hub's files."""

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from offramp.networks import EarlyExitNetwork, build_for_data
from offramp_paper.experiments import NAMES
from offramp_paper.experiments.command import find_experiment
from offramp_paper.experiments.run import Options, Run

EXITS = {"resnet34": 8, "vit-tiny": 12, "msdnet": 5, "vit-small": 12, "efficientnet-b2": 23}
# Files, columns, classes and the size of images in the hub's repositories.
HUB = {
    "cifar100": ("cifar100/{}", "train test", {"img": None, "fine_label": 100}, (32, 32)),
    "tiny-imagenet": ("data/{}", "train valid", {"image": None, "label": 200}, (64, 64)),
    "imagenet-1k": ("data/{}", "train validation", {"image": None, "label": 1000}, (300, 280)),
    "domainnet": ("data/{}", "train test", {"image": None, "label": 345, "domain": 6}, (250, 240)),
}


def networks():
    """The networks of all experiments at paper scale, each once, for a few images."""
    found = {}
    for name in NAMES:
        for each in find_experiment(name).NETWORKS.get("paper", []):
            # One step: one image in five is held back to decide on stopping.
            config = replace(each.config, epochs=1, batch_size=4, workers=0, tensorboard=False)
            few = replace(each, config=config, splits={**each.splits, "held_out": 4, "val": 4})
            key = (each.build, each.data, each.objective)
            found.setdefault("-".join(key).replace("/", "-"), few)
    return found


def write_data(folder, name):
    """Two dozen images of a data set, in the layout that `hf download` leaves behind."""
    datasets, pillow = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    pattern, splits, columns, size = HUB[name]
    (image, _), *labels = columns.items()
    domains = ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]
    features = {image: datasets.Image()}
    for column, count in labels:
        names = domains if column == "domain" else None
        features[column] = datasets.ClassLabel(names=names, num_classes=count)
    for split in splits.split():
        rows = []
        for row in range(24):
            file, pixels = io.BytesIO(), np.random.default_rng(row).integers(0, 256, (*size, 3))
            pillow.fromarray(pixels.astype(np.uint8)).save(file, "JPEG")
            numbers = {c: 4 if c == "domain" else (37 * row) % n for c, n in labels}
            rows.append({image: {"bytes": file.getvalue(), "path": None}} | numbers)
        path = folder / name / pattern.format(f"{split}-00000-of-00001.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_list(rows, features=datasets.Features(features)).to_parquet(path)


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


def first_step(network, folder):
    """Train as the experiment says; the network before and after, and the loss."""
    run = Run("x", Options(networks=folder / "networks", limit=5))
    place, config = run.train(network), network.config
    before = build_for_data(
        network.build,
        run.splits(network).train,
        config.seed,
        network.exits,
        network.head,
        **network.settings,
    )
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
@pytest.mark.parametrize("network", networks().values(), ids=networks())
def test_a_network_of_the_paper_takes_its_first_training_step(network, tmp_path, monkeypatch):
    write_data(tmp_path, network.data)
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    if "/" in network.build:
        network = replace(network, build=write_pretrained(tmp_path, network.build))
    before, after, loss = first_step(network, tmp_path)
    check_step(before, after, loss)
    assert after.num_exits == EXITS.get(network.name, EXITS["resnet34"])


@pytest.mark.real
def test_the_experiments_on_tiny_imagenet_load_it_for_real(tmp_path):
    if not (Path(os.environ.get("OFFRAMP_DATA", "")) / "tiny-imagenet").is_dir():
        pytest.skip("OFFRAMP_DATA has no tiny-imagenet")
    network = find_experiment("vit-tiny-tinyimagenet").VIT_TINY
    splits = Run("x", Options()).splits(network)
    image, label = splits.train[0]
    assert image.shape == (3, 64, 64) and 0 <= label < 200 == splits.train.num_classes
    assert len(splits.test) == 10_000
    assert len(splits.train) + len(splits.held_out) + len(splits.val) in (50_000, 100_000)
