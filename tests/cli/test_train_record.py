"""The sub-commands train and record, with made-up data."""

import json
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from offramp.cli import app as cli
from offramp.cli.options import network_in
from offramp.data.source import Source
from offramp.errors import ConfigError, OfframpError
from offramp.ledger import Ledger
from offramp.networks import SeparableHead, build
from offramp.networks.macs import count_macs
from offramp.networks.network import fingerprint

# The function of the same name hides the module.
source = import_module("offramp.data.load")


class Split(TensorDataset):
    num_classes = 3

    def __init__(self, split, seed, shape=(1, 8, 8)):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(48) % 3
        shift = labels.view(-1, *(1 for _ in shape)) * 0.5
        super().__init__(torch.rand(48, *shape, generator=generator) + shift, labels)
        self.split = split


@pytest.fixture
def app(monkeypatch):
    names = ("train", "held_out", "val", "test")
    splits = SimpleNamespace(**{name: Split(name, seed) for seed, name in enumerate(names)})
    monkeypatch.setattr(source, "load", lambda name, **options: splits)
    return cli.app


def call(app, text):
    result = CliRunner().invoke(app, text.split())
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_from_nothing_to_ledgers(app, tmp_path):
    run = tmp_path / "run"
    found = call(
        app, f"train --data mixture --network convnet --epochs 2 --batch-size 8 --out {run}"
    )
    assert found.exit_code == 0
    assert (run / "network" / "network.json").exists()
    call(app, f"record {run} --data mixture")
    ledgers = [Ledger.load(run / "ledgers" / name) for name in ("held_out", "val", "test")]
    assert [ledger.split for ledger in ledgers] == ["held_out", "val", "test"]
    assert ledgers[0].dtype == np.float32
    assert len({ledger.network for ledger in ledgers}) == 1


def test_as_json_a_run_says_where_it_is_and_how_good(app, tmp_path):
    run, whole = tmp_path / "run", tmp_path / "whole"
    build("convnet", 3, image_size=16, at=2).save(whole / "network")

    def said(command):
        return json.loads(call(app, f"{command} --json --quiet").stdout)

    trained = said(f"train --data mixture --network convnet --epochs 1 --out {run}")
    assert trained["folder"] == str(run) and len(trained["accuracy"]) == 4
    recorded = said(f"record {run} --splits val")["splits"]["val"]
    ledger = Ledger.load(run / "ledgers" / "val")
    right = (ledger.logits.argmax(axis=2) == ledger.labels[:, None]).mean(axis=0)
    assert recorded == {"samples": 48, "accuracy": right.tolist()}
    build("convnet", 3, image_size=8, at=2).save(tmp_path / "small" / "network")
    chained = said(f"chain {tmp_path / 'small'} {whole} --out {tmp_path / 'both'}")
    assert (chained["exits"], chained["starts"]) == (4, [2])


def test_two_runs_become_one_network(app, tmp_path, monkeypatch):
    """What it is recorded on are the data of the last run, in the largest size."""
    asked = []
    splits = SimpleNamespace(**{n: Split(n, 0, (3, 16, 16)) for n in ("train", "val")})
    monkeypatch.setattr(source, "load", lambda name, **options: asked.append(options) or splits)
    for size in (8, 16):
        run = tmp_path / str(size)
        build("convnet", 3, image_size=size, at=2).save(run / "network")
        Source("mixture", image_size=size).save(run)
    out = tmp_path / "both"
    found = call(app, f"chain {tmp_path / '8'} {tmp_path / '16'} --out {out}")
    assert f"written to {out}/: network, with 4 exits" in found.stderr.replace("\n", "")
    call(app, f"record {out} --splits val")
    assert asked == [{"image_size": 16}]
    ledger = Ledger.load(out / "ledgers" / "val")
    assert ledger.num_exits == 4 and ledger.cost_model.starts == (2,)
    for words, message in (
        (f"{tmp_path / '8'} {tmp_path / 'x'} --out {tmp_path / 'y'}", "there is nothing"),
        (f"{tmp_path / '8'} {tmp_path / '8'} --out {tmp_path / 'y'}", "two different ones"),
        (f"{tmp_path / '8'} {tmp_path / '16'} --out {tmp_path / '16'}", "give another folder"),
        (
            f"{tmp_path / '16'} {tmp_path / '8'} --out {tmp_path / 'y'}",
            "the cheapest network first",
        ),
    ):
        with pytest.raises(OfframpError, match=message):
            call(app, f"chain {words}")


