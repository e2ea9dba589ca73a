"""What the processes of a service answer with, and how all of them follow a change.

Here the processes are objects that share a folder; `test_server.py` starts real ones.
"""

import asyncio
import os
import shutil
import sys

import pytest

import offramp
from offramp.errors import BudgetError, ConfigError, FileFormatError
from offramp.serving import Model, ServeConfig
from offramp.serving.served import Release, SharedServed

from .conftest import READING, SIZE, policy_of


class Service:
    """Folders that an operator may change, and processes that serve copies of them."""

    def __init__(self, small, folder):
        for name in ("network", "policy"):
            shutil.copytree(small.folder / name, folder / name)
        self.model = Model(folder / "network", folder / "policy", reading=READING)
        self.folder = folder / "service"
        self.folder.mkdir()
        Release(self.model, self.model, ServeConfig()).copied(self.folder).publish(self.folder)

    def start(self):
        return SharedServed(self.folder)

    def replace_policy(self, network, scorer):
        shutil.rmtree(self.model.policy)
        policy = policy_of(network, scorer).at(budget=1.0)
        policy.save(self.model.policy)
        return policy.fingerprint()

    def copies(self):
        return [path for path in self.folder.iterdir() if path.is_dir()]


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


def test_a_process_that_cannot_load_what_is_served_ends(service, small, monkeypatch):
    one, other = service.start(), service.start()
    service.replace_policy(small.network, offramp.scorers.Entropy())
    asyncio.run(one.reload())
    shutil.rmtree(service.copies()[0])
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        about(other)
