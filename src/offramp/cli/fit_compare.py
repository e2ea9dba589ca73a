"""The commands `compare`, `fit`, `auto` and `advise`."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offramp.cli.console import err, out
from offramp.cli.options import (
    KNOWN_METHODS,
    BatchSize,
    Budgets,
    LedgersPath,
    ProfilePath,
    complete_methods,
    in_seconds,
    named_methods,
    note_partition,
    numbers,
    share,
    split_names,
)
from offramp.errors import ConfigError
from offramp.names import CANDIDATES, GROUPS
from offramp.progress import RunProgress
from offramp.storage import check_fresh, check_target

if TYPE_CHECKING:
    from offramp.evaluation import Comparison
    from offramp.ledger import Ledger

_known = f"Groups: {', '.join(GROUPS)}. {KNOWN_METHODS}"

Candidates = Annotated[
    str,
    typer.Option(
        callback=named_methods,
        autocompletion=complete_methods,
        help="Comma-separated methods to choose from; the first is the yardstick.",
    ),
]


def compare_command(
    path: LedgersPath,
    methods: Annotated[
        str,
        typer.Option(
            callback=named_methods,
            autocompletion=complete_methods,
            help="Comma-separated methods or groups. Thresholds are geometric, as in the paper, "
            "unless the name says otherwise, as in eefp:optimized. " + _known,
        ),
    ] = "standard",
    budgets: Budgets = "0.25,0.5,0.75",
    seeds: Annotated[int, typer.Option(help="Seeds for methods whose fit is random.")] = 3,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples for intervals.")] = 1000,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write. Default: NAME-comparison in this folder."),
    ] = None,
    profile: ProfilePath = None,
    batch: BatchSize = None,
) -> None:
    """Compare exit methods on saved per-exit logits, and print the table.

    Every method is fitted on held_out, gets its thresholds on val and its figures on test.
    Tables are also written as Markdown, CSV, LaTeX and JSON, with a figure as SVG and an
    interactive page, report.html.
    """
    from offramp.evaluation import compare
    from offramp.ledger.files import load_ledgers

    folder = folder or Path(f"{path.resolve().name.removesuffix('.npz')}-comparison")
    check_target(folder)
    wanted = split_names(methods)
    shares = numbers("--budgets", budgets)
    ledgers = in_seconds(load_ledgers(path), profile, batch)
    with RunProgress() as progress:
        result = compare(
            ledgers["held_out"],
            ledgers["val"],
            ledgers["test"],
            wanted,
            shares,
            seeds,
            resamples,
            progress.step,
        )
    note_partition(path, ledgers)
    _show(result, folder, {"command": shlex.join(["offramp", *sys.argv[1:]])})


def fit_command(
    path: LedgersPath,
    budget: Annotated[
        float | None,
        typer.Option(callback=share, help="Mean cost, as a share of the full network."),
    ] = None,
    max_drop: Annotated[
        float | None, typer.Option(help="Instead: accuracy that may be lost, 0.01 for a point.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            callback=named_methods,
            autocompletion=complete_methods,
            help="Its thresholds are `smooth`, unless the name says otherwise, as in "
            "eefp:geometric. " + KNOWN_METHODS,
        ),
    ] = "eefp",
    folder: Annotated[Path, typer.Option("--out", help="Where to save it.")] = Path("policy"),
    profile: ProfilePath = None,
    batch: BatchSize = None,
) -> None:
    """Fit a policy, choose its operating point for a budget, and save it.

    The answer and the scorer are fitted on held_out, the thresholds come from val. Where there is
    a test ledger with labels, the outcome on it is printed. Without labels, methods that need
    none can be fitted: break-even-no-ensemble, baseline.
    """
    if (budget is None) == (max_drop is None):
        raise ConfigError("give either --budget or --max-drop")
    if method in GROUPS:
        raise ConfigError(
            f"--method takes one method, and {method!r} is a group of them, for `offramp compare`"
        )
    check_fresh(folder, "policy")
    from offramp import report
    from offramp.evaluation import evaluate
    from offramp.ledger.files import has_ledger, load_ledgers
    from offramp.methods import find_methods, ready

    has_test = has_ledger(path, "test")
    ledgers = load_ledgers(path, ("held_out", "val", "test")[: 3 if has_test else 2])
    ledgers = in_seconds(ledgers, profile, batch)
    note_partition(path, ledgers)
    (found,) = find_methods(method, ledgers["val"].num_classes)
    chosen = ready(found)
    wanted = 1.0 if budget is None else budget
    with err.status(f"fitting {chosen.label}"):
        (plan,) = chosen.plans(ledgers["held_out"], ledgers["val"], [wanted], seeds=1)
        policy = plan[wanted].at(budget=budget, max_drop=max_drop)
        if ledgers["held_out"].has_labels:
            policy.fit_confidence(plan.view(ledgers["held_out"]))
    policy.save(folder)
    _note_labels(ledgers)
    if has_test and ledgers["test"].has_labels:
        named = chosen.describe().get("thresholds")  # `auto` chooses them itself
        how = f", with {named} thresholds" if named else ""
        out.print(
            f"on test{how}: {evaluate(policy, plan.view(ledgers['test']))}",
            markup=False,
            highlight=False,
        )
    for table in report.inspect(folder):
        out.print(table.rich())


def auto_command(
    path: LedgersPath,
    budget: Annotated[
        float, typer.Option(callback=share, help="Mean cost, as a share of the full network.")
    ] = 0.5,
    methods: Candidates = ",".join(CANDIDATES),
    folder: Annotated[Path, typer.Option("--out", help="Where to save it.")] = Path("policy"),
    profile: ProfilePath = None,
    batch: BatchSize = None,
) -> None:
    """Choose exits, answer, scorer and thresholds for a budget, and save the policy.

    The choice is made by cross-validation on held_out and val. With --profile the budget is kept
    on the clock, and if no exit is cheap enough the policy is the full network.
    Whether exits pay at all is what `offramp advise` says.
    """
    check_fresh(folder, "policy")
    from offramp.advice import auto
    from offramp.evaluation import evaluate
    from offramp.ledger.files import has_ledger, load_ledgers

    has_test = has_ledger(path, "test")
    ledgers = load_ledgers(path, ("held_out", "val", "test")[: 3 if has_test else 2])
    ledgers = in_seconds(ledgers, profile, batch)
    note_partition(path, ledgers)
    names = split_names(methods)
    with err.status("choosing exits, answer, scorer and thresholds"):
        plan = auto(ledgers["held_out"], ledgers["val"], [budget], names)
    policy = plan[budget]
    policy.save(folder)
    out.print(f"{plan.why[budget]}; exits {list(policy.exits)}", markup=False, highlight=False)
    if has_test and ledgers["test"].has_labels:
        out.print(f"on test: {evaluate(policy, ledgers['test'])}", markup=False, highlight=False)


def _note_labels(ledgers: "Mapping[str, Ledger]") -> None:
    """Note on stderr what is lost where there are no labels."""
    losses = {
        "held_out": "nothing says how far to trust the network, and answers get no confidence",
        "val": "the accuracy of the operating points is unknown, so --max-drop is refused",
        "test": "the outcome cannot be measured",
    }
    for split, ledger in ledgers.items():
        if not ledger.has_labels:
            err.print(f"note: {split} has no labels: {losses[split]}")


def advise_command(
    path: LedgersPath,
    budgets: Budgets = "0.25,0.5,0.75",
    methods: Candidates = ",".join(CANDIDATES),
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Save the policy for each budget there, as policy-BUDGET."),
    ] = None,
    profile: ProfilePath = None,
    batch: BatchSize = None,
) -> None:
    """Say whether early exits are worth it for this network: yes, a fixed exit, or neither.

    Exits, answer, scorer and thresholds are chosen by cross-validation on held_out and val. Only
    then the choice is measured on test, against the best mix of two fixed exits and the full
    network, with 95 % intervals (paired bootstrap over test samples).
    """
    wanted = numbers("--budgets", budgets)
    if folder is not None:
        check_target(folder)
    from offramp.advice import advise
    from offramp.ledger.files import load_ledgers

    ledgers = in_seconds(load_ledgers(path), profile, batch)
    note_partition(path, ledgers)
    names = split_names(methods)
    with err.status("choosing exits, answers, scorers and thresholds"):
        found = advise(ledgers["held_out"], ledgers["val"], ledgers["test"], wanted, names)
    typer.echo(str(found))
    if folder is not None:
        for budget, policy in found.plan.items():
            policy.save(folder / f"policy-{budget:g}")
        typer.echo(f"kept exits {found.plan.exits}; policies are in {folder}/")


def _show(result: "Comparison", folder: Path, provenance: Mapping[str, Any] | None = None) -> None:
    from offramp import report

    # First: printing may be cut off.
    paths, missing = report.write_comparison(result, folder, provenance)
    for table in report.comparison_tables(result):
        out.print(table.rich())
    for sentence in report.verdicts(result):
        out.print(sentence, highlight=False)
    out.print(f"written to {folder}/: {', '.join(p.name for p in paths)}", highlight=False)
    if missing is not None:
        err.print(f"note: {missing}", markup=False, highlight=False)
