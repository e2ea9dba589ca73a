"""A run remembers its data, and what is asked for completes or replaces them."""

import json
from dataclasses import replace

import pytest

from offramp.data.embedded import DIGIT_NORMALIZATION
from offramp.data.source import Source
from offramp.errors import FileFormatError
from offramp.networks.inputs import ImageInput
from offramp.run_folder import RunFolder
from offramp.serving.images import Reading

PACS = Source("pacs", domain="sketch", image_size=64)


def test_a_run_without_data_knows_none(tmp_path):
    assert Source.find(tmp_path) is None
    assert Source.find(tmp_path, "pacs", "photo") == Source("pacs", "photo")


def test_what_is_asked_for_goes_before_what_was_saved(tmp_path):
    PACS.save(tmp_path)
    assert Source.find(tmp_path) == PACS
    assert Source.find(tmp_path, "pacs") == PACS
    assert Source.find(tmp_path, domain="cartoon") == replace(PACS, domain="cartoon")


def test_a_domain_belongs_to_its_data_and_an_image_size_to_the_network(tmp_path):
    PACS.save(tmp_path)
    assert Source.find(tmp_path, "cifar10") == Source("cifar10", image_size=64)
    assert Source.find(tmp_path, "domainnet", "real") == Source("domainnet", "real", None, 64)


def test_the_folder_of_the_network_leads_to_the_data_of_its_run(tmp_path):
    PACS.save(tmp_path)
    assert Source.find(RunFolder(tmp_path).trained) == PACS
    assert Source.find(tmp_path / "other") is None


def test_the_folder_of_a_tokenizer_is_found_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").mkdir()
    Source("sst2", tokenizer="words").save(tmp_path / "run")
    saved = json.loads(RunFolder("run").source.read_text())
    assert saved["tokenizer"] == str(tmp_path / "words")
    Source("sst2", tokenizer="org/model").save(tmp_path / "run")
    assert Source.find(tmp_path / "run").tokenizer == "org/model"
    assert Source.find(tmp_path / "run", tokenizer="other").tokenizer == "other"


def test_the_splits_are_those_of_the_data_set():
    assert Source("mixture").load().name == "mixture"


def test_what_a_server_has_to_know_of_the_data_is_saved_with_the_run(tmp_path, monkeypatch):
    source = Source("cluttered-digits")
    source.of_samples(source.load().test).save(tmp_path)
    expected = Reading.of_run(ImageInput(20, 20), tmp_path)
    monkeypatch.setattr(Source, "load", None)  # nothing is loaded
    found = Reading.of_run(ImageInput(20, 20), tmp_path)
    assert found == expected
    assert found.image_reader.normalization == DIGIT_NORMALIZATION
    assert found.class_names == tuple("0123456789")


def test_a_run_of_changed_data_is_refused(tmp_path):
    Source("mixture", image_size=20).save(tmp_path)
    path = tmp_path / "data.json"
    path.write_text(path.read_text().replace("20", "24"))
    with pytest.raises(FileFormatError, match=r"data\.json was changed after it"):
        Source.find(tmp_path)
