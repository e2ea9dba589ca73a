"""Reading ledgers: the splits in a folder, plain `.npz` files, and tables of answers."""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import ZipFile, is_zipfile

import numpy as np

from offramp.arrays import Array, is_array
from offramp.costs import Costs
from offramp.errors import ConfigError, FileFormatError, LedgerError, MemoryLimitError
from offramp.files import kind_of, near_path
from offramp.imports import require
from offramp.ledger import saved
from offramp.ledger.ledger import Ledger, LogitLedger, Partition
from offramp.ledger.oddities import warn_of_oddities
from offramp.ledger.origin import SPLITS
from offramp.registry import close_names
from offramp.run_folder import RunFolder

MOST_UNPACKED = 1 << 28  # bytes, up to which any ratio of compression is fine
LARGEST_RATIO = 50  # of bytes unpacked and packed; logits reach two or three

SINGLE = {"unit": str, "network": str, "reference_cost": float}
"""What is one value for all samples, and of which type."""

APART = ("stage_costs", "head_costs")
BY_SAMPLE = ("logits", "labels", "sample_ids", "groups", "lengths")
KNOWN = (*BY_SAMPLE, "costs", *APART, "class_names", *SINGLE)
"""What an `.npz` of logits may hold."""

TABLES = (".jsonl", ".parquet")
"""Ends of the names of files with a row per sample."""

ROW_NAMES = {"label": "labels", "group": "groups", "id": "sample_ids"}
"""What single values of a row are called, and what all of them are together."""

ALIKE = ("unit", "network")
"""What is the same for all samples."""

BY_STAGE = (
    *("answers", "confidence", "log_confidence", "correct", "costs", "model_costs", "features"),
    "mask",
)
COLUMNS = (*BY_STAGE, *ROW_NAMES, *ALIKE)
ARRAYS = (*BY_STAGE, *ROW_NAMES.values(), *ALIKE)
"""What a table of answers and an `.npz` of answers may hold."""


class Cut(NamedTuple):
    """How a single ledger is partitioned."""

    shares: tuple[float, float, float] = (0.3, 0.3, 0.4)  # of held_out, val and test
    seed: int = 0
    stratify: bool = False  # whether every part gets its share of every class


def load_ledgers(
    path: str | Path,
    splits: Sequence[str] = Partition._fields,
    network: str | None = None,
    cut: Cut | None = None,
) -> dict[str, Ledger]:
    """Read the ledgers below a folder by the names of their splits.

    Args:
        path: A folder with `held_out`, `val` and `test`, each a saved ledger, an `.npz`, or a
            table of answers (`.jsonl`, `.parquet`); or with `train` and `test`, of which train is
            cut into held_out and val; or one single ledger or file, which is
            partitioned at random (30 %, 30 %, 40 %, seed 0).
        splits: Which ones are needed.
        network: Fingerprint of the network, for `.npz` files that do not name it.
        cut: How a single ledger is partitioned, if not so.

    Raises:
        FileFormatError: Something is missing; the message names it.
    """
    path = Path(path)
    if not path.exists():
        raise FileFormatError(f"there is nothing at {path}{near_path(path)}")
    if path.is_file() or kind_of(path) == "ledger":
        whole = Ledger.load(path, "all" if path.is_file() else None, network)
        if whole.split != "all":
            raise FileFormatError(
                f"{path} is a single ledger, of the split {whole.split!r}; give the folder that "
                f"holds {', '.join(splits)}, or a ledger that was saved with split='all'"
            )
        warn_of_oddities([whole])
        cut = cut or Cut()
        parts = whole.partition(*cut.shares, seed=cut.seed, stratify=cut.stratify)._asdict()
        return {split: parts[split] for split in splits}
    if kind_of(path) is not None:
        raise FileFormatError(f"{path} holds a {kind_of(path)}, and ledgers are needed")
    if cut is not None:
        raise ConfigError(f"{path} has its splits already: shares and a seed are for one file")
    found = {split: split_file(path, split) for split in splits}
    train = split_file(path, "train")
    if train is not None and not (found.get("held_out") or found.get("val")):
        return _with_halves(train, found, network)
    if None in found.values():
        raise FileFormatError(_lacking(path, found))
    ledgers = {
        split: Ledger.load(place, split, network) for split, place in found.items() if place
    }
    warn_of_oddities(ledgers.values())
    return ledgers