def test_recording_knows_what_the_run_was_trained_on(app, tmp_path, monkeypatch):
    asked = []
    splits = source.load("x")
    monkeypatch.setattr(
        source, "load", lambda name, **options: asked.append((name, options)) or splits
    )
    call(app, f"train --data pacs --domain art --network convnet --epochs 1 --out {tmp_path}")
    call(app, f"record {tmp_path}")
    call(app, f"record {tmp_path} --domain photo")
    call(app, f"record {tmp_path} --data cifar10 --tokenizer words")
    assert asked[1:] == [
        ("pacs", {"domain": "art"}),
        ("pacs", {"domain": "photo"}),
        ("cifar10", {"tokenizer": "words"}),
    ]


def test_a_bare_network_does_not_say_what_it_was_trained_on(app, tmp_path):
    call(app, f"train --data mixture --network convnet --epochs 1 --out {tmp_path}/run")
    (tmp_path / "run" / "network").rename(tmp_path / "network")  # away from the run that made it
    with pytest.raises(ConfigError, match="network does not say what it was trained on: give --d"):
        call(app, f"record {tmp_path}/network")


def test_a_cascade_of_heads_is_built_for_the_objective_that_needs_one(app, tmp_path):
    text = "train --data mixture --network convnet --epochs 1 --objective zero-time-waste"
    assert call(app, f"{text} --patience none --out {tmp_path}").exit_code == 0


def test_options_override_a_recipe(app, tmp_path):
    text = f"train --data mixture --network convnet --epochs 1 --out {tmp_path}"
    call(app, f"{text}/a --recipe finetune")
    call(
        app,
        f"{text}/b --recipe finetune --objective joint --averaging 0 --patience 5 --augment none",
    )
    call(app, f"{text}/c --label-smoothing 0.1 --head-rate 3 --batch-size 16 --augment paper")
    one, other, plain = (json.loads((tmp_path / run / "train.json").read_text()) for run in "abc")
    assert one["objective"]["name"] == "distillation"
    assert "flip=0.5" in one["augment"] and "mixup=0," in one["augment"]
    assert (one["averaging"], one["head_rate"], one["patience"]) == (0.999, 8.0, None)
    assert other["objective"]["name"] == "joint"
    assert (other["averaging"], other["head_rate"], other["patience"]) == (0.0, 8.0, 5)
    assert other["augment"] is None
    assert (plain["label_smoothing"], plain["head_rate"], plain["patience"]) == (0.1, 3.0, 30)
    assert "mixup=0.25," in plain["augment"]


def test_exits_heads_and_their_weights_are_options(app, tmp_path):
    text = f"train --data mixture --network convnet --epochs 1 --out {tmp_path}"
    call(app, f"{text}/a --exits blocks.0,blocks.2 --head separable --exit-weights 0.5,1,2")
    call(app, f"{text}/b --exits 2")
    names = [network_in(tmp_path / run).exit_names for run in "ab"]
    assert names[0] == ("blocks.0", "blocks.2", "last")
    assert len(names[1]) == 2
    assert isinstance(network_in(tmp_path / "a").heads[0], SeparableHead)
    said = json.loads((tmp_path / "a" / "train.json").read_text())
    assert said["objective"]["weights"] == [0.5, 1, 2]


def test_a_saved_network_is_trained_further(app, tmp_path):
    text = f"train --data mixture --epochs 1 --out {tmp_path}"
    call(app, f"{text}/a --network convnet --exits 2")
    call(app, f"{text}/b --network {tmp_path}/a --learning-rate 1e-9 --averaging 0.5")
    first, second = (network_in(tmp_path / run) for run in "ab")
    assert first.exit_names == second.exit_names
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    with pytest.raises(ConfigError, match="has its exits: leave --exits and --head out"):
        call(app, f"{text}/c --network {tmp_path}/a/network --exits 3")


def test_a_network_is_taught_by_another_run(app, tmp_path):
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    text = "train --data mixture --network convnet --epochs 1 --batch-size 8"
    call(app, f"{text} --out {teacher}")
    taught = f"{text} --teacher {teacher} --teacher-share 0.9 --out {student}"
    with pytest.raises(ConfigError, match=f"offramp record {teacher} --splits train"):
        call(app, taught)
    call(app, f"record {teacher} --data mixture --splits train")
    assert call(app, taught).exit_code == 0
    kept = json.loads((student / "train.json").read_text())["teacher"]
    assert kept["share"] == 0.9 and kept["network"] == fingerprint(network_in(teacher))
    call(app, f"{text} --out {tmp_path / 'alone'}")
    alone, learnt = (network_in(tmp_path / run).state_dict() for run in ("alone", "student"))
    assert not all(torch.equal(alone[name], learnt[name]) for name in alone)


def test_settings_of_a_teacher_are_checked_before_data_are_read(app, monkeypatch, tmp_path):
    monkeypatch.setattr(Source, "load", lambda _: pytest.fail("data were read"))
    text = f"train --data mixture --network convnet --out {tmp_path / 'r'}"
    with pytest.raises(ConfigError, match="--teacher-share needs --teacher"):
        call(app, f"{text} --teacher-share 0.5")
    with pytest.raises(ConfigError, match=r"`--teacher-share` must lie in \[0, 1\], got 2"):
        call(app, f"{text} --teacher {tmp_path} --teacher-share 2")
    with pytest.raises(ConfigError, match="`--teacher-temperature` must be above 0, got inf"):
        call(app, f"{text} --teacher {tmp_path} --teacher-temperature inf")


