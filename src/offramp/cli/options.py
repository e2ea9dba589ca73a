"""Options that several commands share, and how they are read.

Nothing here imports torch: help, completion and mistakes are answered without it.
"""

from collections.abc import Callable, Iterable
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from offramp.cli.console import err
from offramp.errors import ConfigError, FileFormatError
from offramp.files import kind_of, near_path
from offramp.registry import (
    DATA_SETS,
    GROUPS,
    METHODS,
    RUNTIMES,
    STUDIES,
    check_methods,
)

if TYPE_CHECKING:
    from offramp.ledger import Ledger

KNOWN_METHODS = (
    f"Methods: {', '.join(METHODS)}; eefp-top-K and ccct-top-K for any K, with -no-history or "
    "without; or one of an installed package (offramp doctor lists them)."
)


def completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """A function for the Tab key that knows these names, also after a comma."""
    known = list(names)

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in known if name.startswith(last)]

    return complete


def complete_methods(incomplete: str) -> list[str]:
    """Methods for the Tab key, with those of installed packages."""
    return completing([*GROUPS, *METHODS.listed()])(incomplete)


complete_data = completing(DATA_SETS)
complete_studies = completing(STUDIES)


def named_methods(text: str) -> str:
    """Comma-separated methods, refused at once if one is unknown."""
    check_methods(split_names(text))
    return text


def split_names(text: str) -> list[str]:
    """The names in a comma-separated option."""
    return [name.strip() for name in text.split(",") if name.strip()]


def share(budget: float | None) -> float | None:
    """A budget, refused at once if it cannot be one."""
    if budget is not None and not 0 < budget <= 1:
        percent = f"; for {budget:g} % say {budget / 100:g}" if 1 < budget <= 100 else ""
        raise ConfigError(
            f"--budget is a share of the network without exits in (0, 1], got {budget:g}{percent}"
        )
    return budget


def shares(text: str | None) -> str | None:
    """Comma-separated budgets, refused at once if one cannot be."""
    for budget in [] if text is None else numbers("--budgets", text):
        share(budget)
    return text


def three_shares(text: str | None) -> str | None:
    """Shares of held_out, val and test, refused at once if they cannot be."""
    found = [] if text is None else numbers("--shares", text)
    if text is not None and (len(found) != 3 or min(found) <= 0 or abs(sum(found) - 1) > 1e-9):
        raise ConfigError(
            "--shares are three positive numbers that sum to one, for held_out, val and test, "
            f"such as 0.3,0.3,0.4, got {text!r}"
        )
    return text


def there(path: Path | None) -> Path | None:
    """A path that must exist; else the error says what has a similar name."""
    if path is not None and not path.exists():
        raise FileFormatError(f"there is nothing at {path}{near_path(path)}")
    return path


def a_policy(path: Path | None) -> Path | None:
    """The folder of a policy; else the error says what is there, or has a similar name."""
    if path is None or kind_of(path) == "policy":
        return path
    there(path)
    found = kind_of(path)
    inside = [each for each in sorted(path.glob("*")) if kind_of(each) == "policy"]
    hint = f"; did you mean {inside[0]}?" if inside else ""
    raise FileFormatError(
        f"{path} is no policy{f' but a {found}' if found else ''}: give the folder that `offramp "
        f"fit` or policy.save wrote{hint}"
    )


