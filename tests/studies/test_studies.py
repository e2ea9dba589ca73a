"""Every shipped study parses and is laid out at both scales."""

import pytest

from offramp import studies
from offramp.errors import ConfigError, DataError, FileFormatError
from offramp.methods import find_methods
from offramp.studies import plan_run, read_study, run
from offramp.studies.catalogue import list_studies
from offramp.studies.paper import paper_group, paper_tables

SCALED = [(name, scale) for name in studies.NAMES for scale in studies.SCALES]


@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_every_study_parses_and_its_plan_is_made(name, scale, shipped, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))  # plans are made without any data
    steps = plan_run(studies.find_study(name), scale=scale, cache=tmp_path)
    assert steps[-1].kind == "report"
    assert len({step.place for step in steps}) == len(steps)


def test_every_study_file_is_listed():
    folder = studies.find_study("beyond").parent
    files = {path.stem for path in folder.glob("*.toml")}
    assert files == {*studies.NAMES, "paper"}


@pytest.mark.parametrize(("name", "scale"), SCALED)
def test_the_paper_has_figures_for_every_heading_that_is_named(name, scale):
    study = read_study(studies.find_study(name), scale)
    label = study.report.paper
    if label is None or label.startswith("fig:"):
        return
    for entry in study.networks:
        for heading in entry.paper.values():
            assert paper_group(label, heading)


def test_every_printed_row_has_as_many_figures_as_columns_and_a_known_method():
    for label, table in paper_tables().items():
        for rows in table["groups"].values():
            for method, values in rows.items():
                assert len(values) == len(table["columns"]), (label, method)
                assert find_methods([method], num_classes=1000)


def test_an_unknown_heading_is_named():
    with pytest.raises(ConfigError, match="no heading 'Domain Scetch'; did you mean `Domain Sk"):
        paper_group("tab:robustness", "Domain Scetch")
    assert paper_group("fig:teaser", "x") is None


def test_small_and_paper_scale_train_the_same_way_of_each_study():
    for name in ("other-methods", "domain-shift"):
        small, paper = (read_study(studies.find_study(name), scale) for scale in studies.SCALES)
        assert small.networks[0].train.objective == paper.networks[0].train.objective
        assert small.compare == paper.compare


def test_studies_that_share_a_network_train_it_once(shipped, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))

    def networks(name, scale):
        steps = plan_run(studies.find_study(name), scale=scale, cache=tmp_path)
        return {step.place for step in steps if step.kind == "network"}

    assert networks("decalibration", "small") == networks("msdnet-cifar100", "small")
    assert networks("vit-small-imagenet", "small") == networks("vit-tiny-tinyimagenet", "small")
    assert networks("topk-ablation", "paper") == networks("resnet34-tinyimagenet", "paper")
    assert len(networks("domain-shift", "small")) == 4, "one per source, whatever is tested"
    validity = networks("metric-validity", "small")
    assert validity > networks("efficientnet-b2-imagenet", "small")
    assert len(validity) == 3


def test_each_architecture_stands_for_its_own_family():
    families = {
        "resnet34-tinyimagenet": "thin-resnet",
        "vit-tiny-tinyimagenet": "vit",
        "msdnet-cifar100": "msdnet",
        "vit-small-imagenet": "vit",
        "efficientnet-b2-imagenet": "lite0",
    }
    for name, family in families.items():
        (entry,) = read_study(studies.find_study(name), "small").networks
        assert family == (entry.network.name if entry.network else entry.name)


def test_a_study_of_the_paper_says_which_data_are_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"nothing was started: .*`tiny-imagenet`.*hf download"):
        run(
            studies.find_study("other-methods"),
            tmp_path / "out",
            scale="paper",
            cache=tmp_path / "c",
        )
    assert not (tmp_path / "out").exists()


def test_the_list_says_what_is_at_hand(shipped, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    listed = {study.name: study for study in list_studies(tmp_path)}
    assert list(listed) == list(studies.NAMES)
    small, paper = listed["topk-ablation"].scales
    assert (small.scale, small.needs, small.state) == ("small", "shipped ledgers", "available")
    assert paper.state == "not run; data missing: tiny-imagenet"
    assert listed["domain-shift"].scales[0].state == "data missing: pacs"
    (tmp_path / "pacs").mkdir()
    (again,) = (each for each in list_studies(tmp_path) if each.name == "domain-shift")
    assert again.scales[0].state == "data available; networks trained: 0 of 4"


def test_the_list_works_without_the_shipped_ledgers(tmp_path, monkeypatch):
    def missing():
        raise FileFormatError("the zoo's `cifar100` is not installed")

    monkeypatch.setattr("offramp.zoo.cifar100", missing)
    listed = {study.name: study for study in list_studies(tmp_path)}
    assert "missing: the zoo's" in listed["topk-ablation"].scales[0].state


def test_the_paper_is_quoted_as_printed():
    sketch = paper_tables()["tab:robustness"]["groups"]["Domain Sketch"]
    assert sketch["baseline"] == ["9.27", "17.33", "22.50", "0.04", "0.58"]
