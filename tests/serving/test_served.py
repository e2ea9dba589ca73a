"""What the processes of a service answer with, and how all of them follow a change.

Here the processes are objects that share a folder; `test_server.py` starts real ones.
"""

import asyncio
import json
import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

import offramp
from offramp.data.decoding import Normalization
from offramp.errors import BudgetError, ConfigError, FileFormatError
from offramp.files import accept
from offramp.serving import AppConfig, Model, ServeConfig
from offramp.serving.served import Release, Served, SharedServed, load

from .conftest import READING, SIZE, policy_of


class Service:
    """Folders that an operator may change, and processes that serve copies of them."""

    def __init__(self, small, folder):
        for name in ("network", "policy"):
            shutil.copytree(small.folder / name, folder / name)
        self.model = Model(folder / "network", folder / "policy", reading=READING)
        self.folder = folder / "service"
        self.folder.mkdir()
        Release.of(self.model, ServeConfig(), self.folder).publish(self.folder)

    def start(self):
        return SharedServed(self.folder)

    def replace_policy(self, network, scorer):
        shutil.rmtree(self.model.policy)
        policy = policy_of(network, scorer).at(budget=1.0)
        policy.save(self.model.policy)
        return policy.fingerprint()

    def copies(self):
        return [path for path in self.folder.glob("copies-*")]


@pytest.fixture
def service(small, tmp_path):
    return Service(small, tmp_path)


def about(served):
    return asyncio.run(served.current()).about


def test_every_process_moves_to_a_budget_that_one_has_set(service):
    one, other = service.start(), service.start()
    before = about(other)["budget"]
    asyncio.run(one.set_budget(1.0))
    after = about(one)["budget"]
    assert after != before
    assert about(other)["budget"] == about(service.start())["budget"] == after
    with pytest.raises(BudgetError):
        asyncio.run(other.set_budget(1e-6))
    assert about(one)["budget"] == about(other)["budget"] == after


def test_changed_folders_are_served_after_a_reload_by_all_processes(service, small):
    one, other = service.start(), service.start()
    old = about(one)["policy"]
    asyncio.run(one.set_budget(1.0))
    new = service.replace_policy(small.network, offramp.scorers.Entropy())
    assert about(one)["policy"] == about(service.start())["policy"] == old != new
    asyncio.run(other.reload())
    assert about(one) == about(other) == about(service.start())
    assert about(one)["policy"] == new
    assert len(service.copies()) == 1


def test_a_reload_of_folders_that_do_not_fit_changes_nothing(service, small):
    served = service.start()
    before = about(served)
    (service.model.policy / "policy.json").write_text("{")
    with pytest.raises(FileFormatError):
        asyncio.run(served.reload())
    deeper = offramp.build("convnet", num_classes=4, image_size=SIZE, at=3).eval()
    for folder in (service.model.network, service.model.policy):
        shutil.rmtree(folder)
    with pytest.raises(FileFormatError, match="cannot be copied"):
        asyncio.run(served.reload())
    deeper.save(service.model.network)
    policy_of(deeper).at(budget=1.0).save(service.model.policy)
    with pytest.raises(ConfigError, match="other inputs or exits: start another server"):
        asyncio.run(served.reload())
    assert about(served) == about(service.start()) == before
    assert len(service.copies()) == 1


def test_every_process_has_loaded_what_is_new_before_any_answers_with_it(
    service, small, monkeypatch
):
    one, other = service.start(), service.start()
    old = one.responder
    published = []
    publish = Release.publish

    def watched(release, folder, name="release.json"):
        if name == "release.json":
            published.append((other._next is not None, one.responder is old))
        publish(release, folder, name)

    monkeypatch.setattr(Release, "publish", watched)
    new = service.replace_policy(small.network, offramp.scorers.Entropy())
    asyncio.run(one.reload())
    assert published == [(True, True)]
    prepared = other._next[1]
    assert about(other)["policy"] == new and other.responder is prepared  # nothing is loaded now


