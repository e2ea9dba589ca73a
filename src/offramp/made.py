"""Results that are made once: a folder is one when its `done.json` is there, written last.

A script of several steps asks `once` for each of them. Run again, it does nothing; killed, it goes
on with the step that it was in; and a changed setting repeats the steps that depend on it.

    place = once(folder, network.fingerprint(), lambda place: record(network, val).save(place))
    ledger = Ledger.load(place)

`train` needs none of this: with a `folder`, it resumes by itself.
"""

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from offramp.errors import ConfigError, FileFormatError
from offramp.files import (
    StoredFile,
    check_target,
    checksum,
    read_sealed,
    restore,
    sweep,
    write_sealed,
)
from offramp.imports import installed_version

try:
    import fcntl
except ImportError:  # Windows has no such lock: two runs at once may do the same work twice
    fcntl = None  # type: ignore[assignment]

__all__ = ["fingerprint", "is_whole", "once", "versions"]

T = TypeVar("T")
_DONE, _LOCK = "done.json", ".lock"
_PACKAGES = ("offramp", "torch", "numpy", "scikit-learn", "scipy", "safetensors")


class _Together(Protocol):
    """Several processes that share a task, see `offramp.training.Processes`."""

    def first(self, work: Callable[[], T]) -> T:
        """Work that is done by the first process, and its result in all of them."""
        ...


def once(
    folder: str | Path,
    inputs: object,
    make: Callable[[Path], object],
    processes: _Together | None = None,
) -> Path:
    """Make a result in a folder, unless the folder holds one of the same inputs.

    Args:
        folder: Of the result, and of nothing else.
        inputs: All that the result depends on: JSON values, dataclasses and paths. A path stands
            for its content, or for the inputs of what `once` made there.
        make: Writes the result into the folder that it is called with, and may go on with what an
            interrupted call has left there.
        processes: All of them call `make`, and the first of them writes that it is done.

    Returns:
        The folder.

    Example:
        >>> from tempfile import mkdtemp
        >>> def make(place):
        ...     print("making it")
        ...     (place / "sum.txt").write_text("3")
        >>> place = once(Path(mkdtemp()) / "sum", {"terms": [1, 2]}, make)
        making it
        >>> once(place, {"terms": [1, 2]}, make) == place
        True
        >>> _ = once(place, {"terms": [1, 1, 1]}, make)
        making it
    """
    folder = Path(folder)
    if (folder / _DONE).is_dir():
        raise FileFormatError(f"{folder / _DONE} must be a file, and is a folder; remove it")

    def first(work: Callable[[], T]) -> T:
        return work() if processes is None else processes.first(work)

    if first(lambda: is_whole(folder, inputs)):
        return folder
    with ExitStack() as lock:

        def is_made_now() -> bool:
            if not (folder / _LOCK).exists():  # or it is our own, and was not finished
                check_target(folder)
            lock.enter_context(_alone_in(folder))
            return is_whole(folder, inputs)

        if first(is_made_now):  # by a process that was waited for
            return folder
        first(lambda: (folder / _DONE).unlink(missing_ok=True))
        start = time.perf_counter()
        make(folder)
        first(lambda: _declare(folder, inputs, time.perf_counter() - start))
    return folder


def is_whole(folder: str | Path, inputs: object) -> bool:
    """Whether a folder holds the result of these inputs, with all files as they were written.

    Tensors are not read: they are compared with a checksum of their own when they are loaded.

    Example:
        >>> from tempfile import mkdtemp
        >>> is_whole(mkdtemp(), {"terms": [1, 2]})
        False
    """
    folder = Path(folder)
    done = _read(folder)
    return (
        done is not None
        and done["fingerprint"] == fingerprint(inputs)
        and all(_is_as_written(folder, entry) for entry in done["files"])
    )


def fingerprint(inputs: object) -> str:
    """A short text that is the same if and only if the inputs are; the order of keys is not.

    Args:
        inputs: As for `once`.

    Raises:
        ConfigError: Something has no JSON form.

    Example:
        >>> fingerprint({"a": (1, 2), "b": None}) == fingerprint({"b": None, "a": [1, 2]})
        True
        >>> fingerprint({"a": 1}) == fingerprint({"a": 1.5})
        False
    """
    return hashlib.sha256(_text(inputs).encode()).hexdigest()[:20]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on, and the machine."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    # Unknown: offramp is run from a source tree that is not installed.
    return found | {name: installed_version(name) or "unknown" for name in _PACKAGES}


def _text(inputs: object) -> str:
    return json.dumps(inputs, sort_keys=True, default=_plain)


def _plain(value: object) -> object:
    """What has no JSON form of its own."""
    if isinstance(value, Path):
        return _content(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise ConfigError(
        "inputs of a result are JSON values, dataclasses and paths, got "
        f"{type(value).__name__}; name what tells it from others, such as network.fingerprint()"
    )


def _content(path: Path) -> object:
    """What a path stands for: its inputs, or the names and checksums of its files."""
    done = _read(path)
    if done is not None:
        return done["fingerprint"]
    if path.is_file():
        return checksum(path)
    return [[each.relative_to(path).as_posix(), checksum(each)] for each in _files(path)]


def _files(folder: Path) -> list[Path]:
    """All files below a folder, but hidden ones and its own `done.json`."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if path.name[0] != "." and path != folder / _DONE]


def _declare(folder: Path, inputs: object, seconds: float) -> None:
    """Declare a folder done, with the files that are in it."""
    entries = []
    for file in _files(folder):
        entry = {"file": file.relative_to(folder).as_posix(), "bytes": file.stat().st_size}
        is_tensors = file.suffix == ".safetensors"
        entries.append(entry if is_tensors else {**entry, "sha256": checksum(file)})
    content = {
        "fingerprint": fingerprint(inputs),
        "inputs": json.loads(_text(inputs)),
        "files": entries,
        "versions": versions(),
        "seconds": round(seconds, 3),
    }
    write_sealed(folder / _DONE, content)


def _read(folder: Path) -> dict[str, Any] | None:
    """What `_declare` wrote, or None."""
    try:
        found = read_sealed(folder / _DONE, required=False)
    except FileFormatError:
        return None
    is_ours = isinstance(found.get("files"), list)
    return found if is_ours and isinstance(found.get("fingerprint"), str) else None


def _is_as_written(folder: Path, entry: object) -> bool:
    with suppress(FileFormatError):
        stored: StoredFile = restore(StoredFile, entry)
        return stored.checked(folder).is_file()
    return False


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; the lock of a killed process is released."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)  # waits for another process
            sweep(folder)
        yield
