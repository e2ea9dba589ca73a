"""Folders on disk: one JSON description that names one safetensors file, written atomically.

The JSON is the commit point. Tensors are written first, under a fresh name, and the JSON that
names them replaces the old one in a single rename, so that a reader sees the old folder or the
new one and never a mixture. It also keeps a checksum of the tensors and one of itself, so that a
change in either is noticed; `accept` is for a change that was meant. Nothing that is read here can
run code: `restore` makes values of annotated types of JSON, and of nothing else.
"""

import hashlib
import json
import logging
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_origin, overload

import msgspec

from offramp.errors import FileFormatError
from offramp.registry import close_names

# The command line checks its folders before it imports numpy.
if TYPE_CHECKING:
    from torch import Tensor

    from offramp.arrays import Array

logger = logging.getLogger(__name__)

KINDS = ("ledger", "policy", "network", "export", "profile")

CHECKED_BYTES = 1 << 30
"""Up to this size, tensors are compared with their checksum whenever they are loaded (about 0.6 s
per GiB); larger ones stay memory-mapped and unread, and `offramp inspect` compares them."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder that replaces `path` when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise FileFormatError(f"cannot write {path}: it is a folder; remove it")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def near_path(path: Path) -> str:
    """The end of a message about a missing path: a similar name in its folder, or nothing."""
    missing = next((each for each in (*reversed(path.parents), path) if not each.exists()), path)
    others = missing.parent.iterdir() if missing.parent.is_dir() else ()
    close = close_names(missing.name, sorted(each.name for each in others))
    return f"; did you mean {missing.with_name(close[0])}?" if close else ""


_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
_TENSORS = re.compile(r"([a-z]+)-[0-9a-f]{8}\.safetensors")


def sweep(folder: Path) -> None:
    """Delete what killed runs have left below a folder in which no other process writes.

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
    tensors: Mapping[str, Any],
) -> Path:
    """Write `meta` (plain JSON) and `tensors` as a folder of the given kind, and return its path.

    These are all arrays of NumPy or all tensors of torch, which are the same in the file.

    The kind (`ledger`, `policy`, `network`) is also the stem of the file names. An older content
    of the same kind is replaced.
    """
    folder = Path(folder)
    check_target(folder, kind)
    stale = _named_file(folder / f"{kind}.json")
    name = f"{kind}-{secrets.token_hex(4)}.safetensors"
    with atomic_path(folder / name) as temporary:
        _save(tensors, temporary)
        entry = StoredFile.of(temporary, name)
    try:
        write_description(folder, kind, version, {"tensors": asdict(entry), **meta})
    except BaseException:  # such as a full disk
        (folder / name).unlink(missing_ok=True)
        raise
    if stale is not None:
        stale.unlink(missing_ok=True)
    logger.debug("wrote a %s to %s (%d bytes of tensors)", kind, folder, entry.bytes)
    return folder


def _save(tensors: Mapping[str, Any], path: Path) -> None:
    import numpy as np

    from offramp.arrays import is_tensor

    if any(map(is_tensor, tensors.values())):
        from safetensors.torch import save_file as save_tensors

        plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        _written(lambda: save_tensors(plain, path), path)
        return
    from safetensors.numpy import save_file

    arrays = {key: np.asarray(value, order="C") for key, value in tensors.items()}
    _written(lambda: save_file(arrays, path), path)


def _written(save: Callable[[], None], path: Path) -> None:
    """Save; safetensors has an error of its own for a full disk."""
    from safetensors import SafetensorError

    try:
        save()
    except SafetensorError as error:
        raise OSError(f"cannot write {path.parent}: {error}") from error


def write_description(folder: Path, kind: str, version: int, meta: Mapping[str, Any]) -> Path:
    """Write the JSON that makes a folder one of the given kind; return its path."""
    description = {"format": f"offramp-{kind}", "version": version, **meta}
    return write_sealed(folder / f"{kind}.json", description)


def write_sealed(path: Path, content: Mapping[str, Any]) -> Path:
    """Write JSON values with the SHA-256 of all of them, under `sha256`."""
    values: dict[str, Any] = json.loads(json.dumps(content))  # keys are texts then
    sealed = {**values, "sha256": _seal(values)}
    return write_text(path, json.dumps(sealed, indent=1) + "\n")


