"""Reading a plain `.npz` of per-exit logits, whatever wrote it."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile, is_zipfile

import numpy as np
import numpy.typing as npt

from offramp.costs import Costs
from offramp.errors import FileFormatError, MemoryLimitError
from offramp.ledger.tables import has_answers
from offramp.registry import close_names

OPTIONAL = ("labels", "reference_cost", "unit", "sample_ids", "network", "groups", "lengths")
MOST_UNPACKED = 1 << 28  # bytes, up to which any ratio of compression is fine
LARGEST_RATIO = 50  # of bytes unpacked and packed; logits reach two or three
KNOWN = ("logits", "costs", "stage_costs", "head_costs", *OPTIONAL)


def read_npz(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of an `.npz`, never unpickled."""
    if path.is_file() and path.open("rb").read(6) == b"\x93NUMPY":
        raise FileFormatError(
            f"{path} is a single array (.npy); logits, labels and costs belong into one file: "
            "numpy.savez('logits.npz', logits=..., labels=..., costs=...)"
        )
    if path.is_file() and not is_zipfile(path):
        raise FileFormatError(
            f"{path} is not a complete .npz file: it is truncated, or no .npz at all; write it "
            "with numpy.savez(path, logits=..., labels=..., costs=...)"
        )
    _check_sizes(path)
    try:
        # Never with pickle: an object array in a file can run code when it is read.
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except MemoryError:
        raise MemoryLimitError(
            f"{path} does not fit into memory; record or write it as a folder with Ledger.save, "
            "which is memory-mapped"
        ) from None
    # zipfile and numpy fail in many ways on damaged archives.
    except Exception as error:
        if "pickle" in str(error).lower():
            raise FileFormatError(
                f"{path} holds arrays of Python objects, which are never read, since they can run "
                "code; write arrays of numbers, all rows of one length"
            ) from None
        raise FileFormatError(f"{path} cannot be read as an .npz: {error}") from None
    if has_answers(arrays):
        return arrays
    missing = [key for key in ("logits", "labels") if key not in arrays]
    if "logits" in missing or ("labels" in missing and _like_labels(arrays)):
        raise FileFormatError(
            f"{path} has no {' and no '.join(missing)}; it has {', '.join(arrays) or 'nothing'}"
            f"{_near(missing, arrays) or _like_labels(arrays)}"
        )
    misspelt = _near([name for name in OPTIONAL if name not in arrays], arrays)
    if misspelt:
        raise FileFormatError(f"{path} has arrays that look misspelt{misspelt}")
    return arrays


def _check_sizes(path: Path) -> None:
    """Refuse an archive that declares far more than it holds, before memory is spent on it."""
    size = path.stat().st_size if path.is_file() else 0
    try:
        with ZipFile(path) as archive:
            members = archive.infolist()
            for member in members:
                with archive.open(member) as file:
                    declared = _declared_bytes(file)
                if declared is not None and declared > member.file_size:
                    raise FileFormatError(
                        f"{path}: the array `{member.filename}` declares {declared:,} bytes, and "
                        f"the file has {member.file_size:,}; it is damaged"
                    )
    except FileFormatError:
        raise
    except Exception as error:
        raise FileFormatError(f"{path} cannot be read as an .npz: {error}") from None
    unpacked = sum(member.file_size for member in members)
    if unpacked > max(MOST_UNPACKED, LARGEST_RATIO * size):
        raise FileFormatError(
            f"{path} would unpack from {size:,} to {unpacked:,} bytes, which no logits do; if it "
            "is meant, write it with numpy.savez, uncompressed"
        )


def _declared_bytes(file: IO[bytes]) -> int | None:
    """The size of the array that the header of an `.npy` declares; None for other files."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    except ValueError:
        return None
    return math.prod(shape) * dtype.itemsize


def npz_costs(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> Costs:
    """The costs in the arrays: stage and head costs apart, or plain cumulative ones."""
    apart = [key for key in ("stage_costs", "head_costs") if key in arrays]
    if "costs" in arrays and apart:
        raise FileFormatError(f"{path} has both `costs` and `{apart[0]}`; leave one of them out")
    if "costs" not in arrays and len(apart) < 2:
        raise FileFormatError(
            f"{path} has no `costs` (cumulative, one per exit), and no `stage_costs` with "
            f"`head_costs`; it has {', '.join(arrays)}{_near(['costs'], arrays)}"
        )
    reference = _scalar(path, arrays, "reference_cost", 0.0)
    if apart:
        unit = _scalar(path, arrays, "unit", "macs")
        return Costs(arrays["stage_costs"], arrays["head_costs"], reference, unit)
    unit = _scalar(path, arrays, "unit", "relative")
    return Costs.from_cumulative(arrays["costs"], unit, reference)


def npz_network(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> str | None:
    """Which network made the logits: any text that is the same for all its files; or None."""
    return _scalar(path, arrays, "network", "") or None


def _near(missing: Iterable[str], arrays: Iterable[str]) -> str:
    """The end of a sentence that guesses which arrays have a wrong name."""
    foreign = {name.lower(): name for name in arrays if name not in KNOWN}
    guesses = []
    for name in missing:
        near = close_names(name, foreign)
        guesses += [f"`{foreign[each]}` to `{name}`" for each in near]
    return f"; rename {' and '.join(guesses)}?" if guesses else ""


def _like_labels(arrays: dict[str, npt.NDArray[np.generic]]) -> str:
    """The end of a sentence on an unknown array that may be the labels: an integer per sample."""
    samples = arrays["logits"].shape[:1] if "logits" in arrays else None
    for name, values in arrays.items():
        if name not in KNOWN and values.shape == samples and values.dtype.kind in "iu":
            return f"; rename `{name}` to `labels`, or leave it out where there are none?"
    return ""


def _scalar(path: Path, arrays: dict[str, npt.NDArray[np.generic]], key: str, default: Any) -> Any:  # noqa: ANN401
    """One number or word, of the type of the default."""
    value = arrays.get(key, np.array(default))
    if value.size != 1:
        raise FileFormatError(f"{path}: `{key}` must be a single value, got {list(value.shape)}")
    try:
        return type(default)(value.item())
    except ValueError:
        raise FileFormatError(f"{path}: `{key}` must be a number, got {value.item()!r}") from None
