"""Reading a plain `.npz` of logits or of answers, whatever wrote it."""

import math
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile, is_zipfile

import numpy as np

from offramp.arrays import Array
from offramp.costs import Costs
from offramp.errors import FileFormatError, MemoryLimitError
from offramp.ledger.tables import ARRAYS, answers_in, check_names, has_answers

MOST_UNPACKED = 1 << 28  # bytes, up to which any ratio of compression is fine
LARGEST_RATIO = 50  # of bytes unpacked and packed; logits reach two or three

SINGLE = {"unit": str, "network": str, "reference_cost": float}
"""What is one value for all samples, and of which type."""

APART = ("stage_costs", "head_costs")
BY_SAMPLE = ("logits", "labels", "sample_ids", "groups", "lengths")
KNOWN = (*BY_SAMPLE, "costs", *APART, *SINGLE)


def read_npz(path: Path) -> dict[str, Any]:
    """The arguments of `Ledger`, or of `Ledger.from_answers`, from an `.npz`.

    Raises:
        FileFormatError: The file is damaged or foreign, or its arrays are not those of a ledger.
    """
    arrays = _arrays(path)
    found = {name: _value(path, name, array) for name, array in arrays.items()}
    if has_answers(found):
        return answers_in(path, found, ARRAYS)
    lacking = [] if "logits" in found else ["`logits`"]
    if "costs" not in found and not all(name in found for name in APART):
        lacking += ["`costs` (cumulative, one per exit), and no `stage_costs` with `head_costs`"]
    check_names(path, found, KNOWN, lacking)
    _check_labels(path, arrays)
    network = found.get("network") or None
    rest = {name: found[name] for name in BY_SAMPLE if name in found}
    return {"labels": None, **rest, "network": network, "costs": _costs(path, found)}


def _arrays(path: Path) -> dict[str, Array]:
    """The arrays of an archive, never unpickled."""
    with path.open("rb") as file:
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise FileFormatError(
                f"{path} is a single array (.npy); logits, labels and costs belong into one file: "
                "numpy.savez('logits.npz', logits=..., labels=..., costs=...)"
            )
    if not is_zipfile(path):
        raise FileFormatError(
            f"{path} is not a complete .npz file: it is truncated, or no .npz at all; write it "
            "with numpy.savez(path, logits=..., labels=..., costs=...)"
        )
    try:
        with ZipFile(path) as archive:
            _check_sizes(path, archive)
        # Never with pickle: an object array in a file can run code when it is read.
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except FileFormatError:
        raise
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


def _check_sizes(path: Path, archive: ZipFile) -> None:
    """Refuse an archive that declares far more than it holds, before memory is spent on it."""
    members = archive.infolist()
    for member in members:
        with archive.open(member) as file:
            declared = _declared_bytes(file)
        if declared > member.file_size:
            raise FileFormatError(
                f"{path}: the array `{member.filename}` declares {declared:,} bytes, and "
                f"the file has {member.file_size:,}; it is damaged"
            )
    size, unpacked = path.stat().st_size, sum(member.file_size for member in members)
    if unpacked > max(MOST_UNPACKED, LARGEST_RATIO * size):
        raise FileFormatError(
            f"{path} would unpack from {size:,} to {unpacked:,} bytes, which no logits do; if it "
            "is meant, write it with numpy.savez, uncompressed"
        )


def _declared_bytes(file: IO[bytes]) -> int:
    """The size of the array that the header of an `.npy` declares; 0 for other files."""
    npy = np.lib.format
    try:
        is_old = npy.read_magic(file) == (1, 0)
        read = npy.read_array_header_1_0 if is_old else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError:
        return 0
    return math.prod(shape) * dtype.itemsize


def _value(path: Path, name: str, array: Array) -> Any:  # noqa: ANN401
    """An array, or what an array of one number or word holds, of its type."""
    if name not in SINGLE:
        return array
    if array.size != 1:
        raise FileFormatError(f"{path}: `{name}` must be a single value, got {list(array.shape)}")
    try:
        return SINGLE[name](array.item())
    except ValueError:
        raise FileFormatError(f"{path}: `{name}` must be a number, got {array.item()!r}") from None


def _check_labels(path: Path, arrays: dict[str, Array]) -> None:
    """Raise where there are no labels, and an unknown array may be them: an integer per sample."""
    samples = arrays["logits"].shape[:1]
    for name, values in arrays.items():
        alike = name not in KNOWN and values.shape == samples and values.dtype.kind in "iu"
        if alike and "labels" not in arrays:
            raise FileFormatError(
                f"{path} has no `labels`; it has {', '.join(arrays)}; rename `{name}` to "
                "`labels`, or leave it out where there are none?"
            )


def _costs(path: Path, found: dict[str, Any]) -> Costs:
    """The costs in the arrays: stage and head costs apart, or plain cumulative ones."""
    apart = [name for name in APART if name in found]
    if "costs" in found and apart:
        raise FileFormatError(f"{path} has both `costs` and `{apart[0]}`; leave one of them out")
    reference = found.get("reference_cost", 0.0)
    if apart:
        parts = found["stage_costs"], found["head_costs"]
        return Costs(*parts, reference, found.get("unit", "macs"))
    return Costs.from_cumulative(found["costs"], found.get("unit", "relative"), reference)
