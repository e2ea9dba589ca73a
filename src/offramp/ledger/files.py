"""Finding the ledgers in a folder, or cutting a single one into splits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from offramp.errors import ConfigError, FileFormatError
from offramp.files import kind_of, near_path
from offramp.ledger.ledger import Ledger, Partition
from offramp.ledger.sanity import warn_of_oddities
from offramp.run_folder import RunFolder


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
            table of answers (`.jsonl`, `.parquet`); or one single ledger or file, which is
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
    if None in found.values():
        raise FileFormatError(_lacking(path, found))
    ledgers = {
        split: Ledger.load(place, split, network) for split, place in found.items() if place
    }
    warn_of_oddities(ledgers.values())
    return ledgers


def has_ledger(path: str | Path, split: str) -> bool:
    """Whether `load_ledgers` would find this split; a single ledger has them all."""
    path = Path(path)
    return path.is_file() or kind_of(path) == "ledger" or split_file(path, split) is not None


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
