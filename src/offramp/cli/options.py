"""Options that several commands share, and how they are read.

Nothing here imports torch: help, completion and mistakes are answered without it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offramp.cli.console import err
from offramp.cli.settings import completing, numbers, split_names
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
    from offramp.data.source import Source
    from offramp.ledger import Ledger


def complete_methods(incomplete: str) -> list[str]:
    """Methods for the Tab key, with the methods of installed packages."""
    return completing([*GROUPS, *METHODS.listed()])(incomplete)


complete_data = completing(DATA_SETS)
complete_studies = completing(STUDIES)


def named_methods(text: str) -> str:
    """Comma-separated methods, refused at once if one is unknown."""
    check_methods(split_names(text))
    return text


def share(budget: float | None) -> float | None:
    """A budget, refused at once if it cannot be one."""
    if budget is not None and not 0 < budget <= 1:
        percent = f"; for {budget:g} % say {budget / 100:g}" if 1 < budget <= 100 else ""
        raise ConfigError(
            f"--budget is a share of the network without exits in (0, 1], got {budget:g}{percent}"
        )
    return budget


def shares(text: str) -> str:
    """Comma-separated budgets, refused at once if one cannot be."""
    for budget in numbers("--budgets", text):
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
        help="Device to run on: cpu, cuda, cuda:1, mps, ...; auto: a GPU if there is one, else "
        "the CPU."
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        help="Precision to run in: float32, bfloat16, float16, or auto, the fastest of the "
        "device.",
        autocompletion=completing(("auto", "float32", "bfloat16", "float16")),
    ),
]
Workers = Annotated[
    int,
    typer.Option(min=0, help="Processes that read the data ahead; 0: the process that computes."),
]
NetworkPath = Annotated[
    Path,
    typer.Argument(
        metavar="NETWORK", callback=there, help="Folder of a run, or of a saved network."
    ),
]
PolicyPath = Annotated[
    Path, typer.Argument(metavar="POLICY", callback=a_policy, help="Folder of a policy.")
]
PolicyFolder = Annotated[Path, typer.Option("--out", help="Folder in which the policy is saved.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a policy that is there.")]
Budget = Annotated[
    float | None,
    typer.Option(
        callback=share,
        help="Mean cost, as a share of the full network. Default: the budget of the policy.",
    ),
]
Budgets = Annotated[
    str,
    typer.Option(
        callback=shares, help="Comma-separated mean costs, as shares of the full network."
    ),
]


@dataclass(frozen=True)
class DataOptions:
    """Which data a network runs on, or was trained on."""

    data: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_data,
            help="Data set, whose normalisation and class names are used, too. Default: the data "
            "set of the run.",
        ),
    ] = None
    domain: Annotated[
        str | None, typer.Option(help="Domain of test, for data sets with several domains.")
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Folder or hub id of a tokenizer. Default: the tokenizer of the run."),
    ] = None

    def source(self, run: Path) -> "Source | None":
        """The data of a run, as far as other ones are not asked for; None if they are unknown."""
        from offramp.data.source import Source

        return Source.find(run, self.data, self.domain, self.tokenizer)


@dataclass(frozen=True)
class LedgerOptions:
    """Where ledgers are, and how they are read."""

    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            callback=ledgers_there,
            help="Folder with held_out, val and test (each a saved ledger, an .npz with logits "
            "[N, M, K], labels [N] if known, and cumulative costs [M], or answers without logits "
            "as .npz, .jsonl or .parquet), or a single such ledger, which is split into these "
            "three at random.",
        ),
    ]
    profile: Annotated[
        Path | None,
        typer.Option(
            callback=there,
            help="Folder that `offramp profile` wrote. Costs are then seconds on that machine, "
            "and budgets are shares of the seconds of the network without exits in the same "
            "runtime.",
        ),
    ] = None
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per batch, with --profile. Default: 1.")
    ] = None
    shares: Annotated[
        str | None,
        typer.Option(
            callback=three_shares,
            help="Shares of held_out, val and test, for splitting a single ledger. Default: "
            "0.3,0.3,0.4.",
        ),
    ] = None
    split_seed: Annotated[
        int | None,
        typer.Option(help="Random seed for splitting a single ledger. Default: 0."),
    ] = None
    stratify: Annotated[
        bool | None,
        typer.Option(
            "--stratify", help="Give each split of a single ledger its share of each class."
        ),
    ] = None

    def read(self, needs_test: bool = True) -> "dict[str, Ledger]":
        """The ledgers by split: held_out, val and, if it is there or needed, test."""
        from offramp.ledger import files

        splits: tuple[str, ...] = ("held_out", "val", "test")
        if not needs_test and not files.has_ledger(self.path, "test"):
            splits = splits[:2]
        cut, given = files.Cut(), (self.shares, self.split_seed, self.stratify)
        if self.shares is not None:
            held_out, val, test = numbers("--shares", self.shares)
            cut = cut._replace(shares=(held_out, val, test))
        cut = cut._replace(seed=self.split_seed or 0, stratify=bool(self.stratify))
        is_given = any(each is not None for each in given)
        ledgers = files.load_ledgers(self.path, splits, cut=cut if is_given else None)
        if self.path.is_file() or kind_of(self.path) == "ledger":
            sizes = ", ".join(f"{len(ledger):,} {split}" for split, ledger in ledgers.items())
            err.print(f"note: one ledger was split at random (seed {cut.seed}) into {sizes}")
        return self._in_seconds(ledgers)

    def _in_seconds(self, ledgers: "dict[str, Ledger]") -> "dict[str, Ledger]":
        """Ledgers with the costs of a profile, if one is named."""
        if self.profile is None:
            if self.batch_size is not None:
                raise ConfigError("--batch-size is for costs in seconds: give --profile as well")
            return ledgers
        from offramp.timing.profile import Profile

        places = [self.profile / runtime for runtime in RUNTIMES]
        found = [place for place in places if kind_of(place) == "profile"]
        if kind_of(self.profile) != "profile" and len(found) > 1:
            shown = " or ".join(map(str, found))
            raise ConfigError(
                f"{self.profile} has profiles of two runtimes: give --profile {shown}"
            )
        profile = Profile.load(found[0] if len(found) == 1 else self.profile)
        return {name: profile.timed(each, self.batch_size or 1) for name, each in ledgers.items()}
