"""Options that several commands share, and how they are read."""

from pathlib import Path
from typing import Annotated

import typer

from offramp.cli.console import err
from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.storage import kind_of

Device = Annotated[
    str,
    typer.Option(
        "--device", help="cpu, cuda, cuda:1, mps, ...; auto: a GPU if there is one, else the CPU."
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        help="float32, bfloat16, float16, or auto: what the device is fastest in.",
    ),
]
LedgersPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="Folder with held_out, val and test (each a saved ledger or an .npz with logits "
        "[N, M, K], labels [N] and cumulative costs [M]), or a single such ledger, which is split "
        "into these three at random.",
    ),
]


def note_partition(path: Path, ledgers: dict[str, Ledger]) -> None:
    """Note on stderr that a single ledger was split."""
    if path.is_file() or kind_of(path) == "ledger":
        sizes = ", ".join(f"{len(ledger):,} {split}" for split, ledger in ledgers.items())
        err.print(f"note: one ledger was split at random (seed 0) into {sizes}")


def numbers(name: str, text: str) -> list[float]:
    """Comma-separated numbers of an option."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{name} must be comma-separated numbers, got {text!r}") from None
