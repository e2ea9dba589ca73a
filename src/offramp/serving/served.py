"""What a service answers with, and how that is changed while it runs.

A service answers with the files that it was started with until it is told otherwise, and then
with all of the new ones. A change is prepared beside what answers, and switched to between two
requests; a request is read and answered with the same. The processes of one service load copies of
the folders, whose hash each of them checks, and one small file names the copies and the budget.
"""

import asyncio
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import msgspec
from starlette.concurrency import run_in_threadpool

from offramp.errors import ConfigError, FileFormatError, OfframpError
from offramp.files import write_text
from offramp.serving.config import AppConfig, ServeConfig
from offramp.serving.model import Model
from offramp.serving.responses import Responder, model_responder

try:
    import fcntl
except ImportError:  # Windows: a process that died is then waited for
    fcntl = None  # type: ignore[assignment]

RELEASE, STAGED = "release.json", "staged.json"
LOADING = 300.0  # seconds in which all processes must have loaded what is new
POLL = 0.1  # seconds
log = logging.getLogger("offramp.serving")


def load(model: Model, config: AppConfig, content: str | None = None) -> Responder:
    """Load a model, and make sure that nothing of it changed meanwhile.

    Args:
        model: Folders.
        config: How they are loaded.
        content: The hash that the folders must have.

    Raises:
        OfframpError: They cannot be loaded, or are not these.
    """
    wanted = model.content() if content is None else content
    responder = model_responder(model, config)
    if model.content() != wanted:
        raise FileFormatError(
            f"{model.network} is not what it was when it was checked: leave the files alone while "
            "they are read, and try again"
        )
    responder.loaded["content"] = wanted
    return responder


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
            await run_in_threadpool(self._set_budget, budget)

    async def reload(self) -> None:
        """Read everything again that the service was started with, while requests are answered.

        Raises:
            OfframpError: It does not fit, and nothing was changed.
        """
        if self._model is None:
            raise ConfigError("this server runs a live runner, and has no folders to read")
        async with self._changing:
            await run_in_threadpool(self._load_again, self._model)

    def _set_budget(self, budget: float) -> None:
        self.responder.set_budget(budget)

    def _load_again(self, model: Model) -> None:
        self.responder = self._fitting(load(model.read_again(), self.config))

    def _fitting(self, fresh: Responder) -> Responder:
        before, after = ((x.inputs, x.loaded["exits"]) for x in (self.responder, fresh))
        if before != after:
            raise ConfigError("the new network has other inputs or exits: start another server")
        return fresh


@dataclass(frozen=True)
class Release:
    """What the processes of a service answer with: a file that all of them read."""

    copies: Model  # of the folders, at the present budget
    origin: Model  # as the service was started
    config: ServeConfig
    content: str  # hash of the copies

    @classmethod
    def read(cls, folder: Path, name: str = RELEASE) -> "Release":
        """What was published last."""
        text = (folder / name).read_bytes()
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value))

    def publish(self, folder: Path, name: str = RELEASE) -> None:
        """Make every process answer with this from now on; or load it, as what is staged."""
        write_text(folder / name, msgspec.json.encode(self, enc_hook=str).decode())

    @classmethod
    def of(cls, origin: Model, config: ServeConfig, folder: Path) -> "Release":
        """Fresh copies of folders, which are not published yet.

        Raises:
            FileFormatError: A folder cannot be copied.
        """
        place = Path(tempfile.mkdtemp(dir=folder, prefix="copies-"))
        try:
            network = shutil.copytree(origin.network, place / "network")
            policy = origin.policy and shutil.copytree(origin.policy, place / "policy")
        except OSError as error:
            shutil.rmtree(place)
            raise FileFormatError(f"the folders cannot be copied: {error}") from None
        try:
            copies = replace(origin.read_again(network), network=network, policy=policy)
            return cls(copies, origin, config, copies.content())
        except OfframpError:
            shutil.rmtree(place)
            raise

    def discard(self) -> None:
        """Delete the copies. Processes that still answer with them have loaded them."""
        shutil.rmtree(self.copies.network.parent, ignore_errors=True)


