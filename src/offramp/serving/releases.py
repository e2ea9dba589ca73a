"""What a service serves, and how that is changed while it runs.

The processes of one service serve the same, and nothing that was not asked for: a process that is
started again must not load files that were changed in the meantime. So several processes load
copies, which nobody else changes, and one small file names the copies and the budget. Whoever
changes something replaces that file, and every process reads it before it answers again.
"""

import asyncio
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from starlette.concurrency import run_in_threadpool

from offramp.errors import ConfigError, FileFormatError, OfframpError
from offramp.files import write_text
from offramp.serving.config import AppConfig
from offramp.serving.model import Model
from offramp.serving.workers import RunnerWorker, Worker

log = logging.getLogger("offramp.serving")


@dataclass(frozen=True)
class Release:
    """What a service serves now."""

    model: Model  # at the present budget
    origin: Model  # as the service was started, of the folders that `reload` reads again
    config: AppConfig


class Releases:
    """What a service of one process serves: the folders as they were when they were loaded."""

    is_shared = False  # whether other processes serve it, too

    def __init__(self, model: Model, config: AppConfig) -> None:
        self._release = Release(model, model, config)

    def current(self) -> Release:
        """What is served now."""
        return self._release

    def copied(self, model: Model) -> Model:
        """A model whose folders nobody else changes, which is not served yet."""
        return model

    def publish(self, model: Model) -> None:
        """Serve a model that `copied` returned, or the present one at another budget."""
        self._release = replace(self._release, model=model)

    def discard(self, model: Model) -> None:
        """Delete what `copied` made. Processes that still answer with it have loaded it."""


class SharedReleases(Releases):
    """What several processes serve: a folder with copies, and a file that names them.

    Args:
        folder: Where they are; `start` fills an empty one.
    """

    is_shared = True

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._file = self._folder / "release.json"
        self._read: tuple[tuple[int, int], Release] | None = None

    @classmethod
    def start(cls, folder: str | Path, model: Model, config: AppConfig) -> "SharedReleases":
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


class Served:
    """What one process answers with: a runner or a cascade that was made elsewhere."""

    is_shared = False  # whether other processes serve it, too, and a supervisor restarts this one

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    async def current(self) -> Worker:
        """The worker to answer with now."""
        return self.worker

    async def set_budget(self, budget: float) -> None:
        """Move to the operating point of another budget; `BudgetError` if there is none."""
        self.worker.set_budget(budget)

    async def reload(self) -> None:
        """Read the folders again that the service was started with.

        Raises:
            OfframpError: They do not fit, and nothing was changed.
        """
        raise ConfigError("this server runs a live runner, and has no folders to read")


class ServedModel(Served):
    """What one process answers with: folders, and every change that any process has made.

    Raises:
        ConfigError, NetworkError, OriginError, FileFormatError: The model cannot be loaded.
    """

    def __init__(self, releases: Releases) -> None:
        release = releases.current()
        super().__init__(RunnerWorker.of_model(release.model, release.config))
        self._releases, self._loaded = releases, release.model
        self._changing = asyncio.Lock()  # one change after the other
        self.is_shared = releases.is_shared

    async def current(self) -> Worker:
        """The worker to answer with now; the process ends where it cannot be loaded."""
        async with self._changing:
            await self._follow()
        return self.worker

    async def set_budget(self, budget: float) -> None:
        """Move to the operating point of another budget, in all processes."""
        async with self._changing:
            await self._follow()
            self.worker.set_budget(budget)
            self._loaded = replace(self._loaded, budget=budget)
            self._releases.publish(self._loaded)

    async def reload(self) -> None:
        """Serve what is in the folders now, in all processes."""
        async with self._changing:
            await run_in_threadpool(self._load_again)

    async def _follow(self) -> None:
        """Load what another process has published."""
        release = self._releases.current()
        if release.model == self._loaded:
            return
        budget = release.model.budget
        try:
            if budget and release.model == replace(self._loaded, budget=budget):
                self.worker.set_budget(budget)
            else:
                self.worker = await run_in_threadpool(
                    RunnerWorker.of_model, release.model, release.config
                )
        except OfframpError:
            # It must not answer with the old model; the supervisor starts another process.
            log.exception("this process cannot load what the service serves now, and ends")
            os._exit(1)
        self._loaded = release.model

    def _load_again(self) -> None:
        release = self._releases.current()
        fresh = self._releases.copied(release.origin)
        try:
            worker = RunnerWorker.of_model(fresh, release.config)
            if not self.worker.takes_the_same_as(worker):
                raise ConfigError(
                    "the new network has other inputs or exits: start another server"
                )
        except OfframpError:
            self._releases.discard(fresh)
            raise
        self._releases.publish(fresh)
        self.worker, self._loaded = worker, fresh
