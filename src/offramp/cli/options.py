"""Options that several commands share, and how they are read."""

from pathlib import Path
from typing import Annotated

import typer

from offramp.cli.console import err
from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.profile import RUNTIMES, Profile
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
        "[N, M, K], labels [N] if known, and cumulative costs [M]), or a single such ledger, "
        "which is split into these three at random.",
    ),
]

ProfilePath = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        help="Folder that `offramp profile` wrote. Costs are then seconds on that machine, and "
        "budgets are shares of the seconds of the network without exits in the same runtime.",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option("--batch", help="With --profile: samples per batch. Default: 1.")
]


def in_seconds(
    ledgers: dict[str, Ledger], folder: Path | None, batch: int | None
) -> dict[str, Ledger]:
    """Ledgers with the costs of a profile, if one is named."""
    if folder is None:
        if batch is not None:
            raise ConfigError("--batch is for costs in seconds: give --profile as well")
        return ledgers
    found = [folder / runtime for runtime in RUNTIMES if kind_of(folder / runtime) == "profile"]
    if kind_of(folder) != "profile" and len(found) > 1:
        shown = " or ".join(map(str, found))
        raise ConfigError(f"{folder} has profiles of two runtimes: give --profile {shown}")
    profile = Profile.load(found[0] if len(found) == 1 else folder)
    return {name: profile.timed(ledger, batch or 1) for name, ledger in ledgers.items()}


def note_partition(path: Path, ledgers: dict[str, Ledger]) -> None:
    """Note on stderr that a single ledger was split."""
    if path.is_file() or kind_of(path) == "ledger":
        sizes = ", ".join(f"{len(ledger):,} {split}" for split, ledger in ledgers.items())
        err.print(f"note: one ledger was split at random (seed 0) into {sizes}")


def batch_sizes(name: str, text: str) -> list[int]:
    """Comma-separated batch sizes of an option."""
    sizes = numbers(name, text)
    if min(sizes) < 1 or any(size != int(size) for size in sizes):
        raise ConfigError(f"{name} must be comma-separated whole numbers from 1 on, got {text!r}")
    return [int(size) for size in sizes]


def numbers(name: str, text: str) -> list[float]:
    """Comma-separated numbers of an option."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{name} must be comma-separated numbers, got {text!r}") from None
