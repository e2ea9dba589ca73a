"""The sub-command `theory`: parse, and a few public calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from offramp import theory
from offramp.cli.console import err, out
from offramp.errors import ConfigError
from offramp.storage import check_target
from offramp.theory.bridge import bridge
from offramp.theory.show import (
    bridge_figure,
    bridge_table,
    draw_figures,
    examples,
    named_examples,
    table,
)


def theory_command(
    worlds: Annotated[int, typer.Option(help="Random worlds per row; 10000 for the docs.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the worlds, and of the bridge.")] = 0,
    statement: Annotated[
        list[str] | None,
        typer.Option(help=f"Only these, repeatable: {', '.join(theory.STATEMENTS)}."),
    ] = None,
    with_examples: Annotated[
        bool, typer.Option("--examples/--no-examples", help="Print the smallest worlds.")
    ] = True,
    with_bridge: Annotated[
        bool,
        typer.Option(
            "--bridge",
            help="Instead: train a small network on data with a known P(y|x), and compare its "
            "risk and its corrector with the truth.",
        ),
    ] = False,
    figures: Annotated[
        Path | None,
        typer.Option(help="Folder for the figures of docs/theory.md; with --bridge, for its own."),
    ] = None,
) -> None:
    """Check the paper's statements on finite worlds, where every expectation is a sum.

    Each statement is tried under three definitions of calibration and three readings of the
    stopping probability. What holds is tried on random worlds and on many small ones; what fails
    is shown with the smallest world that was found.
    """
    if worlds < 1:
        raise ConfigError(f"--worlds must be at least 1, got {worlds}")
    if figures is not None:
        check_target(figures)
    if with_bridge and statement:
        raise ConfigError("--bridge checks no statements: leave out --statement, or --bridge")
    if with_bridge:
        _show_bridge(seed, figures)
        return
    with _progress() as progress:
        verdicts = theory.check_all(statement or (), worlds, seed, progress)
    out.print(table(verdicts).rich())
    if with_examples:
        for text in [*examples(verdicts), *([] if statement else named_examples())]:
            out.print(text, markup=False, highlight=False, soft_wrap=True)
    if figures is not None:
        _say_written(draw_figures(figures))


def _show_bridge(seed: int, folder: Path | None) -> None:
    with _progress() as progress:
        result = bridge(seed, progress=progress)
    out.print(bridge_table(result).rich())
    if folder is not None:
        _say_written([bridge_figure(result, folder / "theory-bridge.svg")])


def _say_written(paths: list[Path]) -> None:
    err.print(f"written: {', '.join(map(str, paths))}", highlight=False, markup=False)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    with err.status("starting") as status:

        def update(done: int, total: int, text: str) -> None:
            status.update(f"{done} of {total} done: {text}")

        yield update