def test_a_reload_that_one_process_cannot_load_changes_nothing(service, small, monkeypatch):
    one, other = service.start(), service.start()
    before = about(one)
    new = service.replace_policy(small.network, offramp.scorers.Entropy())

    def broken(fresh):
        raise ConfigError("no memory")

    monkeypatch.setattr(other, "_fitting", broken)
    with pytest.raises(ConfigError, match="another process cannot load it: no memory"):
        asyncio.run(one.reload())
    assert about(one) == about(other) == about(service.start()) == before != new
    assert len(service.copies()) == 1


def test_a_process_that_died_is_not_waited_for(service, small):
    one = service.start()
    (service.folder / "worker-99999-1").touch()
    service.replace_policy(small.network, offramp.scorers.Entropy())
    asyncio.run(one.reload())
    assert not (service.folder / "worker-99999-1").exists()


def test_copies_that_are_not_what_was_published_are_not_served(service):
    (copies,) = service.copies()
    (copies / "policy" / "note.txt").write_text("another file")
    with pytest.raises(FileFormatError, match="is not what it was when it was checked"):
        service.start()


def test_all_that_a_service_reads_belongs_to_its_content(small, tmp_path):
    for name in ("network", "policy"):
        shutil.copytree(small.folder / name, tmp_path / name)
    model = Model(tmp_path / "network", tmp_path / "policy", reading=READING)
    before = model.content()
    assert model.content() == replace(model, budget=0.5).content() == before
    names = replace(model, reading=replace(READING, class_names=("b", "a", "c", "d")))
    pixels = replace(READING.image_reader, normalization=Normalization())
    assert before != names.content()
    assert before != replace(model, reading=replace(READING, image_reader=pixels)).content()
    (tmp_path / "policy" / "policy.json").open("a").write(" ")
    assert model.content() != before


def test_a_reload_reads_normalisation_and_class_names_again(small, tmp_path):
    folder = shutil.copytree(small.export, tmp_path / "export")
    served = Served(load(Model.of_run(folder), AppConfig()), Model.of_run(folder), AppConfig())
    before = about(served)
    assert before["reading"]["class_names"] == READING.class_names
    described = json.loads((folder / "export.json").read_text())
    described["notes"]["class_names"] = ["one", "two", "three", "four"]
    described["notes"]["image_reader"]["normalization"] = {"mean": [0, 0, 0], "std": [1, 1, 1]}
    (folder / "export.json").write_text(json.dumps(described))
    with pytest.raises(FileFormatError, match="was changed after it was written"):
        asyncio.run(served.reload())
    assert about(served) == before
    accept(folder)
    asyncio.run(served.reload())
    after = about(served)
    assert after["content"] != before["content"] and after["policy"] == before["policy"]
    assert after["reading"]["class_names"] == ("one", "two", "three", "four")
    assert after["reading"]["image_reader"]["normalization"]["std"] == (1, 1, 1)
    zeros = np.zeros((3, SIZE, SIZE), np.float32)
    assert served.responder.answer([zeros])[0]["name"] in ("one", "two", "three", "four")


def test_folders_that_change_while_they_are_read_are_refused(small, tmp_path, monkeypatch):
    folder = shutil.copytree(small.export, tmp_path / "export")
    runner = Model.runner

    def meanwhile(self, *parts):
        (folder / "note.txt").write_text("new")
        return runner(self, *parts)

    monkeypatch.setattr(Model, "runner", meanwhile)
    with pytest.raises(FileFormatError, match="leave the files alone while they are read"):
        load(Model.of_run(folder), AppConfig())


def test_a_process_that_cannot_load_what_is_served_ends(service, small, monkeypatch):
    one, other = service.start(), service.start()
    service.replace_policy(small.network, offramp.scorers.Entropy())
    asyncio.run(one.reload())
    other._next = None
    shutil.rmtree(service.copies()[0])
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        about(other)
