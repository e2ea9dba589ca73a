"""Folders on disk: one JSON description that names one safetensors file, written atomically.

The JSON is the commit point. Tensors are written first, under a fresh name, and the JSON that
names them replaces the old one in a single rename, so that a reader sees the old folder or the
new one and never a mixture. It also keeps a checksum of the tensors, so that a damaged file is
noticed. Nothing that is read here can run code.
"""

import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from offramp.errors import FileFormatError
from offramp.hints import near_path

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

KINDS = ("ledger", "policy", "network", "export", "profile")

CHECKED_BYTES = 1 << 30
"""Up to this size, tensors are compared with their checksum whenever they are loaded (about 0.6 s
per GiB); larger ones stay memory-mapped and unread, and `verify` compares them."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder that replaces `path` when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
_TENSORS = re.compile(r"([a-z]+)-[0-9a-f]{8}\.safetensors")


def sweep(folder: Path) -> None:
    """Delete what killed runs have left below a folder in which nobody else is writing.

    These are temporary files, and tensors that no description names.
    """
    for path in [*folder.rglob(".*.tmp"), *folder.rglob("*.safetensors")]:
        tensors = _TENSORS.fullmatch(path.name)
        is_orphan = tensors and _named_file(path.with_name(f"{tensors[1]}.json")) != path
        if is_orphan or _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically and return its path."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def write_folder(
    folder: str | Path,
    kind: str,
    version: int,
    meta: Mapping[str, Any],
    tensors: "dict[str, Tensor]",
) -> Path:
    """Write `meta` (plain JSON) and `tensors` as a folder of the given kind, and return its path.

    The kind (`ledger`, `policy`, `network`) is also the stem of the file names. An older content
    of the same kind is replaced.
    """
    # Only here and in `read_folder`: this takes seconds, and commands look at folders before.
    from safetensors.torch import save_file

    folder = Path(folder)
    check_target(folder, kind)
    stale = _named_file(folder / f"{kind}.json")
    name = f"{kind}-{secrets.token_hex(4)}.safetensors"
    with atomic_path(folder / name) as temporary:
        plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        save_file(plain, temporary)
        entry = {"file": name, "bytes": temporary.stat().st_size, "sha256": checksum(temporary)}
    write_description(folder, kind, version, {"tensors": entry, **meta})
    if stale is not None:
        stale.unlink(missing_ok=True)
    logger.debug("wrote a %s to %s (%d bytes of tensors)", kind, folder, entry["bytes"])
    return folder


def write_description(folder: Path, kind: str, version: int, meta: Mapping[str, Any]) -> Path:
    """Write the JSON that makes a folder one of the given kind; return its path."""
    description = {"format": f"offramp-{kind}", "version": version, **meta}
    return write_text(folder / f"{kind}.json", json.dumps(description, indent=1) + "\n")


def check_target(folder: str | Path, kind: str | None = None) -> None:
    """Raise `FileFormatError` if a file, or a folder of another kind than `kind`, is in the way.

    None is for files of no kind, such as tables.
    """
    folder = Path(folder)
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise FileFormatError(f"cannot write to {folder}: {place} is a file, not a folder")
    found = kind_of(folder)
    if found is not None and found != kind:
        raise FileFormatError(
            f"cannot write to {folder}: it holds a {found}; choose another folder"
        )


def check_fresh(folder: str | Path, kind: str, force: bool = True) -> None:
    """Raise `FileFormatError` unless a folder is new, empty, or holds an older one of this kind.

    For commands, whose user may have named a folder by mistake: nobody wants a policy's files
    among their own. Without `force`, an older one is not to be replaced either.
    """
    folder = Path(folder)
    check_target(folder, kind)
    if kind_of(folder) == kind and not force:
        raise FileFormatError(
            f"there is a {kind} in {folder} already: give --force to replace it, or another --out"
        )
    if kind_of(folder) == kind or not folder.is_dir():
        return
    names = sorted(path.name for path in folder.iterdir())
    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise FileFormatError(
            f"cannot write to {folder}: it holds other things ({shown}) and no {kind}; choose a "
            "new or an empty folder"
        )


def _named_file(description: Path) -> Path | None:
    """The tensor file that an existing description names, and so owns."""
    try:
        name = json.loads(description.read_text(encoding="utf-8"))["tensors"]["file"]
        return description.with_name(name) if Path(name).name == name else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def kind_of(path: str | Path) -> str | None:
    """Tell what a folder holds (`ledger`, `policy`, `network`, `export`), or None."""
    return next((kind for kind in KINDS if (Path(path) / f"{kind}.json").is_file()), None)


def read_folder(
    folder: str | Path, kind: str, version: int, links_into: Path | None = None
) -> "tuple[dict[str, Any], dict[str, Tensor]]":
    """Read back what `write_folder` wrote; the tensors are memory-mapped, not copied.

    A tensor file that is a symbolic link out of `folder` is refused, unless it leads to below
    `links_into`, such as the cache of a hub.
    """
    from safetensors import SafetensorError, safe_open

    folder = Path(folder)
    meta = read_description(folder, kind, version)
    path = _tensor_path(folder, meta, links_into)
    is_checked = path.stat().st_size <= CHECKED_BYTES and "sha256" in meta["tensors"]
    if is_checked:
        _check_content(path, meta["tensors"])
    logger.debug(
        "reading a %s from %s (checksum %s)",
        kind,
        folder,
        "right" if is_checked else "not compared",
    )
    try:
        with safe_open(path, framework="pt") as file:
            return meta, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FileFormatError(f"{path} is not a readable safetensors file: {error}") from None


def split_file(folder: Path, split: str) -> Path | None:
    """The ledger of a split in a folder: a folder or a file of its name; None without one."""
    candidates = (folder / f"{split}{end}" for end in ("", ".npz", ".jsonl", ".parquet"))
    return next((place for place in candidates if place.exists()), None)


def check_splits(folder: Path, splits: Sequence[str]) -> None:
    """Raise `FileFormatError` unless a folder has a ledger of each of these splits.

    The message says where they are, if they are one folder further down, as in that of a run.
    """
    missing = [split for split in splits if split_file(folder, split) is None]
    if not missing:
        return
    looked = ", ".join(f"{split}/ or {split}.npz" for split in missing)
    below = [
        each
        for each in sorted(folder.iterdir())
        if each.is_dir() and all(split_file(each, split) for split in splits)
    ]
    hint = f"; did you mean {below[0]}?" if below else ""
    if not hint and (folder / "network" / "network.json").is_file():
        hint = f"; to record them from the network there: offramp record {folder}"
    raise FileFormatError(f"{folder} lacks {looked}; a folder needs {', '.join(splits)}{hint}")


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever is there
    """Read a JSON file.

    Raises:
        FileFormatError: It is no JSON, or nested too deeply.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also: no UTF-8, a number of 5,000 digits
        raise FileFormatError(f"{path} is not valid JSON: {error}") from None


