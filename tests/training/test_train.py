"""What `train` promises: it learns, stops early, freezes, and leaves the rest alone."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

from offramp.errors import ConfigError, LedgerError, MissingExtraError, SplitError
from offramp.networks import EarlyExitNetwork, TextInput, attach, build
from offramp.registry import OBJECTIVES
from offramp.training import TrainConfig, frozen, train
from offramp.training.config import default_learning_rate
from offramp.training.loop import PhaseRun


def weights(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def changed(before, network):
    now = network.state_dict()
    return {name for name in before if not torch.equal(before[name], now[name])}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_learns(objective, cascade, data):
    config = TrainConfig(epochs=8, batch_size=8, learning_rate=0.05, precision="float32")
    history = train(cascade, data, objective, config)
    assert sum(history.last["accuracy"]) / 4 >= 0.8
    assert len(history.last["accuracy"]) == 4


def test_zero_time_waste_freezes_the_backbone_in_its_second_phase(cascade, data, quick):
    history = train(cascade, data, "zero-time-waste", quick)
    assert list(history.stopped) == ["backbone", "heads"]
    before = weights(cascade)
    train(cascade, data, "zero-time-waste", quick, freeze_backbone=True)
    found = changed(before, cascade)
    assert found and all(name.startswith(("heads.0", "heads.1", "heads.2")) for name in found)


def test_with_a_frozen_backbone_only_the_phases_of_heads_are_left(cascade):
    (phase,) = frozen.only_heads(cascade, OBJECTIVES["zero-time-waste"]())
    assert (phase.name, phase.trains) == ("heads", "cascade")
    (phase,) = frozen.only_heads(cascade, OBJECTIVES["joint"]())
    assert (phase.name, phase.trains) == ("heads", "heads")


def test_a_function_of_logits_and_targets_is_an_objective(convnet, data, quick):
    def last_only(logits, targets):
        return nn.functional.cross_entropy(logits[:, -1], targets)

    before = weights(convnet)
    train(convnet, data, last_only, quick)
    found = changed(before, convnet)
    assert "heads.0.linear.bias" not in found  # its weight decays, but has no gradient
    assert "stages.0.0.0.weight" in found


@pytest.mark.parametrize("head", ["pooled-linear", "two-conv", "mixed-pool", "mixed-cascade"])
def test_cached_features_give_the_same_heads_as_the_plain_way(head, data, quick, monkeypatch):
    results = []
    for limit in (frozen.LIMIT, 0):
        monkeypatch.setattr(frozen, "LIMIT", limit)
        torch.manual_seed(3)
        network = build("convnet", num_classes=3, image_size=8, width=4, head=head)
        before = weights(network)
        history = train(network, data, config=quick, freeze_backbone=True)
        assert all(name.startswith("heads.") for name in changed(before, network))
        assert not any(name.startswith("heads.3") for name in changed(before, network))
        results.append((weights(network), history))
    (cached, first), (plain, second) = results
    for name, tensor in cached.items():
        torch.testing.assert_close(tensor, plain[name], atol=1e-5, rtol=1e-4)
    assert first.last["accuracy"] == second.last["accuracy"]


def test_cached_features_run_the_backbone_once_over_the_data(convnet, data, quick):
    seen = []
    convnet.stages[0].register_forward_hook(lambda module, args, out: seen.append(len(out)))
    train(convnet, data, config=quick, freeze_backbone=True)
    assert sum(seen) == len(data) + 1  # one sample more to see how large they are


def test_heads_that_cannot_be_split_from_their_features_train_the_plain_way(data, quick):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, state, logits_so_far=None):
            return self.linear(state.mean((2, 3)))

    stages = [nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)]
    network = EarlyExitNetwork(stages, [Own(), Own()], num_classes=3)
    before = weights(network)
    train(network, data, config=quick, freeze_backbone=True)
    assert {name.split(".")[0] for name in changed(before, network)} == {"heads"}


def test_batch_norm_of_a_frozen_backbone_stands_still(data, quick):
    network = build("convnet", num_classes=3, image_size=8, width=4)
    before = weights(network)

    def same(inputs, labels, num_classes, generator):  # with it, nothing is cached
        return inputs, labels

    train(network, data, config=quick, freeze_backbone=True, augment=same)
    assert not any(name.startswith("stages") for name in changed(before, network))


def test_parameters_and_modes_are_given_back(convnet, data, quick):
    convnet.eval()
    convnet.stages[0].requires_grad_(False)
    before = weights(convnet)
    train(convnet, data, config=quick)
    assert not any(p.requires_grad for p in convnet.stages[0].parameters())
    assert all(p.requires_grad for p in convnet.stages[1].parameters())
    assert not any(module.training for module in convnet.modules())
    assert "stages.0.0.0.weight" not in changed(before, convnet)


def test_the_callers_randomness_is_given_back(convnet, data, quick):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(convnet, data, config=quick)
    assert torch.equal(torch.rand(3), expected)


def test_early_stopping_ends_and_takes_the_best_epoch(convnet, data):
    config = TrainConfig(epochs=50, batch_size=16, learning_rate=0.02, patience=2, warmup_epochs=0)
    history = train(convnet, data, config=config)
    scores = [sum(record["accuracy"]) for record in history]
    best = scores.index(max(scores))
    assert history.stopped == {"network": "patience"}
    assert len(history) == best + 3
    assert history.chosen["epoch"] == best


def accuracies_with_restarts(epoch, better):
    """Of cycles of 4, 8 and 17 epochs: low after a restart, and recovered at the end."""
    starts = (0, 4, 12)
    cycle = sum(epoch >= start for start in starts) - 1
    share = (epoch + 1 - starts[cycle]) / (4.3, 8.6, 17.1)[cycle]
    return [0.5 + better * cycle - 0.3 * (1 - min(share, 1.0))]


@pytest.mark.parametrize(
    ("better", "reason", "epochs", "chosen"),
    [(0.1, "epochs", 30, 29), (-0.1, "patience", 12, 3)],
)
def test_patience_is_counted_at_the_ends_of_cycles(
    better, reason, epochs, chosen, convnet, data, monkeypatch
):
    def evaluate(self):
        return {"accuracy": accuracies_with_restarts(self.place.epoch, better)}

    monkeypatch.setattr(PhaseRun, "_evaluate", evaluate)
    config = TrainConfig(epochs=30, restart_epochs=4, warmup_epochs=0, patience=3, batch_size=32)
    history = train(convnet, data, config=config)
    assert history.stopped == {"network": reason}
    assert len(history) == epochs
    assert history.chosen["epoch"] == chosen


def test_soft_targets_of_an_augmentation_reach_every_exit(convnet, data, quick):
    seen = []

    def mixup(inputs, labels, num_classes, generator):
        other = torch.randperm(len(labels), generator=generator)
        hot = nn.functional.one_hot(labels, num_classes).float()
        return 0.7 * inputs + 0.3 * inputs[other], 0.7 * hot + 0.3 * hot[other]

    def watching(logits, targets):
        seen.append((logits.shape[1], targets.sum(1)))
        return OBJECTIVES["joint"]()(logits, targets)

    train(convnet, data, watching, quick, augment=mixup)
    assert {exits for exits, _ in seen} == {4}
    assert torch.cat([sums for _, sums in seen]).allclose(torch.tensor(1.0))


def test_bfloat16_and_channels_last_learn_too(convnet, data):
    config = TrainConfig(
        epochs=8, batch_size=8, learning_rate=0.05, precision="bfloat16", channels_last=True
    )
    history = train(convnet, data, config=config)
    assert sum(history.last["accuracy"]) / 4 >= 0.8
    assert all(p.dtype == torch.float32 for p in convnet.parameters())


class Items(Dataset):
    """Samples one by one, as dicts."""

    def __init__(self, data):
        self.data = data
        self.num_classes = 3

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        images, label = self.data[index]
        return {"pixel_values": images}, int(label)


class Fast(Items):
    """A data set with a way of its own to read a batch."""

    def batch(self, index):
        images, labels = self.data[index]
        return {"pixel_values": images}, labels

    def __getitem__(self, index):
        raise AssertionError("`batch` should have been used")


def test_loaders_items_and_dicts_train_to_the_same_weights(data, quick):
    results = []
    for form in (
        data,
        Items(data),
        Fast(data),
        DataLoader(Items(data), batch_size=5, shuffle=True),
        DataLoader(data, num_workers=1),
    ):
        torch.manual_seed(3)
        network = build("convnet", num_classes=3, image_size=8, width=4)
        train(network, form, config=quick)
        results.append(network.fingerprint())
    assert len(set(results)) == 1


def test_metrics_go_to_json_lines_and_tensorboard(convnet, data, quick, tmp_path):
    pytest.importorskip("tensorboard")
    history = train(convnet, data, config=quick, folder=tmp_path)
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == history.records
    assert list((tmp_path / "tensorboard").glob("events*"))
    assert json.loads((tmp_path / "train.json").read_text())["seed"] == 0


def test_tensorboard_is_named_when_wanted_and_missing(convnet, data, quick, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'offramp\[train\]'"):
        train(convnet, data, config=replace(quick, tensorboard=True), folder=tmp_path)


def test_progress_shows_accuracy_per_exit(convnet, data, capsys):
    train(convnet, data, config=TrainConfig(epochs=1, batch_size=16))
    assert "epoch 1 of 1" in (text := capsys.readouterr().err)
    assert "accuracy per exit" in text


def test_attached_backbones_train(data, quick):
    backbone = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)
    )
    network = attach(backbone, example=torch.rand(2, 3, 8, 8))
    assert len(train(network, data, config=quick)) == 3


def test_the_learning_rate_ends_low_and_restarts_high():
    config = TrainConfig(epochs=355, warmup_epochs=5, restart_epochs=50)
    assert config.cycle_ends() == [5.0, 55.0, 155.0, 355.0]
    assert config.rate_factor(2.5) == 0.5
    assert config.rate_factor(54.999) < 0.02 < 0.99 < config.rate_factor(55)
    assert config.rate_factor(355) == pytest.approx(0.01)
    assert replace(config, epochs=60).cycle_ends() == pytest.approx([5, 60])


def test_the_learning_rate_follows_the_network_unless_given(tmp_path):
    def rate(network, freeze_backbone=False, **settings):
        return default_learning_rate(network, TrainConfig(**settings), freeze_backbone)

    convolutional = build("convnet", num_classes=3, image_size=8)
    assert rate(convolutional) == 0.01
    assert rate(build("vit-mini", 3, 16, depth=1, width=8, heads=1)) == 0.001
    saved = EarlyExitNetwork.load(convolutional.save(tmp_path))
    assert rate(saved) == 0.001
    assert rate(saved, head_rate=8.0) == 0.0005
    saved.inputs = TextInput(max_length=5, vocabulary=9)
    assert [rate(saved), rate(saved, freeze_backbone=True)] == [0.0001, 0.001]


def test_one_learning_rate_is_used_and_written_down(data, tmp_path):
    network = build("convnet", num_classes=3, image_size=8)
    train(network, data, config=TrainConfig(epochs=1), folder=tmp_path)
    assert json.loads((tmp_path / "train.json").read_text())["learning_rate"] == 0.01


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 1.5}, "`epochs` must be a whole number of at least 1, got 1.5"),
        ({"patience": 0}, "`patience` must be a whole number of at least 1"),
        ({"learning_rate": 0}, "`learning_rate` must be above 0"),
        ({"weight_decay": -1}, "`weight_decay` must be at least 0"),
        ({"clip_norm": 0}, "`clip_norm` must be above 0, got 0"),
        ({"stopping_share": 1}, r"`stopping_share` must lie in \(0, 1\), got 1"),
        ({"head_rate": 0}, "`head_rate` must be above 0, got 0"),
        ({"averaging": 1.0}, r"`averaging` must lie in \[0, 1\), got 1.0"),
        ({"label_smoothing": -0.1}, r"`label_smoothing` must lie in \[0, 1\), got -0.1"),
        ({"image_sizes": (0, 8)}, "`image_sizes` must be a whole number of at least 1, got 0"),
        (
            {"precision": "int8"},
            "`precision` must be one of auto, float32, bfloat16, float16, got",
        ),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**settings)


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(3, 8, 8), 0


def test_data_that_cannot_be_trained_on_are_refused(convnet, data, quick):
    images, labels = data.tensors
    sampler = WeightedRandomSampler([1.0] * len(data), len(data))
    for wrong, message in (
        (Stream(), "got Stream; read a stream into a list first"),
        (DataLoader(Stream()), "got Stream; read a stream into a list first"),
        (DataLoader(data, sampler=sampler), "draws its samples with a WeightedRandomSampler"),
        (TensorDataset(images[:0], labels[:0]), "the data set is empty"),
        (TensorDataset(images), "must be a pair of .inputs, label.*got tuple of 1"),
        (TensorDataset(images[:1], labels[:1]), "1 samples are too few"),
        (images, r"got inputs without labels.*TensorDataset\(inputs, labels\)"),
        (images.numpy(), "got inputs without labels"),
        ((images, labels), r"got a pair.*TensorDataset\(inputs, labels\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(convnet, wrong, config=quick)


def test_labels_that_the_network_does_not_have_are_refused(convnet, data, quick):
    images, labels = data.tensors
    for wrong, message in (
        (labels + 1, r"labels must lie in 0\.\.2 for this network, got"),
        (labels.view(-1, 1), "labels must be one whole number per sample"),
        (torch.eye(3).long()[labels], r"got the shape .*one-hot, give labels\.argmax\(1\)"),
        (torch.rand(64, 7), r"soft targets \[n, 3\], got float32 of the shape"),
        (torch.zeros(64), r"whole numbers \[n\], .* got float32 .*: give classes as labels.long"),
    ):
        with pytest.raises(LedgerError, match=message):
            train(convnet, TensorDataset(images, wrong), config=quick)


def test_other_splits_than_train_are_refused(convnet, data, quick):
    data.split = "val"
    with pytest.raises(SplitError, match="say allow_split='val'"):
        train(convnet, data, config=quick)
    train(convnet, data, config=quick, allow_split="val")


def test_unknown_objectives_and_nothing_to_train_are_refused(convnet, data, quick):
    with pytest.raises(ConfigError, match="one of joint, gradient-equilibrium"):
        train(convnet, data, "jiont", quick)
    convnet.requires_grad_(False)
    with pytest.raises(ConfigError, match="there is nothing to train"):
        train(convnet, data, config=quick)


def test_a_loss_that_is_not_finite_stops_the_run(convnet, data, quick, tmp_path):
    def broken(logits, targets):
        return logits.sum() * float("nan")

    config = replace(quick, checkpoint_seconds=0)
    with pytest.raises(ConfigError, match="the loss became nan in epoch 0 of the phase 'network'"):
        train(convnet, data, broken, config, folder=tmp_path)
    assert not (tmp_path / "checkpoint").exists()  # nothing to resume from has the broken weights


def test_a_batch_norm_on_one_sample_is_told_what_it_needs(quick):
    layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    network = attach(layers, at=1, example=torch.rand(2, 4))
    data = TensorDataset(torch.rand(5, 4), torch.arange(5) % 3)
    with pytest.raises(ConfigError, match=r"`batch_size` must be at least 2, .* got a batch of 1"):
        train(network, data, config=replace(quick, batch_size=1), progress=False)