def read_sealed(path: Path, required: bool = True) -> dict[str, Any]:
    """Read what `write_sealed` wrote.

    Args:
        path: Of the file.
        required: Whether it must have a checksum, which older versions did not write.

    Raises:
        FileFormatError: It is no such file, or its values are not those that were written.
    """
    values = read_json(path)
    if not isinstance(values, dict):
        raise FileFormatError(f"{path} must hold an object, got {type(values).__name__}")
    if values.get("sha256") != _seal(values) and (required or "sha256" in values):
        known = "was changed after it" if "sha256" in values else "has no checksum since it"
        raise FileFormatError(
            f"{path} {known} was written, so its numbers may be anything; restore it, make it "
            f"again, or say that it is right: offramp inspect {path.parent} --accept"
        )
    return values


def _seal(values: Mapping[str, Any]) -> str:
    """The SHA-256 of JSON values, however they are laid out."""
    rest = {key: value for key, value in values.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def accept(folder: str | Path) -> list[Path]:
    """Take the descriptions below a folder as right that were changed by hand.

    Tensors and graphs are not taken as right: a change in these is damage.

    Returns:
        The files that have another checksum of themselves now.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = write_sealed(Path(mkdtemp()) / "profile.json", {"seconds": 1.5})
        >>> _ = path.write_text(path.read_text().replace("1.5", "2.5"))
        >>> accept(path.parent) == [path], read_sealed(path)["seconds"]
        (True, 2.5)
    """
    accepted = []
    for path in sorted(Path(folder).rglob("*.json")):
        values = read_json(path)
        is_ours = isinstance(values, dict) and ("sha256" in values or _is_description(values))
        if is_ours and values.get("sha256") != _seal(values):
            accepted.append(write_sealed(path, values))
    return accepted


def _is_description(values: Mapping[str, Any]) -> bool:
    return str(values.get("format", "")).startswith("offramp-")


def with_article(noun: str) -> str:
    """A noun after `a` or `an`.

    Example:
        >>> with_article("policy"), with_article("export")
        ('a policy', 'an export')
    """
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def check_alone(folder: str | Path, kind: str) -> None:
    """Raise `FileFormatError` unless a folder is new, empty, or holds an older one of this kind.

    The user may have named a folder by mistake, and nobody wants a policy's files among their
    own.
    """
    folder = Path(folder)
    check_target(folder, kind)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if names and kind_of(folder) != kind:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise FileFormatError(
            f"cannot write to {folder}: it holds other things ({shown}) and no {kind}; choose a "
            "new or an empty folder"
        )


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
            f"cannot write to {folder}: it holds {with_article(found)}; choose another folder"
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


@overload
def read_folder(
    folder: str | Path, kind: str, version: int, links_into: Path | None = None
) -> "tuple[dict[str, Any], dict[str, Array]]": ...


@overload
def read_folder(
    folder: str | Path,
    kind: str,
    version: int,
    links_into: Path | None = None,
    *,
    tensors: Literal[True],
) -> "tuple[dict[str, Any], dict[str, Tensor]]": ...


def read_folder(
    folder: str | Path,
    kind: str,
    version: int,
    links_into: Path | None = None,
    *,
    tensors: bool = False,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read back what `write_folder` wrote; the arrays are memory-mapped, not copied.

    With `tensors`, they are tensors of torch. Arrays of NumPy cannot be written to.

    A tensor file that is a symbolic link out of `folder` is refused, unless it leads to below
    `links_into`, such as the cache of a hub.
    """
    folder = Path(folder)
    while True:
        meta = read_description(folder, kind, version)
        try:
            return meta, _read_tensors(folder, kind, meta, links_into, tensors)
        except (FileFormatError, FileNotFoundError) as error:
            # Otherwise another process has replaced the folder meanwhile.
            if read_description(folder, kind, version) == meta:
                raise FileFormatError(str(error)) from None


def _read_tensors(
    folder: Path, kind: str, meta: dict[str, Any], links_into: Path | None, as_tensors: bool
) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    none = f"{folder} names no tensor file of its own"
    named: StoredFile = restore(StoredFile, meta.get("tensors"), none)
    # A bare file name only: a description must not be able to point outside its folder.
    if Path(named.file).name != named.file or not named.file.endswith(".safetensors"):
        raise FileFormatError(f"{none}, got {named.file!r}")
    is_compared = named.bytes <= CHECKED_BYTES and named.sha256 is not None
    path = named.checked(folder, links_into, compare=is_compared)
    is_right = "right" if is_compared else "not compared"
    logger.debug("reading a %s from %s (checksum %s)", kind, folder, is_right)
    try:
        with safe_open(path, framework="pt" if as_tensors else "np") as file:
            if as_tensors:
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return _mapped(path)  # what was opened is whole and well-formed
    except (SafetensorError, OSError, KeyError) as error:
        raise FileFormatError(f"{path} is not a readable safetensors file: {error}") from None


_TYPES = {
    **{
        f"{kind}{bits}": f"<{kind.lower()}{bits // 8}" for kind in "IU" for bits in (8, 16, 32, 64)
    },
    **{"F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?"},
}


def _mapped(path: Path) -> "dict[str, Array]":
    """The arrays of a file where they lie; safetensors itself copies them for NumPy."""
    import numpy as np

    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    is_empty = not any(entry["data_offsets"][1] for entry in header.values())
    none = np.empty(0, np.uint8)  # nothing cannot be mapped
    content = none if is_empty else np.memmap(path, np.uint8, "r", offset=8 + size)
    found = {}
    for name, entry in header.items():
        raw = np.asarray(content[slice(*entry["data_offsets"])])
        found[name] = _typed(raw, entry["dtype"]).reshape(entry["shape"])
    return found


def _typed(raw: "Array", name: str) -> "Array":
    """Bytes as the numbers that they are; bfloat16, which NumPy does not have, in float32."""
    if name == "BF16":
        return (raw.view("<u2").astype("<u4") << 16).view("<f4")
    return raw.view(_TYPES[name])


@dataclass(frozen=True)
class StoredFile:
    """A file as it was written, by the description that names it."""

    file: str  # its name
    bytes: int
    sha256: str | None = None  # of the content; folders of older versions have none

    @classmethod
    def of(cls, path: Path, name: str) -> "StoredFile":
        """A file that has just been written, to be stored under a name."""
        return cls(name, path.stat().st_size, checksum(path))

    def checked(self, folder: Path, links_into: Path | None = None, compare: bool = True) -> Path:
        """The path of the file, which is as it was written.

        Raises:
            FileFormatError: The file is missing, has another size or, where they are to be
                compared, another content; or it is a symbolic link out of the folder. (A folder
                from somewhere else could otherwise have any file of the machine read as its own.)
        """
        path = folder / self.file
        target = resolved(path)
        roots = [resolved(each) for each in (folder, links_into) if each is not None]
        if not any(target.is_relative_to(root) for root in roots):
            raise FileFormatError(
                f"{path} is a symbolic link out of its folder, to {target}, and is not followed; "
                "put a copy of the file there, or link the whole folder"
            )
        if not path.is_file():
            raise FileFormatError(f"{path} is missing, though the description names it")
        if not os.access(path, os.R_OK):
            raise FileFormatError(f"{path} cannot be read: no permission")
        if path.stat().st_size != self.bytes:
            raise FileFormatError(
                f"{path} is truncated or was replaced: it has {path.stat().st_size} bytes, and "
                f"{self.bytes} were written"
            )
        if compare and self.sha256 not in (None, checksum(path)):
            raise FileFormatError(
                f"{path} is damaged: its content is not what was written there (another "
                "SHA-256); put a good copy in its place, or make it again"
            )
        return path


def resolved(path: Path) -> Path:
    """A path without symbolic links; links that lead in a circle stay (`resolve` would raise)."""
    return Path(os.path.realpath(path))


def checksum(path: Path) -> str:
    """The SHA-256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stored_in(description: object) -> Iterator[dict[str, Any]]:
    """Every object in a description that names a file."""
    if isinstance(description, dict) and isinstance(description.get("file"), str):
        yield description
    elif isinstance(description, dict | list):
        for item in description.values() if isinstance(description, dict) else description:
            yield from stored_in(item)


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever is there
    """Read a JSON file.

    Raises:
        FileFormatError: It cannot be read, is no JSON, is nested too deeply, or has whole numbers
            beyond 64 bits.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_int=_whole)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also: no UTF-8, a number of 5,000 digits
        raise FileFormatError(f"{path} is not valid JSON: {error}") from None


def _whole(digits: str) -> int:
    number = int(digits)
    if abs(number) >= 2**63:  # arrays and tensors count no further
        raise ValueError(f"{number:.3g} is more than any count here")
    return number


def read_description(folder: Path, kind: str, version: int) -> dict[str, Any]:
    """Read what `write_description` wrote."""
    path = folder / f"{kind}.json"
    if not path.is_file():
        found = kind_of(folder)
        hint = f"; it holds {with_article(found)}" if found else ""
        if not folder.exists():
            raise FileFormatError(f"no {kind} at {folder}: there is nothing{near_path(folder)}")
        raise FileFormatError(f"no {kind} at {folder}: {path.name} is missing{hint}")
    meta = read_json(path)
    if not isinstance(meta, dict) or meta.get("format") != f"offramp-{kind}":
        raise FileFormatError(f"{path} was not written by offramp as {with_article(kind)}")
    if meta.get("version") != version:
        raise FileFormatError(
            f"{path} has format version {meta.get('version')!r}, and this offramp reads version "
            f"{version}; make the {kind} again, or install the offramp that wrote it"
        )
    return read_sealed(path)


# JSON has no NaN and no infinities: a float that may be one is written by `plain`, and read back
# where its field says so.
if TYPE_CHECKING:
    Number: TypeAlias = float
else:

    class Number(float):
        """A float that may be NaN or infinite, as a field of what `restore` makes."""


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON is recursive
    """Turn arrays and tensors into lists, NaN into None and infinities into text, for JSON.

    Example:
        >>> import numpy as np
        >>> plain({"a": np.array([1.0, float("nan"), float("inf")])})
        {'a': [1.0, None, 'inf']}
    """
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def restore(kind: Any, value: Any, where: str = "") -> Any:  # noqa: ANN401 - JSON is recursive
    """Make a value of the annotated type `kind` from what `plain` made of it.

    Args:
        kind: A dataclass, a `TypedDict`, a container, an array, a number, a text, `Literal`, any
            of these or None. Fields of dataclasses with a default may be missing, and unknown
            fields are ignored: they are from another version.
        value: As read from JSON.
        where: Name of the file, for messages.

    Raises:
        FileFormatError: Something is missing, or is not what its type says; with its place.

    Example:
        >>> restore(dict[str, list[Number]], {"a": [1.0, None, "inf"]})
        {'a': [1.0, nan, inf]}
        >>> restore(list[list[int]], [[1], [1, "two"]], "x.json")
        Traceback (most recent call last):
        offramp.errors.FileFormatError: x.json: `[1][1]` must be a whole number, got a text
    """
    try:
        return msgspec.convert(value, kind, dec_hook=_numbers_as)
    except (msgspec.ValidationError, RecursionError) as error:
        text = _in_our_words(str(error))
        raise FileFormatError(f"{where}: {text}" if where else text) from None


_ROWS = "rows of numbers, all of one length"


def _numbers_as(kind: Any, value: Any) -> Any:  # noqa: ANN401 - a `Number` or an array
    """What msgspec does not know; errors are worded as its own."""
    if kind is Number:
        return Number(_floats(value, "a number"))
    import numpy as np

    try:
        array = np.asarray(_floats(value, _ROWS))
    except ValueError:
        raise ValueError(f"Expected {_ROWS}, got {value!r:.60}") from None
    if get_origin(kind) is np.ndarray:  # npt.NDArray[...] states the type of its numbers, or Any
        (wanted,) = get_args(get_args(kind)[1])
        return array if wanted is Any else array.astype(wanted)
    return array


def _floats(value: Any, expected: str) -> Any:  # noqa: ANN401
    """Numbers, or lists of them: None is NaN, and infinities are texts."""
    if isinstance(value, list) and expected is _ROWS:
        return [_floats(item, expected) for item in value]
    if value is None or value in ("inf", "-inf"):
        return math.nan if value is None else float(value)
    is_truth = isinstance(value, bool) and expected is not _ROWS
    if is_truth or not isinstance(value, int | float):
        raise ValueError(f"Expected {expected}, got {value!r:.60}")
    return value


_WORDS = {
    **{"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"},
    **{"object": "an object", "array": "a list", "null": "nothing"},
}


def _in_our_words(message: str) -> str:
    """The message of msgspec about a value, and where it stands.

    Example:
        >>> _in_our_words("Expected `int`, got `null` - at `$.places[0].seed`")
        '`places[0].seed` must be a whole number, got nothing'
    """
    text, _, place = message.partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    missing = re.fullmatch("Object missing required field `(.*)`", text)
    if missing:
        return f"`{f'{place}.{missing[1]}'.lstrip('.')}` is missing"
    name = f"`{place}`" if place else "the content"
    if text.startswith("Expected "):
        words = re.sub(r"`[a-z |]+`", _named, text.removeprefix("Expected "))
        return f"{name} must be {words}"
    return f"{name}: {text}"


def _named(found: re.Match[str]) -> str:
    kinds = found[0].strip("`").split(" | ")
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds)