def test_a_teacher_that_was_trained_on_has_to_be_recorded_again(app, tmp_path):
    teacher = tmp_path / "teacher"
    text = "train --data mixture --network convnet --epochs 1 --batch-size 8"
    call(app, f"{text} --out {teacher}")
    call(app, f"record {teacher} --data mixture --splits train")
    call(app, f"{text} --seed 1 --out {tmp_path / 'new'}")
    network_in(tmp_path / "new").save(teacher / "network")
    with pytest.raises(ConfigError, match=r"not recorded with the weights in .* record it again"):
        call(app, f"{text} --teacher {teacher} --out {tmp_path / 'student'}")
    with pytest.raises(ConfigError, match=r"has no ledger of .*: give the run of a network"):
        call(app, f"{text} --teacher {tmp_path} --out {tmp_path / 'student'}")


def test_the_size_of_images_is_kept_for_recording(app, tmp_path, monkeypatch):
    asked = []
    splits = source.load("x")
    monkeypatch.setattr(source, "load", lambda name, **options: asked.append(options) or splits)
    call(
        app, f"train --data mixture --network convnet --epochs 1 --image-sizes 8 --out {tmp_path}"
    )
    call(app, f"record {tmp_path}")
    further = tmp_path / "further"
    call(app, f"train --data mixture --network {tmp_path} --epochs 1 --out {further}")
    assert asked == [{"image_size": 8}] * 3
    assert json.loads((tmp_path / "train.json").read_text())["image_sizes"] == []


def test_a_saved_network_can_be_trained_for_another_image_size(app, tmp_path, monkeypatch):
    split = Split("train", 0, shape=(3, 32, 32))
    monkeypatch.setattr(source, "load", lambda name, **_: SimpleNamespace(train=split))
    network = build("efficientnet-lite0", num_classes=3, image_size=64, at=1, pretrained=False)
    network.save(tmp_path / "large")
    text = f"train --data mixture --network {tmp_path}/large --epochs 1 --augment none"
    call(app, f"{text} --out {tmp_path}/small --image-sizes 32")
    small = network_in(tmp_path / "small")
    assert (small.inputs.height, small.inputs.assumed) == (32, False)
    macs = [sum(count_macs(each).stages) for each in (small, network)]
    assert macs[0] < macs[1] / 3


def test_wrong_options_are_named(app, tmp_path):
    text = f"train --data mixture --network convnet --out {tmp_path}"
    assert "'int8' is not one of 'auto'" in call(app, f"{text} --precision int8").stderr
    for option, message in (
        ("--augment heavy", "there is no augmentation 'heavy'; known are light, none, paper"),
        ("--recipe fast", "there is no recipe 'fast'; known are finetune, paper"),
        ("--head linear", "there is no head 'linear'; did you mean `pooled-linear`"),
        ("--objective jont", "there is no objective 'jont'; did you mean `joint`"),
    ):
        with pytest.raises(ConfigError, match=message):
            call(app, f"{text} {option}")
    with pytest.raises(ConfigError, match="give --data: what is the network to be trained on"):
        call(app, text.replace("--data mixture ", ""))
    with pytest.raises(ConfigError, match=r"--exit-weights do not go with .* zero-time-waste"):
        call(app, f"{text} --objective zero-time-waste --exit-weights 1,1,1,1")
    with pytest.raises(ConfigError, match="no network `convnt`; did you mean `convnet`"):
        call(app, text.replace("convnet", "convnt"))
    call(app, f"{text} --epochs 1")
    wrong = call(app, f"record {tmp_path} --data mixture --dtype int8")
    assert wrong.exit_code == 2 and "'int8' is not one of" in wrong.stderr
    with pytest.raises(ConfigError, match="--splits must name splits of the data, got 'tset'"):
        call(app, f"record {tmp_path} --data mixture --splits tset")
    source.load("x").train = Split("train", 0, shape=(7,))
    with pytest.raises(ConfigError, match="takes square images, and these data are not"):
        call(app, text)


def test_settings_are_refused_before_data_are_read(app, monkeypatch, tmp_path):
    monkeypatch.setattr(Source, "load", lambda _: pytest.fail("data were read"))
    text = f"train --data cluttered-digits --network convnet --out {tmp_path / 'r'}"
    for option, message in (
        ("--epochs 0", "`epochs` must be a whole number of at least 1, got 0"),
        ("--learning-rate 0", "`learning_rate` must be above 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            call(app, f"{text} {option}")