class SharedServed(Served):
    """What one of several processes answers with: whatever any of them has published.

    A reload is staged first: every process loads it and says so, while it answers with the old
    one. When all have, it is published, and each switches at its next request.

    Args:
        folder: Where the release and its copies are.

    Raises:
        ConfigError, NetworkError, OriginError, FileFormatError: The copies cannot be loaded.
    """

    is_shared = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next: tuple[str, Responder] | None = None  # what is staged, loaded
        while True:
            self._release, self._seen = Release.read(folder), _version(folder / RELEASE)
            release = self._release
            try:
                responder = load(release.copies, release.config, release.content)
                break
            except OfframpError:
                if Release.read(folder) == release:  # else another one was published meanwhile
                    raise
        super().__init__(responder, release.origin, release.config)
        self._presence = _locked(folder / f"worker-{os.getpid()}-{id(self)}")
        threading.Thread(target=self._watch, daemon=True).start()

    async def current(self) -> Responder:
        """What to answer with now; the process ends where it cannot be loaded."""
        if _version(self._folder / RELEASE) != self._seen:
            async with self._changing:
                await run_in_threadpool(self._follow)
        return self.responder

    def _set_budget(self, budget: float) -> None:
        with _alone(self._folder):
            self._follow()
            self.responder.set_budget(budget)
            copies = replace(self._release.copies, budget=budget)
            self._publish(replace(self._release, copies=copies))

    def _load_again(self, model: Model) -> None:
        with _alone(self._folder):
            before = Release.read(self._folder)
            fresh = Release.of(model, before.config, self._folder)
            try:
                responder = self._fitting(load(fresh.copies, fresh.config, fresh.content))
                self._next = fresh.copies.network.parent.name, responder
                fresh.publish(self._folder, STAGED)
                self._wait_for_others(fresh)
            except OfframpError:
                fresh.discard()
                raise
            finally:
                (self._folder / STAGED).unlink(missing_ok=True)
            self._publish(fresh)
            self.responder, self._next = responder, None
            before.discard()

    def _wait_for_others(self, fresh: Release) -> None:
        """Wait until every process has loaded what is staged; `ConfigError` if one cannot."""
        place, until = fresh.copies.network.parent, time.monotonic() + LOADING
        while time.monotonic() < until:
            workers = [path for path in self._folder.glob("worker-*") if _is_locked(path)]
            others = [path for path in workers if path.name != Path(self._presence.name).name]
            said = [place / f"loaded-by-{path.name}" for path in others]
            for path in said:
                if path.is_file() and (error := json.loads(path.read_text())):
                    raise ConfigError(f"another process cannot load it: {error}")
            if all(path.is_file() for path in said):
                return
            time.sleep(POLL)
        raise ConfigError(f"not all processes have loaded it within {LOADING:g} seconds")

    def _watch(self) -> None:
        """Load what is staged, as long as the process runs."""
        seen: Release | None = None
        while True:
            time.sleep(POLL)
            with suppress(OSError, msgspec.DecodeError):
                staged = Release.read(self._folder, STAGED)
                name = staged.copies.network.parent.name
                if staged == seen or (self._next is not None and self._next[0] == name):
                    continue
                seen, error = staged, ""
                try:
                    found = load(staged.copies, staged.config, staged.content)
                    self._next = name, self._fitting(found)
                except OfframpError as problem:
                    error = str(problem)
                answer = f"loaded-by-{Path(self._presence.name).name}"
                write_text(staged.copies.network.parent / answer, json.dumps(error))

    def _publish(self, release: Release) -> None:
        release.publish(self._folder)
        self._release, self._seen = release, _version(self._folder / RELEASE)

    def _follow(self) -> None:
        """Switch to what another process has published."""
        seen, release = _version(self._folder / RELEASE), Release.read(self._folder)
        before, copies, staged = self._release.copies, release.copies, self._next
        try:
            if copies.network == before.network:
                if copies.budget is not None and copies != before:
                    self.responder.set_budget(copies.budget)
            elif staged is not None and staged[0] == copies.network.parent.name:
                self.responder, self._next = staged[1], None
            else:  # it was published before this process had heard of it
                self.responder = load(copies, release.config, release.content)
        except OfframpError:
            # It must not answer with the old model; the supervisor starts another process.
            log.exception("this process cannot load what the service serves now, and ends")
            os._exit(1)
        self._release, self._seen = release, seen


def _version(path: Path) -> tuple[int, int]:
    """Changes whenever a file is replaced."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _locked(path: Path) -> IO[str]:
    """A file that is locked as long as this process lives."""
    file = path.open("w")
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def _is_locked(path: Path) -> bool:
    if fcntl is None:
        return True
    with suppress(OSError), path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)  # of a process that died
        return False
    return path.exists()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process changes what is served after the other."""
    with _locked(folder / "changing"):
        yield
