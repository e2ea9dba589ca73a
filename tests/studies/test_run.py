"""A study runs from data to a page; a second run does nothing; a change repeats what it must."""

import json
import multiprocessing
import shutil

import pytest

import offramp
from offramp.advice import Auto
from offramp.errors import ConfigError, DataError, FileFormatError
from offramp.registry import METHODS
from offramp.studies import plan_run, run


def again(tiny, tmp_path, **changes):
    return run(tiny, tmp_path / "out", changes=changes, cache=tmp_path / "cache", progress=False)


def kinds(result):
    return [each.partition(":")[0] for each in result.done]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_text):
    """One finished run, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.toml").write_text(tiny_text)
    result = run(folder / "tiny.toml", folder / "out", cache=folder / "cache", progress=False)
    return folder, result


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path / "tiny.toml"


def test_a_run_goes_from_data_to_a_page(finished):
    folder, result = finished
    assert kinds(result) == ["network", *["ledger"] * 3, "comparison", "report"]
    assert "<h1>Tiny</h1>" in result.report.read_text()
    accuracy = result.comparisons["tiny"]["eefp"].figures["accuracy@0.5"].value
    stored = json.loads((folder / "out" / "tiny" / "comparison.json").read_text())
    methods = {method["name"]: method for method in stored["methods"]}
    assert methods["eefp"]["figures"]["accuracy@0.5"]["value"] == accuracy


def test_configuration_versions_seeds_and_timings_are_saved(finished):
    folder, _ = finished
    saved = json.loads((folder / "out" / "study.json").read_text())
    network = saved["configuration"]["networks"]["tiny"]
    assert network["train"]["epochs"] == 2
    assert network["train"]["weight_decay"] == offramp.TrainConfig().weight_decay, "resolved"
    assert saved["seeds"] == {"tiny": {"data": 0, "train": 0}, "correctors": [0], "resampling": 0}
    assert {"python", "torch", "offramp"} <= saved["versions"].keys()
    timings = json.loads((folder / "out" / "timings.json").read_text())
    assert all(each["seconds"] >= 0 for each in timings.values())
    network = next(each for name, each in timings.items() if name.startswith("network: "))
    assert 0 < network["epochs_seconds"] < network["seconds"]
    assert any(each.get("methods", {}).keys() >= {"baseline"} for each in timings.values())


def test_a_second_run_does_nothing(copy, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    result = again(copy, tmp_path)
    assert result.done == []
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("changes", "repeated"),
    [
        ({"corrector.hidden": 4}, ["comparison", "report"]),
        ({"record.dtype": "float32"}, [*["ledger"] * 3, "comparison", "report"]),
        ({"train.epochs": 1}, ["network", *["ledger"] * 3, "comparison", "report"]),
        ({"title": "Another"}, ["report"]),
        ({"train.checkpoint_seconds": 10}, []),
    ],
)
def test_a_change_repeats_only_what_depends_on_it(copy, tmp_path, changes, repeated):
    assert kinds(again(copy, tmp_path, **changes)) == repeated
    assert again(copy, tmp_path, **changes).done == []


def test_a_result_that_was_damaged_is_made_again(copy, tmp_path):
    (tmp_path / "out" / "report.html").write_text("short")
    assert kinds(again(copy, tmp_path)) == ["report"]
    next((tmp_path / "cache" / "comparison").rglob("comparison.json")).unlink()
    assert kinds(again(copy, tmp_path)) == ["comparison", "report"]


def test_two_studies_share_a_network(copy, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(copy.read_text().replace("Tiny", "Other") + "\n[report]\nnote = 'x'\n")
    result = run(other, tmp_path / "other", cache=tmp_path / "cache", progress=False)
    assert kinds(result) == ["report"]


def test_the_cache_can_be_named_by_the_environment(copy, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFRAMP_CACHE", str(tmp_path / "cache"))
    assert run(copy, tmp_path / "out", progress=False).done == []


def test_a_dry_run_prints_the_plan_and_writes_nothing(tiny, tmp_path):
    steps = plan_run(tiny, tmp_path / "out", cache=tmp_path / "cache")
    assert [step.kind for step in steps] == [
        *("network", "ledger", "ledger", "ledger", "comparison", "report")
    ]
    assert not any(step.is_done for step in steps)
    assert steps[-1].place == tmp_path / "out"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.toml"]


def test_a_dry_run_after_a_run_has_nothing_to_do(copy, tmp_path):
    steps = plan_run(copy, tmp_path / "out", cache=tmp_path / "cache")
    assert all(step.is_done for step in steps)
    changed = plan_run(
        copy, tmp_path / "out", changes={"corrector.hidden": 3}, cache=tmp_path / "cache"
    )
    assert [step.kind for step in changed if not step.is_done] == ["comparison", "report"]


def test_missing_data_are_named_before_anything_is_trained(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    tiny.write_text(
        tiny.read_text()
        + "[networks.digits]\n[networks.tiny-imagenet.data]\nname = 'tiny-imagenet'\n"
        + "[networks.cifar.data]\nname = 'cifar100'\n"
    )
    with pytest.raises(DataError, match="nothing was started") as raised:
        again(tiny, tmp_path)
    for words in ("`tiny-imagenet`", "`cifar100`", "hf download", f"{tmp_path / 'cifar100'} is"):
        assert words in str(raised.value)
    assert not (tmp_path / "cache" / "network").exists(), "nothing was trained"


def test_impossible_networks_and_methods_are_named_before_training(tiny, tmp_path):
    with pytest.raises(offramp.OfframpError, match="`convnet` does not take these settings"):
        again(tiny, tmp_path, **{"network.settings.colour": 3})
    assert not (tmp_path / "cache" / "network").exists()


def test_a_corrector_that_wants_more_classes_than_there_are_is_named(shipped, tmp_path):
    path = tmp_path / "study.toml"
    path.write_text("[ledgers]\nzoo = 'cifar100'\n[compare]\nmethods = ['eefp-top-10']\n")
    small = {split: _of_four_classes(ledger) for split, ledger in shipped.items()}
    shipped.update(small)
    with pytest.raises(ConfigError, match=r"'eefp-top-10' looks at 10 classes, and study has 4"):
        run(path, tmp_path / "out", cache=tmp_path / "cache", progress=False)


def _of_four_classes(ledger):
    return offramp.Ledger(
        ledger.logits[:, :, :4], ledger.labels % 4, ledger.cost_model, split=ledger.split
    )


def test_images_are_asked_for_where_a_network_needs_them(tiny, tmp_path):
    with pytest.raises(ConfigError, match="`convnet` takes square images"):
        again(tiny, tmp_path, **{"data.name": "mixture"})


def test_unknown_analyses_are_named(tiny, tmp_path):
    with pytest.raises(ConfigError, match="has no 'metric-valid'; did you mean `metric-validity`"):
        again(tiny, tmp_path, **{"report.analyses": ["metric-valid"]})


def test_ledgers_of_a_folder_are_found_beside_the_study(splits, tmp_path, monkeypatch):
    monkeypatch.delenv("OFFRAMP_DATA", raising=False)
    for split, ledger in splits.items():
        ledger.save(tmp_path / "mine" / split)
    path = tmp_path / "study.toml"
    path.write_text(
        "[ledgers]\nfolder = 'mine'\n[compare]\nmethods = ['baseline']\nresamples = 20\n"
    )
    result = run(path, tmp_path / "out", cache=tmp_path / "cache", progress=False)
    assert kinds(result) == ["comparison", "report"]
    ledger = splits["test"]
    changed = offramp.Ledger(
        ledger.logits * 2,
        ledger.labels,
        ledger.cost_model,
        split="test",
        network=ledger.network,
        sample_ids=ledger.sample_ids,
    )
    changed.save(tmp_path / "mine" / "test")
    result = run(path, tmp_path / "out", cache=tmp_path / "cache", progress=False)
    assert kinds(result) == ["comparison", "report"], "other logits are another comparison"
    path.write_text("[ledgers]\nfolder = 'no'\n")
    with pytest.raises(FileFormatError, match=r"there are no ledgers at .*no: write them with"):
        run(path, tmp_path / "out", cache=tmp_path / "cache", progress=False)


def test_the_folder_of_a_ledger_is_not_written_into(splits, tiny, tmp_path):
    splits["test"].save(tmp_path / "out")
    with pytest.raises(FileFormatError, match="it holds a ledger"):
        again(tiny, tmp_path)


def test_a_run_says_what_it_does(tiny, tmp_path, capfd):
    run(tiny, tmp_path / "out", cache=tmp_path / "cache", changes={"train.epochs": 1})
    said = capfd.readouterr().err
    for words in ("[1/6] network: convnet on cluttered-digits, joint", "epoch 1 of 1", "3 of 3: "):
        assert words in said
    run(tiny, tmp_path / "out", cache=tmp_path / "cache", changes={"train.epochs": 1})
    assert "nothing was done" in capfd.readouterr().err


def test_the_command_that_does_it_again_is_recorded(splits, tmp_path):
    for split, ledger in splits.items():
        ledger.save(tmp_path / "mine" / split)
    path = tmp_path / "study.toml"
    path.write_text("[ledgers]\nfolder = 'mine'\n[scales.a]\n")
    changes = {"compare.methods": ["baseline"], "compare.resamples": 20}
    run(path, tmp_path / "o", scale="a", changes=changes, cache=tmp_path / "c", progress=False)
    command = json.loads((tmp_path / "o" / "study.json").read_text())["command"]
    assert command == (
        "offramp run study.toml --scale a --set 'compare.methods=[\"baseline\"]' "
        "--set compare.resamples=20"
    )


def test_a_second_process_waits_for_the_first_and_does_not_repeat_its_work(splits, tmp_path):
    for split, ledger in splits.items():
        ledger.save(tmp_path / "mine" / split)
    path = tmp_path / "study.toml"
    path.write_text("[ledgers]\nfolder = 'mine'\n[compare]\nmethods = ['eefp']\nresamples = 20\n")
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()

    def work(name):
        result = run(path, tmp_path / name, cache=tmp_path / "c", progress=False)
        queue.put(kinds(result).count("comparison"))

    processes = [fork.Process(target=work, args=(name,)) for name in ("one", "two")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted([queue.get(), queue.get()]) == [0, 1]


def test_a_study_may_name_thresholds_and_auto(shipped, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "auto", Auto(candidates=("baseline", "eefp:smooth")))
    path = tmp_path / "study.toml"
    path.write_text(
        "[ledgers]\nzoo = 'cifar100'\n[corrector]\nepochs = 1\n[compare]\nresamples = 20\n"
        "seeds = 1\nmethods = ['baseline', 'eefp', 'auto', 'baseline:smooth']\n"
        "[report]\nanalyses = ['gains']\n"
    )
    result = run(path, tmp_path / "out", cache=tmp_path / "cache", progress=False)
    (comparison,) = result.comparisons.values()
    names = [method.name for method in comparison.methods]
    assert names == ["baseline", "eefp", "auto", "baseline:smooth"]
    # A quarter is out of reach: the first exit alone costs a little more.
    assert comparison["auto"].figures["accuracy@0.25"].cost == pytest.approx(0.25, abs=2e-3)
    assert "Gains over the baseline" in result.report.read_text()
