"""The sub-command `theory`: parse, and a few public calls."""

from pathlib import Path
from typing import Annotated

import typer

from offramp.cli.console import err, out
from offramp.cli.options import completing
from offramp.errors import ConfigError
from offramp.hints import or_known
from offramp.names import STATEMENTS
from offramp.progress import ConsoleProgress
from offramp.storage import check_target


def theory_command(
    worlds: Annotated[int, typer.Option(help="Random worlds per row; the docs use 10000.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the worlds, or of the trained network.")] = 0,
    statement: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=completing(STATEMENTS),
            help=f"Check only this one; repeatable: {', '.join(STATEMENTS)}.",
        ),
    ] = None,
    with_examples: Annotated[
        bool, typer.Option("--examples/--no-examples", help="Print the smallest worlds.")
    ] = True,
    trained_network: Annotated[
        bool,
        typer.Option(
            "--trained-network",
            help="Instead, train a small network on data with a known P(y|x), and compare its "
            "risk and its corrector with the truth.",
        ),
    ] = False,
    figures: Annotated[
        Path | None,
        typer.Option(help="Folder for the figures of docs/theory.md."),
    ] = None,
) -> None:
    """Check the paper's statements on finite worlds, where every expectation is a sum.

    Each statement is tried under three definitions of calibration and three readings of the
    stopping probability, on random worlds and on many small ones. Every failure is shown with the
    smallest world found.
    """
    if worlds < 1:
        raise ConfigError(f"--worlds must be at least 1, got {worlds}")
    if figures is not None:
        check_target(figures)
    if trained_network and statement:
        raise ConfigError("--trained-network checks no statements: leave out --statement")
    if trained_network:
        _show_trained_network(seed, figures)
        return
    for name in statement or ():
        if name not in STATEMENTS:
            raise ConfigError(f"there is no statement {name!r}{or_known(name, STATEMENTS)}")
    from offramp import theory
    from offramp.theory.check import summary
    from offramp.theory.counterexamples import counterexample_texts
    from offramp.theory.plots import draw_figures

    with ConsoleProgress() as progress:
        results = theory.check_all(statement or (), worlds, seed, progress.step)
    out.show(theory.claims_table(results))
    if with_examples:
        examples = [f"\n{result}" for result in results if result.example is not None]
        for text in [*examples, *([] if statement else counterexample_texts())]:
            out.print(text, markup=False, highlight=False, soft_wrap=True)
    out.print(f"\n{summary(results)}", soft_wrap=True)
    if figures is not None:
        _print_written(draw_figures(figures))


def _show_trained_network(seed: int, folder: Path | None) -> None:
    from offramp import theory
    from offramp.theory.plots import truth_figure
    from offramp.theory.trained_network import truth_table

    with ConsoleProgress() as progress:
        exits = theory.compare_with_truth(seed, progress=progress.step)
    out.show(truth_table(exits))
    if folder is not None:
        _print_written([truth_figure(exits, folder / "theory-trained-network.svg")])


def _print_written(paths: list[Path]) -> None:
    err.print(f"written: {', '.join(map(str, paths))}", highlight=False, markup=False)