def _with_halves(
    train: Path, found: Mapping[str, Path | None], network: str | None
) -> dict[str, Ledger]:
    """held_out and val are the halves of train; the other splits are files of their own."""
    lacking = [split for split in found if split not in ("held_out", "val") and not found[split]]
    if lacking:
        raise FileFormatError(
            f"{train.parent} has {train.name}, and lacks {', '.join(lacking)}: give that, too, or "
            f"{train.name} alone, which is cut into all that is needed"
        )
    held_out, val = Ledger.load(train, "train", network).halves()
    ledgers = {"held_out": held_out, "val": val}
    for split, place in found.items():
        if place is not None:
            ledgers[split] = Ledger.load(place, split, network)
    warn_of_oddities(ledgers.values())
    return {split: ledgers[split] for split in found}


def has_ledger(path: str | Path, split: str) -> bool:
    """Whether `load_ledgers` would find this split; a single ledger has them all."""
    path = Path(path)
    if path.is_file() or kind_of(path) == "ledger" or split_file(path, split) is not None:
        return True
    return split in ("held_out", "val") and split_file(path, "train") is not None


def split_file(folder: Path, split: str) -> Path | None:
    """The ledger of a split in a folder: a folder or a file of its name; None without one."""
    candidates = (folder / f"{split}{end}" for end in ("", ".npz", ".jsonl", ".parquet"))
    return next((place for place in candidates if place.exists()), None)


def _lacking(folder: Path, found: Mapping[str, Path | None]) -> str:
    """What a folder lacks, and where the ledgers may be: one folder further down, or in a run."""
    lacking = ", ".join(f"{split}/ or {split}.npz" for split in found if found[split] is None)
    below = (each for each in sorted(folder.iterdir()) if each.is_dir())
    whole = next((each for each in below if all(split_file(each, split) for split in found)), None)
    hint = "" if whole is None else f"; did you mean {whole}?"
    if whole is None and RunFolder(folder).has_network:
        hint = f"; to record them from the network there: offramp record {folder}"
    return f"{folder} lacks {lacking}; a folder needs {', '.join(found)}{hint}"


def load(path: Path, split: str | None = None, network: str | None = None) -> Ledger:
    """Read a ledger; see `Ledger.load`."""
    if not path.exists():
        raise FileFormatError(f"there is no ledger at {path}")
    if path.is_dir():
        return saved.load(path, split)
    if split is None:
        raise LedgerError(
            f"{path} does not say which split it is; pass split= one of {', '.join(SPLITS)}"
        )
    found = read_table(path) if path.suffix in TABLES else read_npz(path)
    named = {} if network is None else {"network": network}
    make = LogitLedger if "logits" in found else Ledger.from_answers
    return make(**{**found, **named}, split=split)


def read_npz(path: Path) -> dict[str, Any]:
    """The arguments of `Ledger`, or of `Ledger.from_answers`, from an `.npz`.

    Raises:
        FileFormatError: The file is damaged or foreign, or its arrays are not those of a ledger.
    """
    arrays = _arrays(path)
    found = {name: _value(path, name, array) for name, array in _joined(path, arrays).items()}
    if has_answers(found):
        return answers_in(path, found, ARRAYS)
    lacking = [] if "logits" in found else ["`logits`"]
    if "costs" not in found and not all(name in found for name in APART):
        lacking += ["`costs` (cumulative, one per exit), and no `stage_costs` with `head_costs`"]
    check_names(path, found, KNOWN, lacking)
    _check_labels(path, found)
    network = found.get("network") or None
    rest = {name: found[name] for name in BY_SAMPLE if name in found}
    if "class_names" in found:
        rest["class_names"] = list(map(str, found["class_names"].tolist()))
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
        raise FileFormatError(f"{path} cannot be read as an .npz: {error}") from None


