"""`offramp theory`: the statements on finite worlds, or a trained network beside the truth."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from offramp.cli.console import err, out
from offramp.errors import ConfigError
from offramp.files import check_target
from offramp.registry import or_known
from offramp_paper.theory.check import check_all, claims_table, summary
from offramp_paper.theory.claims import STATEMENTS
from offramp_paper.theory.counterexamples import counterexample_texts
from offramp_paper.theory.plots import draw_figures, truth_figure
from offramp_paper.theory.trained_network import compare_with_truth, truth_table


def main(arguments: Sequence[str] | None = None) -> None:
    """Check the paper's statements on finite worlds, where every expectation is a sum.

    Each statement is tried under three definitions of calibration and three readings of the
    stopping probability, on random worlds and on many small ones. Every failure is shown with the
    smallest world found.
    """
    options = _options(arguments)
    if options.worlds < 1:
        raise ConfigError(f"--worlds must be at least 1, got {options.worlds}")
    if options.figures is not None:
        check_target(options.figures)
    if options.trained_network and options.statement:
        raise ConfigError("--trained-network checks no statements: leave out --statement")
    if options.trained_network:
        _show_trained_network(options.seed, options.figures)
        return
    _check(options.worlds, options.seed, options.statement, options.examples, options.figures)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    about, _, more = (main.__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser("offramp theory", description=about, epilog=more)
    add = parser.add_argument
    add("--worlds", type=int, default=1000, help="random worlds per row; the docs use 10000")
    add("--seed", type=int, default=0, help="of the worlds, or of the trained network")
    known = ", ".join(STATEMENTS)
    add("--statement", action="append", default=[], help=f"check only this one of {known}")
    add(
        "--examples",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="print the smallest worlds",
    )
    add(
        "--trained-network",
        action="store_true",
        help="instead, train a small network on data with a known P(y|x), and compare its risk "
        "and its corrector with the truth",
    )
    add("--figures", type=Path, help="folder for the figures of the page about the theory")
    return parser.parse_args(arguments)


def _check(
    worlds: int, seed: int, statements: list[str], with_examples: bool, figures: Path | None
) -> None:
    for name in statements:
        if name not in STATEMENTS:
            raise ConfigError(f"there is no statement {name!r}{or_known(name, STATEMENTS)}")

    results = check_all(statements, worlds, seed, progress=True)
    out.show(claims_table(results))
    if with_examples:
        examples = [f"\n{result}" for result in results if result.example is not None]
        for text in [*examples, *([] if statements else counterexample_texts())]:
            out.print(text, markup=False, highlight=False, soft_wrap=True)
    out.print(f"\n{summary(results)}", soft_wrap=True)
    if figures is not None:
        _print_written(draw_figures(figures))


def _show_trained_network(seed: int, folder: Path | None) -> None:

    exits = compare_with_truth(seed, progress=True)
    out.show(truth_table(exits))
    if folder is not None:
        _print_written([truth_figure(exits, folder / "theory-trained-network.svg")])


def _print_written(paths: list[Path]) -> None:
    err.print(f"written: {', '.join(map(str, paths))}", highlight=False, markup=False)
