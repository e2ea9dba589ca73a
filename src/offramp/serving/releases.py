"""What the processes of one service serve: the same, and nothing that was not asked for.

A process that is started again must not load files that were changed in the meantime. So the
processes load copies, which nobody else changes, and one small file names the copies and the
budget. Whoever changes something replaces that file, and every process reads it before it answers
again.
"""

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from offramp.errors import FileFormatError
from offramp.files import write_text
from offramp.serving.config import AppConfig
from offramp.serving.model import Model


@dataclass(frozen=True)
class Release:
    """What a service serves now."""

    model: Model  # of copied folders, at the present budget
    origin: Model  # of the folders that were copied
    config: AppConfig


class Releases:
    """A folder with copies of what is served, and the file that names them.

    Args:
        folder: Where they are; `start` fills an empty one.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._file = self._folder / "release.json"
        self._read: tuple[tuple[int, int], Release] | None = None

    @classmethod
    def start(cls, folder: str | Path, model: Model, config: AppConfig) -> "Releases":
        """Serve a model: copy its folders."""
        made = cls(folder)
        made._write(Release(made.copied(model), model, config))
        return made

    def current(self) -> Release:
        """What is served now; the file is read only if it was replaced."""
        status = self._file.stat()
        version = status.st_ino, status.st_mtime_ns
        if self._read is None or self._read[0] != version:
            found = msgspec.json.decode(
                self._file.read_bytes(), type=Release, dec_hook=lambda kind, value: kind(value)
            )
            self._read = version, found
        return self._read[1]

    def copied(self, model: Model) -> Model:
        """A model of fresh copies of the folders, which is not served yet.

        Raises:
            FileFormatError: A folder cannot be copied.
        """
        place = Path(tempfile.mkdtemp(dir=self._folder))
        policy = model.policy
        try:
            network = shutil.copytree(model.network, place / "network")
            if policy is not None:
                policy = shutil.copytree(policy, place / "policy")
        except OSError as error:
            shutil.rmtree(place)
            raise FileFormatError(f"the folders cannot be copied: {error}") from None
        return replace(model, network=network, policy=policy)

    def publish(self, model: Model) -> None:
        """Serve a model of copied folders from now on, or the present one at another budget."""
        before = self.current()
        self._write(replace(before, model=model))
        if model.network != before.model.network:
            self.discard(before.model)

    def discard(self, model: Model) -> None:
        """Delete copies. Processes that still answer with them have loaded them."""
        shutil.rmtree(model.network.parent, ignore_errors=True)

    def _write(self, release: Release) -> None:
        text = msgspec.json.encode(release, enc_hook=str).decode()
        write_text(self._file, text)