def _check_sizes(path: Path, archive: ZipFile) -> None:
    """Refuse an archive that declares far more than it holds, before memory is spent on it."""
    members = archive.infolist()
    for member in members:
        with archive.open(member) as file:
            declared = _declared_bytes(path, member.filename, file)
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


def _declared_bytes(path: Path, name: str, file: IO[bytes]) -> int:
    """The size of the array that the header of an `.npy` declares; 0 for other files.

    Raises:
        FileFormatError: It declares objects, whose size nobody knows before they are unpickled.
    """
    npy = np.lib.format
    try:
        is_old = npy.read_magic(file) == (1, 0)
        read = npy.read_array_header_1_0 if is_old else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError:
        return 0
    if dtype.hasobject:
        raise FileFormatError(
            f"{path}: the array `{name.removesuffix('.npy')}` holds Python objects, which are "
            "never read, since they can run code; write numbers, all rows of one length, or texts "
            "as numpy.array(texts, dtype=str)"
        )
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


def _joined(path: Path, arrays: dict[str, Array]) -> dict[str, Any]:
    """The arrays, with `logits_0`, `logits_1`, ... or `logits_1`, `logits_2`, ... as `logits`."""
    places = {int(name[7:]): name for name in arrays if re.fullmatch(r"logits_\d+", name)}
    if not places or "logits" in arrays:
        return arrays
    first, last = min(places), max(places)
    lacking = [f"`logits_{place}`" for place in range(first, last) if place not in places]
    if first > 1 or lacking:
        lacking = lacking or ["`logits_0`"]
        raise FileFormatError(f"{path} has `{places[last]}` and no {' and no '.join(lacking)}")
    rest = {name: array for name, array in arrays.items() if name not in places.values()}
    return {"logits": [arrays[places[place]] for place in sorted(places)], **rest}


