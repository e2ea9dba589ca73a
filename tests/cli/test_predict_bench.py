"""The sub-commands predict and bench."""

import csv
import io
import json

import pytest
import torch
from typer.testing import CliRunner

import offramp
from offramp.cli import predict_bench
from offramp.cli.app import app
from offramp.data import ImageData, Normalization, Splits
from offramp.data.source import Source
from offramp.errors import (
    ConfigError,
    DataError,
    FileFormatError,
    MemoryLimitError,
    NetworkError,
    OriginError,
    OriginWarning,
)

NORMALIZATION = Normalization((0.2, 0.3, 0.4), (0.5, 0.5, 0.5))
CLASSES = ["cat", "dog", "owl"]


def image_data(split, samples=60):
    generator = torch.Generator().manual_seed(len(split))
    pixels = torch.randint(256, (samples, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return ImageData(
        pixels=pixels,
        labels=torch.arange(samples) % 3,
        split=split,
        sample_ids=[f"{split}-{n}" for n in range(samples)],
        num_classes=3,
        class_names=CLASSES,
        normalization=NORMALIZATION,
    )


SPLITS = Splits(
    name="x", seed=0, **{s: image_data(s) for s in ("train", "held_out", "val", "test")}
)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Folders of a network and of its policy."""
    root = tmp_path_factory.mktemp("cli")
    torch.manual_seed(0)
    network = offramp.build("convnet", num_classes=3, image_size=8)
    held_out, val = (
        offramp.record(network, SPLITS[s], progress=False) for s in ("held_out", "val")
    )
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val, "geometric")
    network.save(root / "network")
    policy.at(budget=0.6).save(root / "policy")
    policy.save(root / "untold")
    return root


@pytest.fixture(autouse=True)
def _data(monkeypatch):
    monkeypatch.setattr(Source, "load", lambda self: SPLITS)


def call(text):
    result = CliRunner().invoke(app, text.split())
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def expected(places, inputs):
    network = offramp.networks.EarlyExitNetwork.load(places / "network")
    return offramp.Runner(network, offramp.Policy.load(places / "policy"))(inputs)


def test_predicting_a_split_gives_what_the_runner_says(places, tmp_path):
    text = f"predict {places}/network {places}/policy --data mixture --limit 20"
    call(f"{text} --out {tmp_path}/o.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    wanted = expected(places, SPLITS["test"].batch(torch.arange(20))[0])
    assert [row["class"] for row in rows] == wanted.predictions.tolist()
    assert [row["exit"] for row in rows] == wanted.exits.tolist()
    assert rows[0]["input"] == "test-0"
    assert rows[3]["name"] == CLASSES[rows[3]["class"]]
    assert [row["confidence"] for row in rows] == pytest.approx(
        wanted.confidence.tolist(), abs=1e-4
    )
    assert [row["cost"] for row in rows] == pytest.approx(wanted.costs.tolist(), abs=1e-4)


@pytest.fixture
def folder(tmp_path):
    """Two images of the test split, one larger image, and a file that is no image."""
    image = pytest.importorskip("PIL.Image")
    for number in range(2):
        pixels = SPLITS["test"].pixels[number].permute(1, 2, 0).numpy()
        image.fromarray(pixels).save(tmp_path / f"{number}.png")
    image.new("RGB", (30, 20), (200, 10, 10)).save(tmp_path / "2.png")
    (tmp_path / "3.png").write_bytes(b"no image")
    return tmp_path


def test_predicting_a_folder_of_images_prints_csv(places, folder):
    result = call(f"predict {places}/network {places}/policy {folder} --data mixture")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["input"][-5:] for row in rows] == ["0.png", "1.png", "2.png", "3.png"]
    wanted = expected(places, SPLITS["test"].batch(torch.arange(2))[0])
    assert [int(row["class"]) for row in rows[:2]] == wanted.predictions.tolist()
    assert [int(row["exit"]) for row in rows[:2]] == wanted.exits.tolist()
    assert rows[2]["name"] in CLASSES
    assert rows[3]["class"] == rows[3]["confidence"] == rows[3]["exit"] == ""
    assert "3 samples (1 failed" in result.stderr
    assert "no answer for 1 of 4" in result.stderr and "3.png" in result.stderr
    assert rows[3]["likely_wrong"] == ""


def test_a_command_that_answers_nothing_fails(places, folder):
    text = f"predict {places}/network {places}/policy {folder}/3.png --data mixture"
    result = CliRunner().invoke(app, text.split())
    assert result.exit_code == 1 and "no answer for 1 of 1" in result.stderr


def test_without_a_data_set_the_normalisation_is_noted(places, folder, tmp_path):
    text = f"predict {places}/network {places}/policy {folder}/0.png --out {tmp_path}/o.csv"
    with pytest.warns(OriginWarning, match="normalised as ImageNet's"):
        call(text)
    (row,) = csv.DictReader((tmp_path / "o.csv").open())
    assert row["name"] == "" and row["class"] in "012"


@pytest.mark.parametrize("name", ["run", "run/network"])
def test_a_run_and_its_bare_network_remember_their_data(places, folder, name):
    run = places / "run"
    offramp.networks.EarlyExitNetwork.load(places / "network").save(run / "network")
    Source("x").save(run)
    result = call(f"predict {places / name} {places}/policy --limit 2")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["input"] for row in rows] == ["test-0", "test-1"]
    result = call(f"predict {places / name} {places}/policy {folder}/0.png")
    assert "normalised as ImageNet's" not in result.stderr
    (row,) = csv.DictReader(io.StringIO(result.stdout))
    assert row["exit"] == rows[0]["exit"]


def test_a_budget_can_be_given(places):
    result = call(f"predict {places}/network {places}/untold --data mixture --budget 0.95")
    dear = [float(row["cost"]) for row in csv.DictReader(io.StringIO(result.stdout))]
    result = call(f"predict {places}/network {places}/untold --data mixture --budget 0.4")
    cheap = [float(row["cost"]) for row in csv.DictReader(io.StringIO(result.stdout))]
    assert len(dear) == 60 and sum(cheap) < 0.7 * sum(dear)


def test_bench_races_what_a_user_could_run(places, tmp_path):
    text = (
        f"bench {places}/network {places}/policy --runtimes torch --batch-sizes 2,4 --seconds 0.1"
    )
    result = call(f"{text} --data mixture --rival {places}/network --out {tmp_path}/bench")
    for name in ("with exits", "without exits", "exit 0 alone", "network", "predicted"):
        assert name in result.stdout
    assert "Times were measured on" in " ".join(result.stdout.split())
    assert "% of 60" in result.stdout  # samples, beside every accuracy
    rows = json.loads((tmp_path / "bench" / "bench.json").read_text())["rows"]
    assert {row["batch_size"] for row in rows} == {2, 4}
    assert all(0 <= row["accuracy"] <= 1 and row["labelled"] == 60 for row in rows)
    assert (tmp_path / "bench" / "bench.svg").is_file()
    page = tmp_path / "report.html"
    call(f"report {tmp_path}/bench --out {page}")
    shown = page.read_text()
    assert "exit 0 alone" in shown and "data:image/svg+xml" in shown
    assert "noise as input" in call(f"{text} --no-cuts").stderr


def test_a_profile_of_a_machine_at_other_work_says_so(places, tmp_path, monkeypatch):
    made = f"profile {places}/network --batch-sizes 1 --seconds 0 --data mixture --out {tmp_path}"
    monkeypatch.setattr(predict_bench, "DISTURBED", 1e9)
    assert "measure again" not in call(f"{made}/calm").stderr
    monkeypatch.setattr(predict_bench, "DISTURBED", -1)
    note = " ".join(call(f"{made}/busy --clock process --threads 1").stderr.split())
    assert "measure again when it is idle" in note and "--clock process --threads 1" in note


def test_a_profile_makes_budgets_shares_of_seconds(places, tmp_path):
    folder = tmp_path / "profile"
    call(f"profile {places}/network --batch-sizes 1,4 --seconds 0 --data mixture --out {folder}")
    shown = call(f"inspect {folder}").stdout
    assert "overhead of exit 0" in shown and "reading earlier exits" in shown
    ledgers = tmp_path / "ledgers"
    network = offramp.networks.EarlyExitNetwork.load(places / "network")
    for split in ("held_out", "val", "test"):
        offramp.record(network, SPLITS[split], progress=False).save(ledgers / split)
    made = f"auto {ledgers} --methods baseline --profile {folder} --batch-size 4 --budget 0.95"
    call(f"{made} --out {tmp_path}/policy")
    assert offramp.Policy.load(tmp_path / "policy").cost_model.unit == "seconds"
    assert "batches of 4)" in call(f"inspect {tmp_path}/policy").stdout
    with pytest.raises(ConfigError, match="give --profile as well"):
        call(f"auto {ledgers} --batch-size 4 --out {tmp_path}/other")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("predict {p}/network {p}/policy", ConfigError, "give image files, a folder of images"),
        (
            "predict {p}/network {p}/untold --data mixture",
            ConfigError,
            "operating point yet: give --budget$",
        ),
        ("bench {p}/network {p}/untold --data mixture", ConfigError, "yet: give --budgets$"),
        ("predict {p}/policy {p}/policy --data mixture", FileFormatError, "it holds a policy"),
        (
            "predict {p}/network {p}/network --data mixture",
            FileFormatError,
            "no policy at .*; it holds a network",
        ),
        ("predict {p}/network {p}/polcy --data mixture", FileFormatError, "did you mean .*policy"),
        (
            "predict {p}/network {p}/policy --data mixture --split no",
            ConfigError,
            "--split must be one",
        ),
        ("predict {p}/network {p}/policy {p}/nowhere", DataError, "no file or folder"),
        ("predict {p}/network {p}/policy {p}/network", DataError, "has no images"),
        (
            "predict {p}/network {p}/policy --data mixture --out a.txt",
            ConfigError,
            r"in .csv or .jsonl",
        ),
        (
            "bench {p}/network {p}/policy --batch-sizes 90000000 --seconds 0.1",
            ConfigError,
            "batch 90000000 takes about .* give more seconds, or smaller batches",
        ),
        ("bench {p}/other {p}/policy", OriginError, "record this network and fit"),
        ("bench {p}/fewer {p}/policy", NetworkError, "policy is for 4 exits and 3 classes"),
        ("predict {p}/gray {p}/graypolicy {p}/x.png", NetworkError, "takes square RGB images"),
    ],
)
def test_mistakes_are_named(places, text, error, message):
    torch.manual_seed(1)  # other weights than those that the policy is for
    if "other" in text and not (places / "other").exists():
        offramp.build("convnet", num_classes=3, image_size=8).save(places / "other")
    if "fewer" in text and not (places / "fewer").exists():
        offramp.build("convnet", num_classes=3, image_size=8, at=2).save(places / "fewer")
    if "gray" in text and not (places / "gray").exists():
        make_gray(places)
    with pytest.raises(error, match=message):
        call(text.format(p=places))


def make_gray(places):
    network = offramp.build("convnet", num_classes=3, image_size=8, channels=1)
    data = torch.utils.data.TensorDataset(torch.rand(30, 1, 8, 8), torch.arange(30) % 3)
    ledger = offramp.record(network, data, "all", progress=False)
    held_out, val, _ = ledger.partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out)
    policy = policy.tune(val, "geometric").at(budget=0.8)
    network.save(places / "gray")
    policy.save(places / "graypolicy")
    (places / "x.png").write_bytes(b"")


def test_nothing_is_left_behind_when_predicting_fails(places, tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryLimitError("too large")
        yield

    monkeypatch.setattr(offramp.Runner, "stream", fail)
    with pytest.raises(MemoryLimitError):
        call(f"predict {places}/network {places}/policy --data mixture --out {tmp_path}/o.csv")
    assert list(tmp_path.iterdir()) == []
