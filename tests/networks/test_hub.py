"""The hub, as far as it can be tried without one: what would be sent is kept in a folder."""

import shutil
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from offramp.errors import FileFormatError
from offramp.networks import EarlyExitNetwork, build

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def fake_hub(tmp_path, monkeypatch):
    """A hub whose only repository is a folder."""
    repository = tmp_path / "hub"

    class Api:
        def __init__(self, **_):
            pass

        def create_repo(self, repo_id, **_):
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, folder_path, **_):
            shutil.copytree(folder_path, repository)
            return "https://hub/commit/1"

    def download(repo_id, filename, **_):
        return str(repository / filename)

    def snapshot(repo_id, allow_patterns, **_):
        # As the real one: files are links to where all versions of the repository are kept.
        target, blobs = tmp_path / "cache" / "snapshots" / "1", tmp_path / "cache" / "blobs"
        target.mkdir(parents=True)
        blobs.mkdir()
        for pattern in allow_patterns:
            for path in repository.glob(pattern):
                shutil.copy(path, blobs)
                (target / path.name).symlink_to(blobs / path.name)
        return str(target)

    mixin = import_module("huggingface_hub.hub_mixin")
    monkeypatch.setattr(mixin, "HfApi", Api)
    monkeypatch.setattr(mixin, "hf_hub_download", download)
    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    return repository


def test_network_comes_back_from_the_hub_exactly(fake_hub):
    network = build("convnet", num_classes=3, image_size=16).eval()
    assert network.push_to_hub("owner/name", private=True) == "https://hub/commit/1"
    loaded = EarlyExitNetwork.from_pretrained("owner/name", revision="main").eval()
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(loaded(x), network(x))


def test_nothing_but_json_text_and_safetensors_is_sent(fake_hub):
    build("convnet", num_classes=3, image_size=16).push_to_hub("owner/name")
    assert {path.suffix for path in fake_hub.iterdir()} == {".json", ".md", ".safetensors"}
    assert "library_name: offramp" in (fake_hub / "README.md").read_text()


def test_folder_is_read_without_the_hub(tmp_path):
    network = build("convnet", num_classes=3, image_size=16)
    network.save(tmp_path)
    assert EarlyExitNetwork.from_pretrained(tmp_path).fingerprint() == network.fingerprint()


def test_pickle_on_the_hub_is_not_read(fake_hub):
    fake_hub.mkdir()
    (fake_hub / "config.json").write_text("{}")
    torch.save({}, fake_hub / "pytorch_model.bin")
    with pytest.raises(FileFormatError, match="no network at"):
        EarlyExitNetwork.from_pretrained("owner/name")