def _check_labels(path: Path, found: dict[str, Any]) -> None:
    """Raise where there are no labels, and an unknown array may be them: an integer per sample."""
    given = found["logits"]
    samples = (len(given[0] if isinstance(given, list) else given),)
    arrays = {name: value for name, value in found.items() if is_array(value)}
    for name, values in arrays.items():
        alike = name not in KNOWN and values.shape == samples and values.dtype.kind in "iu"
        if alike and "labels" not in found:
            raise FileFormatError(
                f"{path} has no `labels`; it has {', '.join(found)}; rename `{name}` to "
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


def has_answers(names: Iterable[str]) -> bool:
    """Whether arrays with these names are answers with confidences, and not logits."""
    known = {"confidence", "log_confidence", "answers"}
    return "logits" not in names and bool(known & set(names))


def read_table(path: Path) -> dict[str, Any]:
    """The arguments of `Ledger.from_answers` from a file with a row per sample.

    Raises:
        FileFormatError: With the line, and what was expected there.
    """
    rows = _json_rows(path) if path.suffix == ".jsonl" else _parquet_rows(path)
    # A gateway may have asked another model than the first one first: no ledger can hold that.
    rows = [row for row in rows if "decision" not in row or row["mask"][0]]
    if not rows:
        raise FileFormatError(f"{path} has no rows")
    names = {name for row in rows for name in row}
    for number, row in enumerate(rows):
        lacking = sorted(names - set(row))
        if lacking:
            cure = "; give it the right answer, or remove the row" if "label" in lacking else ""
            raise FileFormatError(
                f"{path}, row {number + 1} lacks {', '.join(lacking)}, which other rows have{cure}"
            )
    table = {name: [row[name] for row in rows] for name in names}
    table |= {name: _alike(path, name, table[name]) for name in ALIKE if name in names}
    found = answers_in(path, table, COLUMNS)
    return {ROW_NAMES.get(name, name): value for name, value in found.items()}


def answers_in(path: Path, found: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """What of a file is known, with the costs of a cascade where each model's own are given.

    Raises:
        FileFormatError: Confidences or costs are missing, or a name looks misspelt.
    """
    lacking = [] if has_answers(found) else ["`confidence`, no `log_confidence` and no `answers`"]
    lacking += [] if {"costs", "model_costs"} & set(found) else ["`costs`"]
    check_names(path, found, known, lacking)
    answers = {name: value for name, value in found.items() if name in known}
    if "model_costs" not in answers:
        return answers
    if "costs" in answers:
        raise FileFormatError(
            f"{path} has `costs`, what a sample had cost by each stage, and `model_costs`, what "
            "each model alone has cost: leave one out"
        )
    paid = answers.pop("model_costs")
    if not isinstance(paid, np.ndarray):
        paid = _paid_rows(path, paid, answers)
    return {**answers, "costs": Costs.of_members(paid, answers.get("unit", "relative"))}


def _paid_rows(path: Path, paid: Sequence[Any], answers: Mapping[str, Any]) -> list[list[Any]]:
    """What each model has cost, None where it was not asked, as rows of one length.

    Raises:
        FileFormatError: A model has answered, and what it cost is not there.
    """
    stated = next(name for name in ("confidence", "log_confidence", "answers") if name in answers)
    for number, (row, given) in enumerate(zip(paid, answers[stated], strict=True), start=1):
        for model, value in enumerate(given):
            if value is not None and (model >= len(row) or row[model] is None):
                raise FileFormatError(
                    f"{path}, row {number}: `{stated}` has a value of model {model}, and "
                    "`model_costs` has none; give what its answer cost, or null in both where it "
                    "was not asked"
                )
    longest = max(map(len, paid))
    return [[*row, *[None] * (longest - len(row))] for row in paid]


def check_names(
    path: Path, names: Collection[str], known: Collection[str], lacking: Sequence[str]
) -> None:
    """Raise if something is lacking, or a name looks misspelt."""
    if {"item", "member", "sample"} <= set(names):
        raise FileFormatError(
            f"{path} has a response in each row, as `Cascade.record` keeps them, and a ledger has "
            "an item: record again with this `path`, which asks nothing twice, and save the ledger"
        )
    missing = [name for name in known if name not in names]
    guesses = [
        f"`{name}` to `{near}`"
        for name in names
        if name not in known
        for near in close_names(name.lower(), missing, cutoff=0.75)
    ]
    rename = f"; rename {' and '.join(guesses)}?" if guesses else ""
    if lacking:
        has = ", ".join(sorted(names)) or "nothing"
        raise FileFormatError(f"{path} has no {' and no '.join(lacking)}; it has {has}{rename}")
    if rename:
        raise FileFormatError(f"{path} has names that look misspelt{rename}")


def _alike(path: Path, name: str, values: list[Any]) -> Any:  # noqa: ANN401
    different = sorted({str(value) for value in values})
    if len(different) > 1:
        raise FileFormatError(
            f"{path}: `{name}` must be the same in all rows, got {', '.join(different[:3])}"
        )
    return values[0]


def _json_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not a text file: {error}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise FileFormatError(f"{path}, line {number} is not valid JSON: {error}") from None
        if not isinstance(row, dict):
            raise FileFormatError(
                f"{path}, line {number} must be an object such as "
                '{"answers": ["a", "b"], "confidence": [0.6, 0.9], "label": "b", "costs": [1, 3]}'
            )
        rows.append(row)
    return rows


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    parquet = require("pyarrow.parquet", extra="train")
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are subclasses
        raise FileFormatError(f"{path} cannot be read as Parquet: {error}") from None
    return rows
