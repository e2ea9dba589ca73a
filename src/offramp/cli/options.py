"""Options that several commands share, and how they are read.

Nothing here imports torch: help, completion and mistakes are answered without it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offramp.cli.console import note
from offramp.cli.settings import completing, numbers, split_names
from offramp.errors import ConfigError, FileFormatError
from offramp.files import check_alone, kind_of, near_path, with_article
from offramp.machine import AutoPrecision
from offramp.registry import (
    DATA_SETS,
    GROUPS,
    METHODS,
    RUNTIMES,
    Names,
    check_methods,
    or_known,
)
from offramp.run_folder import RunFolder

if TYPE_CHECKING:
    from offramp.data.source import Source
    from offramp.ledger import Ledger
    from offramp.networks import EarlyExitNetwork
    from offramp.policy import Policy


def complete_methods(incomplete: str) -> list[str]:
    """Methods for the Tab key, with the methods of installed packages."""
    return completing([*GROUPS, *METHODS.listed()])(incomplete)


def named_methods(text: str) -> str:
    """Comma-separated methods, refused at once if one is unknown."""
    check_methods(split_names(text))
    return text


def option_of(names: Names, text: str = "") -> Any:  # noqa: ANN401 - what typer makes of an option
    """An option that takes one of these names: listed in the help, completed, and checked."""

    def known(name: str | None) -> str | None:
        if name is not None:
            names.check(name)
        return name

    listed = f"One of {', '.join(names)}."
    return typer.Option(
        callback=known, autocompletion=completing(list(names)), help=f"{listed} {text}".strip()
    )


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


def check_fresh(folder: Path, kind: str, force: bool = True) -> None:
    """As `check_alone`; without `force`, an older one is not to be replaced either."""
    check_alone(folder, kind)
    if kind_of(folder) == kind and not force:
        raise FileFormatError(
            f"there is {with_article(kind)} in {folder} already: give --force to replace it, or "
            "another --out"
        )


def there(path: Path | None) -> Path | None:
    """A path that must exist; else the error says what has a similar name."""
    if path is not None and not path.exists():
        raise FileFormatError(f"there is nothing at {path}{near_path(path)}")
    return path


def data_there(name: str | None) -> str | None:
    """A data set that is known, or a folder, which may be in that of all data sets."""
    root = os.environ.get("OFFRAMP_DATA")
    places = [Path(name or ""), *([Path(root) / (name or "")] if root else [])]
    if name is not None and name not in DATA_SETS and not any(map(Path.is_dir, places)):
        raise ConfigError(
            f"--data: there is no data set {name!r}{or_known(name, DATA_SETS)}; it is no folder "
            f"either (searched: {' and '.join(map(str, places))})"
        )
    return name


Device = Annotated[
    str,
    typer.Option(
        help="Device to run on: cpu, cuda, cuda:1, mps, ...; auto: a GPU if there is one, else "
        "the CPU."
    ),
]
Precision = Annotated[
    AutoPrecision,
    typer.Option(help="Precision to run in; auto: the fastest of the device."),
]
Split = Annotated[str, typer.Option(help="Split of the data set.")]
NetworkPath = Annotated[
    Path,
    typer.Argument(
        metavar="NETWORK", callback=there, help="Folder of a run, or of a saved network."
    ),
]
PolicyPath = Annotated[
    Path, typer.Argument(metavar="POLICY", callback=there, help="Folder of a policy.")
]
PolicyFolder = Annotated[Path, typer.Option("--out", help="Folder in which the policy is saved.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing policy.")]
Budget = Annotated[
    float | None,
    typer.Option(
        callback=share,
        help="Mean cost, as a share of the full network. Default: the budget of the policy.",
    ),
]
Budgets = Annotated[
    Sequence[float],
    typer.Option(
        callback=shares, help="Comma-separated mean costs, as shares of the full network."
    ),
]
Method = Annotated[
    str,
    typer.Option(
        callback=named_methods,
        autocompletion=complete_methods,
        help="Name of a method, such as baseline, temperature, eefp or break-even; `offramp "
        "methods` lists all.",
    ),
]
Candidates = Annotated[
    Sequence[str],
    typer.Option(
        callback=named_methods,
        autocompletion=complete_methods,
        help="Comma-separated methods to choose from; the others have to beat the first.",
    ),
]


@dataclass(frozen=True)
class DataOptions:
    """Which data a network runs on, or was trained on.

    Args:
        domain: Domain of test, for data sets with several domains.
        tokenizer: Folder or hub id of a tokenizer. Default: the tokenizer of the run.
    """

    data: Annotated[
        str | None,
        typer.Option(
            callback=data_there,
            autocompletion=completing(DATA_SETS),
            help=f"Data set: {', '.join(DATA_SETS)}; or a folder, see docs/reference/data.md. "
            "Default: the data set of the run.",
        ),
    ] = None
    domain: str | None = None
    tokenizer: str | None = None

    def source(self, run: Path) -> "Source | None":
        """The data of a run, as far as other ones are not asked for; None if they are unknown."""
        from offramp.data.source import Source

        return Source.find(run, self.data, self.domain, self.tokenizer)


@dataclass(frozen=True)
class LedgerOptions:
    """Where ledgers are, and how they are read.

    Args:
        path: Folder with held_out, val and test (each a saved ledger, an .npz with logits
            [N, M, K], labels [N] if known, and cumulative costs [M], or answers without logits as
            .npz, .jsonl or .parquet), or a single such ledger, which is split into these three at
            random.
        profile: Folder that `offramp profile` wrote. Costs are then seconds on that machine, and
            budgets are shares of the seconds of the network without exits in the same runtime.
        batch_size: Samples per batch, with --profile. Default: 1.
        shares: Shares of held_out, val and test, for splitting a single ledger. Default:
            0.3,0.3,0.4.
        split_seed: Random seed for splitting a single ledger. Default: 0.
        stratify: Give each split of a single ledger its share of each class.
    """

    path: Annotated[Path, typer.Argument(metavar="PATH", callback=there)]
    profile: Annotated[Path | None, typer.Option(callback=there)] = None
    batch_size: int | None = None
    shares: Sequence[float] | None = None
    split_seed: int | None = None
    stratify: Annotated[bool | None, typer.Option("--stratify")] = None

    def read(self, needs_test: bool = True) -> "dict[str, Ledger]":
        """The ledgers by split: held_out, val and, if it is there or needed, test."""
        from offramp.ledger import reading

        splits: tuple[str, ...] = ("held_out", "val", "test")
        if not needs_test and not reading.has_ledger(self.path, "test"):
            splits = splits[:2]
        if self.shares is not None and len(self.shares) != 3:
            raise ConfigError(f"--shares must be three numbers, got {len(self.shares)}")
        wanted = {"shares": self.shares, "seed": self.split_seed, "stratify": self.stratify}
        given: dict[str, Any] = {name: each for name, each in wanted.items() if each is not None}
        cut = reading.Cut(**given) if given else None
        ledgers = reading.load_ledgers(self.path, splits, cut=cut)
        if self.path.is_file() or kind_of(self.path) == "ledger":
            sizes = ", ".join(f"{len(ledger):,} {split}" for split, ledger in ledgers.items())
            seed = (cut or reading.Cut()).seed
            note(f"note: one ledger was split at random (seed {seed}) into {sizes}")
        return self._in_seconds(ledgers)

    def _in_seconds(self, ledgers: "dict[str, Ledger]") -> "dict[str, Ledger]":
        """Ledgers with the costs of a profile, if one is named."""
        if self.profile is None:
            if self.batch_size is not None:
                raise ConfigError("--batch-size is for costs in seconds: give --profile as well")
            return ledgers
        from offramp.timing.results import Profile

        places = [self.profile / runtime for runtime in RUNTIMES]
        found = [place for place in places if kind_of(place) == "profile"]
        if len(found) > 1:
            shown = " or ".join(map(str, found))
            raise ConfigError(
                f"{self.profile} has profiles of two runtimes: give --profile {shown}"
            )
        profile = Profile.load(found[0] if found else self.profile)
        return {name: profile.timed(each, self.batch_size or 1) for name, each in ledgers.items()}


def network_in(run: Path) -> "EarlyExitNetwork":
    """The network in its own folder, or in that of a run."""
    from offramp.networks import EarlyExitNetwork

    return EarlyExitNetwork.load(RunFolder(run).network)


def load_policy(folder: Path, budget: float | None, option: str = "--budget") -> "Policy":
    """A saved policy at the operating point for a budget, or at its own."""
    from offramp.policy import Policy

    policy = Policy.load(folder)
    if budget is not None:
        return policy.at(budget=budget)
    if policy.is_tuned and policy.selected is None:
        raise ConfigError(f"the policy in {folder} has no operating point yet: give {option}")
    return policy