def ledgers_there(path: Path) -> Path:
    """A place of ledgers, with the error for one that has them below it."""
    there(path)
    if path.is_file() and path.suffix == ".npy":
        raise FileFormatError(
            f"{path} is a single array; logits, labels and costs belong into one .npz: "
            "numpy.savez('logits.npz', logits=..., labels=..., costs=...)"
        )
    if path.is_dir() and kind_of(path) is None:
        from offramp.ledger.files import check_splits

        check_splits(path, ("held_out", "val"))
    return path


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
        autocompletion=completing(("auto", "float32", "bfloat16", "float16")),
    ),
]
LedgersPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        callback=ledgers_there,
        help="Folder with held_out, val and test (each a saved ledger, an .npz with logits "
        "[N, M, K], labels [N] if known, and cumulative costs [M], or answers without logits as "
        ".npz, .jsonl or .parquet), or a single such ledger, which is split into these three at "
        "random.",
    ),
]
NetworkPath = Annotated[
    Path,
    typer.Argument(
        metavar="NETWORK", callback=there, help="Folder of a saved network, or of a run."
    ),
]
PolicyPath = Annotated[
    Path, typer.Argument(metavar="POLICY", callback=a_policy, help="Folder of its policy.")
]
Budget = Annotated[
    float | None,
    typer.Option(
        callback=share,
        help="Mean cost, as a share of the full network. Default: the policy's own.",
    ),
]
Budgets = Annotated[
    str,
    typer.Option(
        callback=shares, help="Comma-separated mean costs, as shares of the full network."
    ),
]
ProfilePath = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        callback=there,
        help="Folder that `offramp profile` wrote. Costs are then seconds on that machine, and "
        "budgets are shares of the seconds of the network without exits in the same runtime.",
    ),
]
Cut = tuple[str | None, int | None, bool | None]
"""`--shares`, `--split-seed` and `--stratify`, as they were given."""
Shares = Annotated[
    str | None,
    typer.Option(
        "--shares",
        callback=three_shares,
        help="Of a single file: shares of held_out, val and test. Default: 0.3,0.3,0.4.",
    ),
]
SplitSeed = Annotated[
    int | None, typer.Option("--split-seed", help="Of a single file: of the cut. Default: 0.")
]
Stratify = Annotated[
    bool | None,
    typer.Option("--stratify", help="Of a single file: every part gets its share of each class."),
]
BatchSize = Annotated[
    int | None, typer.Option("--batch", help="With --profile: samples per batch. Default: 1.")
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        autocompletion=complete_data,
        help="Data set to run on. Default: the run's, or noise.",
    ),
]
Domain = Annotated[
    str | None, typer.Option(help="The domain of test, for data sets with several domains.")
]
TokenizerName = Annotated[
    str | None,
    typer.Option("--tokenizer", help="For text: a folder or a hub id. Default: the network's."),
]


def in_seconds(
    ledgers: "dict[str, Ledger]", folder: Path | None, batch: int | None
) -> "dict[str, Ledger]":
    """Ledgers with the costs of a profile, if one is named."""
    from offramp.timing.profile import Profile

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


def read_ledgers(
    path: Path, cut: Cut, profile: Path | None, batch: int | None, needs_test: bool = True
) -> "dict[str, Ledger]":
    """The ledgers of a command: held_out, val and, if it is there or needed, test."""
    from offramp.ledger import files

    splits: tuple[str, ...] = ("held_out", "val", "test")
    if not needs_test and not files.has_ledger(path, "test"):
        splits = splits[:2]
    given = cut if any(each is not None for each in cut) else None
    how = None if given is None else files.Cut(*(_shares(cut[0]), cut[1] or 0, bool(cut[2])))
    ledgers = files.load_ledgers(path, splits, cut=how)
    if path.is_file() or kind_of(path) == "ledger":
        sizes = ", ".join(f"{len(ledger):,} {split}" for split, ledger in ledgers.items())
        err.print(f"note: one ledger was split at random (seed {cut[1] or 0}) into {sizes}")
    return in_seconds(ledgers, profile, batch)


class Read(Protocol):
    """Reads the ledgers of a command, as its options say."""

    def __call__(self, needs_test: bool = True) -> "dict[str, Ledger]":
        """By split: held_out, val and, if it is there or needed, test."""


_READING = {
    "profile": ProfilePath,
    "batch": BatchSize,
    "shares": Shares,
    "split_seed": SplitSeed,
    "stratify": Stratify,
}


def reading(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes `(path, read, ...)`, with the options by which ledgers are read.

    Typer knows options by a signature alone, so theirs are added to that of the command.
    """

    @wraps(command)
    def run(path: Path, **given: Any) -> None:  # noqa: ANN401 - as the options are
        profile, batch, *cut = (given.pop(name) for name in _READING)
        command(path, partial(read_ledgers, path, tuple(cut), profile, batch), **given)

    own = [each for name, each in signature(command).parameters.items() if name != "read"]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    more = [Parameter(name, kind, default=None, annotation=a) for name, a in _READING.items()]
    run.__annotations__ = {each.name: each.annotation for each in (*own, *more)}
    vars(run)["__signature__"] = Signature([*own, *more])
    return run


def _shares(text: str | None) -> tuple[float, float, float]:
    if text is None:
        return (0.3, 0.3, 0.4)
    held_out, val, test = numbers("--shares", text)
    return held_out, val, test


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