def read_description(folder: Path, kind: str, version: int) -> dict[str, Any]:
    """Read what `write_description` wrote."""
    path = folder / f"{kind}.json"
    if not path.is_file():
        found = kind_of(folder)
        hint = f"; it holds a {found}" if found else ""
        if not folder.exists():
            raise FileFormatError(f"no {kind} at {folder}: there is nothing{near_path(folder)}")
        raise FileFormatError(f"no {kind} at {folder}: {path.name} is missing{hint}")
    meta = read_json(path)
    if not isinstance(meta, dict) or meta.get("format") != f"offramp-{kind}":
        raise FileFormatError(f"{path} was not written by offramp as a {kind}")
    if meta.get("version") != version:
        raise FileFormatError(
            f"{path} has format version {meta.get('version')!r}, and this offramp reads version "
            f"{version}; make the {kind} again, or install the offramp that wrote it"
        )
    return meta


def _tensor_path(folder: Path, meta: dict[str, Any], links_into: Path | None) -> Path:
    entry = meta.get("tensors")
    entry = entry if isinstance(entry, dict) else {}
    name = entry.get("file")
    # A bare file name only: a description must not be able to point outside its folder.
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
        raise FileFormatError(f"{folder} names no tensor file of its own, got {name!r}")
    path = folder / name
    check_inside(path, folder, links_into)
    _check_size(path, entry)
    return path


