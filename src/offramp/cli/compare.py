"""The commands `compare`, `advise` and `demo`."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from offramp.cli.console import err, note, out
from offramp.cli.options import (
    Budgets,
    Candidates,
    Device,
    LedgerOptions,
    complete_methods,
    named_methods,
)
from offramp.files import check_target
from offramp.registry import CANDIDATES, GROUPS, METHODS

MANY = 1000  # classes: with these, no method is left out


def compare_command(
    ledgers: LedgerOptions,
    methods: Annotated[
        Sequence[str],
        typer.Option(
            callback=named_methods,
            autocompletion=complete_methods,
            help=f"Comma-separated groups ({', '.join(GROUPS)}) or methods, which `offramp "
            "methods` lists. Thresholds are geometric, as in the paper, unless the method brings "
            "its own, as auto does, or the name says otherwise, as in eefp:smooth.",
        ),
    ] = ("standard",),
    budgets: Budgets = (0.25, 0.5, 0.75),
    seeds: int = 3,
    resamples: int = 1000,
    folder: Annotated[Path | None, typer.Option("--out")] = None,
) -> None:
    """Compare exit methods on saved per-exit logits, and print a verdict and tables.

    Every method is fitted on held_out, gets its thresholds on val and its figures on test.
    Tables are also written as Markdown, CSV and JSON, with figures as SVG and PDF and an
    interactive page, report.html.

    Args:
        seeds: Seeds for methods whose fit is random.
        resamples: Bootstrap resamples for intervals.
        folder: Folder of the comparison. Default: NAME-comparison.
    """
    from offramp import report
    from offramp.evaluation import compare
    from offramp.evaluation.verdict import verdict

    folder = folder or Path(f"{ledgers.path.resolve().name.removesuffix('.npz')}-comparison")
    check_target(folder)
    splits = ledgers.read()
    found = compare(
        splits["held_out"],
        splits["val"],
        splits["test"],
        methods=methods,
        budgets=budgets,
        seeds=seeds,
        resamples=resamples,
    )
    figures = {
        method.name: {name: figure.value for name, figure in method.figures.items()}
        for method in found.methods
    }
    out.give(figures=figures, folder=folder)
    command = shlex.join(["offramp", *sys.argv[1:]])
    # First: printing may be cut off.
    paths, missing = report.write_comparison(found, folder, {"command": command})
    for sentence in (verdict(found), *found.notes):
        out.print(sentence)
    for table in report.comparison_tables(found):
        out.show(table)
    for sentence in report.verdicts(found):
        out.print(sentence)
    out.print(f"written to {folder}/: {', '.join(path.name for path in paths)}")
    if missing is not None:
        note(f"note: {missing}")


def methods_command() -> None:
    """List the methods by name, and the groups that name several at once.

    EEFP is early-exit failure prediction: a small network per exit scores whether stopping there
    is right. CCCT is the confidence corrector with confidence target: the same network for plain
    correctness. PCEE is performance control early exiting, which comes with offramp-paper.
    eefp-top-K and ccct-top-K read the logits of the K likeliest classes, and NAME:smooth,
    NAME:geometric and NAME:shared are a method with these thresholds.
    """
    from offramp.methods import find_methods
    from offramp.report import ResultTable, cells

    found = find_methods(METHODS.listed(), num_classes=MANY)
    rows = [cells(each.name, each.label, each.thresholds) for each in found]
    out.show(ResultTable("methods", "Methods", ["name", "in tables", "thresholds"], rows))
    for name, members in GROUPS.items():
        out.print(f"{name}: {', '.join(members)}")


def advise_command(
    ledgers: LedgerOptions,
    budgets: Budgets = (0.25, 0.5, 0.75),
    methods: Candidates = CANDIDATES,
    folder: Annotated[Path | None, typer.Option("--out")] = None,
) -> None:
    """Measure whether early exits help this network, whether a fixed exit suffices, or neither.

    Exits, answer, scorer and thresholds are chosen by cross-validation on held_out and val. Only
    then the choice is measured on test, against the best mix of two fixed exits and the full
    network, with 95 % intervals (paired bootstrap over test samples). `--json` has every figure
    as a number.

    Args:
        folder: Folder for the policies, one per budget: policy-BUDGET.
    """
    if folder is not None:
        check_target(folder)
    from offramp.advice import advise
    from offramp.report import advice_table

    splits = ledgers.read()
    with err.status("choosing exits, answers, scorers and thresholds"):
        found = advise(splits["held_out"], splits["val"], splits["test"], budgets, methods)
    for sentence in (found.text, *found.notes):
        out.print(sentence)
    out.show(advice_table(found))
    out.give(**found.to_json())
    if folder is not None:
        for budget, policy in found.plan.items():
            policy.save(folder / f"policy-{budget:g}")
        out.print(f"kept exits {found.plan.exits}; policies are in {folder}/")


def demo_command(
    folder: Annotated[Path, typer.Option("--out")] = Path("runs/demo"),
    device: Device = "auto",
    quick: Annotated[bool, typer.Option("--quick")] = False,
) -> None:
    """Train a small network with exits, and compare exit methods on it and on a real network.

    The small network has four exits and is trained on generated images; the logits of the real
    one, an EfficientNet-Lite0 with seven exits for CIFAR-100, come with the package. A second run
    does nothing, and a run that was killed is resumed by the same command. The demo is a script to
    copy from: offramp/demo.py.

    Args:
        folder: Folder for the results.
        quick: Few images and one epoch: all steps in seconds.
    """
    from offramp.demo import demo
    from offramp.evaluation.verdict import verdict
    from offramp.report import comparison_tables, verdicts

    for name, comparison in demo(folder, device, quick).items():
        out.rule(name)
        out.print(verdict(comparison))
        for table in comparison_tables(comparison)[:2]:  # all the others are in the report
            out.show(table)
        for sentence in verdicts(comparison):
            out.print(sentence)
    out.print(f"report: {folder / 'report.html'}")
