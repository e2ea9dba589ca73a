"""The cache: a folder per step and fingerprint, that counts once its `done.json` is there."""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from offramp.storage import write_text

__all__ = ["Cache", "digest", "versions"]

VARIABLE = "OFFRAMP_CACHE"
DEFAULT = Path("runs") / "cache"
_PACKAGES = ("offramp", "torch", "numpy", "scikit-learn", "scipy", "safetensors")
_PART = 1 << 22


def digest(value: object) -> str:
    """A short text that is the same for the same JSON values.

    Example:
        >>> digest({"a": 1, "b": [2.0]}) == digest({"b": [2.0], "a": 1})
        True
    """
    text = json.dumps(value, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def versions() -> dict[str, str]:
    """Of Python, the packages that results depend on, and the machine."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a source tree that is not installed
            found[name] = "unknown"
    return found


class Cache:
    """Results of steps, shared by all studies that use the same folder.

    Args:
        folder: Default: the environment variable `OFFRAMP_CACHE`, or `runs/cache`.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(folder or os.environ.get(VARIABLE) or DEFAULT)

    def place(self, kind: str, fingerprint: str) -> Path:
        """The folder of one step's result."""
        return self.folder / kind / fingerprint

    def has(self, kind: str, fingerprint: str) -> bool:
        """Whether the step has been done, and everything that it wrote is still there."""
        record = self.record(kind, fingerprint)
        place = self.place(kind, fingerprint)
        return record is not None and all(
            (place / name).is_file() and (place / name).stat().st_size == size
            for name, size in record["files"].items()
        )

    def record(self, kind: str, fingerprint: str) -> dict[str, Any] | None:
        """What `finish` wrote, or None."""
        try:
            text = (self.place(kind, fingerprint) / "done.json").read_text(encoding="utf-8")
            return dict(json.loads(text))
        except (OSError, ValueError):
            return None

    def finish(
        self, kind: str, fingerprint: str, settings: Mapping[str, Any], seconds: float
    ) -> None:
        """Declare a step done; a kill before this leaves it to do, a kill after leaves it done."""
        place = self.place(kind, fingerprint)
        files = {
            str(path.relative_to(place)): path.stat().st_size
            for path in sorted(place.rglob("*"))
            if path.is_file() and path.name != "done.json" and not path.name.startswith(".")
        }
        content = {
            "settings": settings,
            "files": files,
            "versions": versions(),
            "threads": torch.get_num_threads(),
            "seconds": round(seconds, 3),
        }
        write_text(place / "done.json", json.dumps(content, indent=1, default=list) + "\n")

    def content(self, path: Path) -> str:
        """Fingerprint of all files below a path, by name and content.

        A file is read once; as long as its size and its time stay, the result is remembered.
        """
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        states = [
            (file.relative_to(path).as_posix(), file.stat().st_size, file.stat().st_mtime_ns)
            for file in files
        ]
        memory = self.folder / "content" / f"{digest([str(path.resolve()), states])}.txt"
        if memory.is_file():
            return memory.read_text(encoding="utf-8")
        found = digest([[state[0], _hash(file)] for state, file in zip(states, files, strict=True)])
        write_text(memory, found)
        return found


def _hash(file: Path) -> str:
    found = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(_PART):
            found.update(part)
    return found.hexdigest()