def check_inside(path: Path, folder: Path, links_into: Path | None = None) -> None:
    """Raise `FileFormatError` if a file is a symbolic link out of its folder.

    A folder from somewhere else could otherwise have any file of the machine read as its own.
    """
    target = path.resolve()
    roots = [folder.resolve(), *([] if links_into is None else [links_into.resolve()])]
    if not any(target.is_relative_to(root) for root in roots):
        raise FileFormatError(
            f"{path} is a symbolic link out of its folder, to {target}, and is not followed; put "
            "a copy of the file there, or link the whole folder"
        )


def _check_size(path: Path, entry: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise FileFormatError(f"{path} is missing, though the description names it")
    if path.stat().st_size != entry.get("bytes"):
        raise FileFormatError(
            f"{path} is truncated or was replaced: it has {path.stat().st_size} bytes, and "
            f"{entry.get('bytes')} were written"
        )


def _check_content(path: Path, entry: Mapping[str, Any]) -> None:
    # Folders of older versions have no checksum.
    if "sha256" in entry and checksum(path) != entry["sha256"]:
        raise FileFormatError(
            f"{path} is damaged: its content is not what was written there (another SHA-256); "
            "put a good copy in its place, or make it again"
        )


def checksum(path: Path) -> str:
    """The SHA-256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Verified(NamedTuple):
    """A file that was compared with its checksum."""

    path: Path
    size: int  # in bytes; 0 where it is missing
    damage: str | None  # None where it is as it was written
    has_checksum: bool = True  # where not, only the size was compared


def verify(folder: str | Path) -> Iterator[Verified]:
    """Compare all files below a folder with the checksums that were written with them.

    Tensors of ledgers, policies, networks and checkpoints, graphs of exports, and the cached
    results of studies, of any size.

    Raises:
        FileFormatError: It is no folder, or nothing below it was written by offramp.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> from offramp import synthetic
        >>> folder = synthetic.ledgers(seed=0)["val"].save(Path(mkdtemp()))
        >>> [(file.path.suffix, file.damage) for file in verify(folder)]
        [('.safetensors', None)]
    """
    folder = Path(folder)
    if not folder.is_dir():
        reason = "is a file, and verify looks through folders" if folder.exists() else "is missing"
        raise FileFormatError(f"{folder} {reason}")
    descriptions = [path for path in sorted(folder.rglob("*.json")) if path.name in _DESCRIPTIONS]
    if not descriptions:
        raise FileFormatError(f"nothing in {folder} was written by offramp with a checksum")
    named: dict[Path, dict[str, Any]] = {}
    for path in descriptions:
        try:
            entries = list(_named_in(read_json(path)))
        except FileFormatError as error:
            yield Verified(path, path.stat().st_size, str(error))
            continue
        for entry in entries:
            # What a step of a study has written is named twice, and has its checksum once.
            place = path.parent / entry["file"]
            named[place] = {"folder": path.parent, **named.get(place, {}), **entry}
    for path, entry in named.items():
        yield _verified(path, entry)


_DESCRIPTIONS = {f"{kind}.json" for kind in (*KINDS, "checkpoint", "done")}


def _named_in(value: object) -> Iterator[dict[str, Any]]:
    """Every object in a description that names a file, a size and perhaps a checksum."""
    if isinstance(value, dict):
        if isinstance(value.get("file"), str) and "bytes" in value:
            yield value
        else:
            for item in value.values():
                yield from _named_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _named_in(item)


def _verified(path: Path, entry: Mapping[str, Any]) -> Verified:
    size = path.stat().st_size if path.is_file() else 0
    try:
        check_inside(path, entry["folder"])
        _check_size(path, entry)
        _check_content(path, entry)
    except FileFormatError as error:
        return Verified(path, size, str(error))
    return Verified(path, size, None, "sha256" in entry)
