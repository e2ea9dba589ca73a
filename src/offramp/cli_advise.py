"""The sub-command `advise`: parse, and one public call."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from offramp.advice import CANDIDATES, advise
from offramp.cli_options import LedgersPath, note_partition, numbers
from offramp.ledger_files import load_ledgers
from offramp.storage import check_target

__all__ = ["advise_command"]

err = Console(stderr=True, width=None if sys.stderr.isatty() else 140)


def advise_command(
    path: LedgersPath,
    budgets: Annotated[
        str, typer.Option(help="Comma-separated mean costs, as shares of the full network.")
    ] = "0.25,0.5,0.75",
    methods: Annotated[
        str,
        typer.Option(help="Comma-separated methods to choose from; the first is the yardstick."),
    ] = ",".join(CANDIDATES),
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Save the policy for each budget there, as policy-BUDGET."),
    ] = None,
) -> None:
    """Say whether early exits are worth it for this network: yes, a fixed exit, or neither.

    Exits, answer, scorer and thresholds are chosen by cross-validation on held_out and val. Only
    then the choice is measured on test, against the best fixed exit and the full
    network, with 95 % intervals (paired bootstrap over test samples).
    """
    wanted = numbers("--budgets", budgets)
    if folder is not None:
        check_target(folder)
    ledgers = load_ledgers(path)
    note_partition(path, ledgers)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    with err.status("choosing exits, answers, scorers and thresholds"):
        found = advise(ledgers["held_out"], ledgers["val"], ledgers["test"], wanted, names)
    typer.echo(str(found))
    if folder is not None:
        for budget, policy in found.plan.items():
            policy.save(folder / f"policy-{budget:g}")
        typer.echo(f"kept exits {found.plan.exits}; policies are in {folder}/")
