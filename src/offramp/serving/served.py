"""What a service answers with, and how that is changed while it runs.

The processes of one service serve the same, and nothing that was not asked for: a process that is
started again must not load files that were changed in the meantime. So several processes load
copies of their own, and one small file names the copies and the budget. A change replaces that
file, and every process reads it before it answers again.
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
from offramp.serving.config import AppConfig, ServeConfig
from offramp.serving.model import Model
from offramp.serving.responses import Responder, model_responder

FILE = "release.json"
log = logging.getLogger("offramp.serving")


class Served:
    """What one process answers with.

    Args:
        responder: Answers at first.
        model: Folders that `reload` reads again; None if the responder came from elsewhere.
        config: How they are loaded.
    """

    is_shared = False  # whether other processes serve it, too, and a supervisor restarts this one

    def __init__(
        self, responder: Responder, model: Model | None = None, config: AppConfig | None = None
    ) -> None:
        self.responder, self._model = responder, model
        self.config = config or AppConfig()
        self._changing = asyncio.Lock()  # one change after the other

    async def current(self) -> Responder:
        """What to answer with now."""
        return self.responder

    async def set_budget(self, budget: float) -> None:
        """Move to the operating point of another budget; `BudgetError` if there is none."""
        async with self._changing:
            self.responder.set_budget(budget)

    async def reload(self) -> None:
        """Read the folders again that the service was started with.

        Raises:
            OfframpError: They do not fit, and nothing was changed.
        """
        if self._model is None:
            raise ConfigError("this server runs a live runner, and has no folders to read")
        async with self._changing:
            await run_in_threadpool(self._load_again, self._model)

    def _load_again(self, model: Model) -> None:
        fresh = model_responder(model, self.config)
        before, after = ((x.inputs, x.loaded["exits"]) for x in (self.responder, fresh))
        if before != after:
            raise ConfigError("the new network has other inputs or exits: start another server")
        self.responder = fresh


@dataclass(frozen=True)
class Release:
    """What the processes of a service answer with: a file that all of them read."""

    copies: Model  # of the folders, at the present budget
    origin: Model  # as the service was started
    config: ServeConfig

    @classmethod
    def read(cls, folder: Path) -> "Release":
        """What was published last."""
        text = (folder / FILE).read_bytes()
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value))

    def publish(self, folder: Path) -> None:
        """Make every process answer with this from now on."""
        write_text(folder / FILE, msgspec.json.encode(self, enc_hook=str).decode())

    def copied(self, folder: Path) -> "Release":
        """The same with fresh copies of the original folders, which is not published yet.

        Raises:
            FileFormatError: A folder cannot be copied.
        """
        place, origin = Path(tempfile.mkdtemp(dir=folder)), self.origin
        policy = origin.policy
        try:
            network = shutil.copytree(origin.network, place / "network")
            if policy is not None:
                policy = shutil.copytree(policy, place / "policy")
        except OSError as error:
            shutil.rmtree(place)
            raise FileFormatError(f"the folders cannot be copied: {error}") from None
        return replace(self, copies=replace(origin, network=network, policy=policy))

    def discard(self) -> None:
        """Delete the copies. Processes that still answer with them have loaded them."""
        shutil.rmtree(self.copies.network.parent, ignore_errors=True)


class SharedServed(Served):
    """What one of several processes answers with: whatever any of them has published.

    Args:
        folder: Where the release and its copies are.

    Raises:
        ConfigError, NetworkError, OriginError, FileFormatError: The copies cannot be loaded.
    """

    is_shared = True

    def __init__(self, folder: Path) -> None:
        self._folder, self._release = folder, Release.read(folder)
        release = self._release
        responder = model_responder(release.copies, release.config)
        super().__init__(responder, release.origin, release.config)

    async def current(self) -> Responder:
        """What to answer with now; the process ends where it cannot be loaded."""
        async with self._changing:
            await self._follow()
        return self.responder

    async def set_budget(self, budget: float) -> None:
        """Move to the operating point of another budget, in all processes."""
        async with self._changing:
            await self._follow()
            self.responder.set_budget(budget)
            copies = replace(self._release.copies, budget=budget)
            self._publish(replace(self._release, copies=copies))

    def _load_again(self, model: Model) -> None:
        before = Release.read(self._folder)
        fresh = before.copied(self._folder)
        try:
            super()._load_again(fresh.copies)
        except OfframpError:
            fresh.discard()
            raise
        self._publish(fresh)
        before.discard()

    def _publish(self, release: Release) -> None:
        release.publish(self._folder)
        self._release = release

    async def _follow(self) -> None:
        """Load what another process has published."""
        release, before = Release.read(self._folder), self._release.copies
        if release.copies == before:
            return
        budget = release.copies.budget
        try:
            if budget is not None and release.copies.network == before.network:
                self.responder.set_budget(budget)
            else:
                self.responder = await run_in_threadpool(
                    model_responder, release.copies, release.config
                )
        except OfframpError:
            # It must not answer with the old model; the supervisor starts another process.
            log.exception("this process cannot load what the service serves now, and ends")
            os._exit(1)
        self._release = release
