"""The cache: a folder per step and fingerprint, valid once its `done.json` is written."""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from offramp.files import check_target, checksum, sweep, write_text

try:
    import fcntl
except ImportError:  # Windows has no such lock: two runs at once may do the same work twice
    fcntl = None  # type: ignore[assignment]


CACHE_VARIABLE = "OFFRAMP_CACHE"
DEFAULT_FOLDER = Path("runs") / "cache"
_PACKAGES = ("offramp", "torch", "numpy", "scikit-learn", "scipy", "safetensors")


def digest(value: object) -> str:
    """A short fingerprint of JSON values; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on, and the machine."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a source tree that is not installed
            found[name] = "unknown"
    return found


class Cache:
    """Results of steps in a folder that studies share: `OFFRAMP_CACHE`, or `runs/cache`."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(folder or os.environ.get(CACHE_VARIABLE) or DEFAULT_FOLDER)
        check_target(self.folder)

    def content(self, path: Path) -> str:
        """Fingerprint of all files below a path, by name and content.

        It is remembered for as long as the sizes and times of the files stay the same.
        """
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        states = [
            (file.relative_to(path).as_posix(), file.stat().st_size, file.stat().st_mtime_ns)
            for file in files
        ]
        memory = self.folder / "content" / f"{digest([str(path.resolve()), states])}.txt"
        if memory.is_file():
            return memory.read_text(encoding="utf-8")
        found = digest(
            [[state[0], checksum(file)] for state, file in zip(states, files, strict=True)]
        )
        write_text(memory, found)
        return found


def declare_done(
    place: Path, files: Iterable[Path], settings: Mapping[str, Any], seconds: float
) -> None:
    """Declare a folder with all its `files` done, which is the last thing that a step does."""
    inside = [each for path in files for each in (path.rglob("*") if path.is_dir() else [path])]
    content = {
        "settings": settings,
        "files": [_entry(file, place) for file in sorted(inside) if file.is_file()],
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 3),
    }
    write_text(place / "done.json", json.dumps(content, indent=1, default=list) + "\n")


@contextmanager
def alone_in(place: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Keep other processes out of a folder; the lock of a killed process is released."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say(f"  waiting for another process that works in {place}")
                fcntl.flock(file, fcntl.LOCK_EX)
            sweep(place)
        yield


def read_done(place: Path) -> dict[str, Any] | None:
    """What `declare_done` wrote, or None."""
    try:
        found = json.loads((place / "done.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    is_complete = isinstance(found, dict) and isinstance(found.get("settings"), dict)
    return found if is_complete else None


def is_whole(place: Path) -> bool:
    """Whether a folder was declared done and its files are still there, as they were written.

    Tensors are not read: they are compared with a checksum of their own when they are loaded.
    """
    done = read_done(place)
    if done is None:
        return False
    files = done.get("files")
    if isinstance(files, dict):  # of an older version: sizes by name
        files = [{"file": name, "bytes": size} for name, size in files.items()]
    return isinstance(files, list) and all(_is_as_written(place, entry) for entry in files)


def _entry(file: Path, place: Path) -> dict[str, Any]:
    entry = {"file": file.relative_to(place).as_posix(), "bytes": file.stat().st_size}
    return entry if file.suffix == ".safetensors" else {**entry, "sha256": checksum(file)}


def _is_as_written(place: Path, entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
        return False
    file = place / entry["file"]
    if not file.is_file() or file.stat().st_size != entry.get("bytes"):
        return False
    return "sha256" not in entry or checksum(file) == entry["sha256"]
