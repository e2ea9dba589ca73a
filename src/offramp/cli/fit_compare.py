"""The commands `compare`, `fit`, `auto`, `certify` and `advise`."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offramp.cli.console import err, out
from offramp.cli.options import (
    Budgets,
    Force,
    LedgerOptions,
    PolicyFolder,
    complete_methods,
    named_methods,
    share,
)
from offramp.cli.settings import completing, numbers, split_names
from offramp.errors import ConfigError
from offramp.files import check_fresh, check_target
from offramp.registry import CANDIDATES, GROUPS, LOSSES

if TYPE_CHECKING:
    from offramp.evaluation import Comparison, Outcome
    from offramp.ledger import Ledger

Method = Annotated[
    str,
    typer.Option(
        callback=named_methods,
        autocompletion=complete_methods,
        help="One method of `offramp methods`.",
    ),
]
Candidates = Annotated[
    str,
    typer.Option(
        callback=named_methods,
        autocompletion=complete_methods,
        help="Comma-separated methods to choose from; the others have to beat the first.",
    ),
]


def compare_command(
    ledgers: LedgerOptions,
    methods: Annotated[
        str,
        typer.Option(
            callback=named_methods,
            autocompletion=complete_methods,
            help="Comma-separated methods or groups of `offramp methods`. Thresholds are "
            "geometric, as in the paper, unless the name says otherwise, as in eefp:smooth.",
        ),
    ] = "standard",
    budgets: Budgets = "0.25,0.5,0.75",
    seeds: Annotated[int, typer.Option(help="Seeds for methods whose fit is random.")] = 3,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples for intervals.")] = 1000,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the comparison. Default: NAME-comparison."),
    ] = None,
) -> None:
    """Compare exit methods on saved per-exit logits, and print the table.

    Every method is fitted on held_out, gets its thresholds on val and its figures on test.
    Tables are also written as Markdown, CSV and JSON, with figures as SVG and PDF and an
    interactive page, report.html.
    """
    from offramp.evaluation import compare

    folder = folder or Path(f"{ledgers.path.resolve().name.removesuffix('.npz')}-comparison")
    check_target(folder)
    wanted = split_names(methods)
    splits = ledgers.read()
    result = compare(
        splits["held_out"],
        splits["val"],
        splits["test"],
        methods=wanted,
        budgets=numbers("--budgets", budgets),
        seeds=seeds,
        resamples=resamples,
    )
    _show(result, folder, {"command": shlex.join(["offramp", *sys.argv[1:]])})


def fit_command(
    ledgers: LedgerOptions,
    budget: Annotated[
        float | None,
        typer.Option(callback=share, help="Mean cost, as a share of the full network."),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(help="Accuracy that may be lost, 0.01 for a point; in place of --budget."),
    ] = None,
    method: Method = "eefp",
    folder: PolicyFolder = Path("policy"),
    force: Force = False,
) -> None:
    """Fit a policy, choose its operating point for a budget, and save it.

    The answer and the scorer are fitted on held_out. Thresholds come from val; they are smooth,
    unless the method says otherwise, as in eefp:geometric. Where there is a test ledger with
    labels, the outcome on it is printed. Without labels, methods that need none can be fitted:
    break-even-no-ensemble, baseline.
    """
    if (budget is None) == (max_drop is None):
        raise ConfigError("give either --budget or --max-drop")
    if method in GROUPS:
        raise ConfigError(
            f"--method takes one method, and {method!r} is a group of them, for `offramp compare`"
        )
    check_fresh(folder, "policy", force)
    from offramp import report
    from offramp.evaluation import evaluate
    from offramp.methods import find_methods, ready

    splits = ledgers.read(needs_test=False)
    has_test = "test" in splits
    (found,) = find_methods(method, splits["val"].num_classes)
    chosen = ready(found)
    wanted = 1.0 if budget is None else budget
    with err.status(f"fitting {chosen.label}"):
        (plan,) = chosen.plans(splits["held_out"], splits["val"], [wanted], seeds=1)
        if max_drop is None:
            plan.check_budgets()
        policy = plan[wanted] if max_drop is None else plan[wanted].at(max_drop=max_drop)
        if splits["held_out"].has_labels and policy.confidence is None:
            policy.fit_confidence(policy.view(splits["held_out"]))
    thresholds = chosen.describe().get("thresholds")  # none: `auto` chooses them itself
    whole = f"{chosen.name}:{thresholds}" if thresholds and ":" not in method else chosen.name
    policy.save(folder, whole, str(ledgers.path))
    _note_labels(splits)
    if has_test and splits["test"].has_labels:
        _show_outcome(evaluate(policy, plan.view(splits["test"])), thresholds)
        if thresholds != found.thresholds:
            err.print(
                f"`offramp compare` calls this policy {whole}; it takes the paper's "
                f"{found.thresholds} thresholds for plain {method}",
                highlight=False,
                soft_wrap=True,
            )
    out.give(policy=folder)
    for table in report.inspect(folder):
        out.show(table)


def auto_command(
    ledgers: LedgerOptions,
    budget: Annotated[
        float, typer.Option(callback=share, help="Mean cost, as a share of the full network.")
    ] = 0.5,
    methods: Candidates = ",".join(CANDIDATES),
    folder: PolicyFolder = Path("policy"),
    force: Force = False,
) -> None:
    """Choose exits, answer, scorer and thresholds for a budget, and save the policy.

    The choice is made by cross-validation on held_out and val. With --profile the budget is kept
    on the clock, and if no exit is cheap enough the policy is the full network.
    Whether exits pay at all is what `offramp advise` says.
    """
    check_fresh(folder, "policy", force)
    from offramp.advice import auto
    from offramp.evaluation import evaluate

    splits = ledgers.read(needs_test=False)
    has_test = "test" in splits
    names = split_names(methods)
    with err.status("choosing exits, answer, scorer and thresholds"):
        plan = auto(splits["held_out"], splits["val"], [budget], names)
    policy = plan[budget]
    policy.save(folder, "auto", str(ledgers.path))
    out.print(f"{plan.why[budget]}; exits {list(policy.exits)}", markup=False, highlight=False)
    if has_test and splits["test"].has_labels:
        _show_outcome(evaluate(policy, splits["test"]))
    out.give(policy=folder, exits=policy.exits)


def _show_outcome(outcome: "Outcome", thresholds: str | None = None) -> None:
    how = f", with {thresholds} thresholds" if thresholds else ""
    out.print(f"on test{how}: {outcome}", soft_wrap=True)
    names = ("accuracy", "full_accuracy", "mean_cost", "exit_shares", "hopeless_share")
    out.give(test={name: getattr(outcome, name) for name in names})


def certify_command(
    ledgers: LedgerOptions,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Largest mean loss against the full network, 0.01 for a point."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(callback=share, help="Largest mean cost, as a share of the full network."),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Probability with which the guarantee may fail.")
    ] = 0.1,
    loss: Annotated[
        str,
        typer.Option(
            autocompletion=completing(LOSSES),
            help=f"One of {', '.join(LOSSES)}. regret: the full network is right, and the early "
            "answer wrong; -sure and -hopeless: only where the policy stopped with a confidence "
            "of at least one half, or gave up with less. disagreement: the two differ.",
        ),
    ] = "regret",
    largest_cost: Annotated[
        float | None,
        typer.Option(
            help="The most that a single sample can cost, such as a limit on tokens: for --budget "
            "where costs differ from sample to sample.",
        ),
    ] = None,
    method: Method = "eefp",
    folder: PolicyFolder = Path("policy"),
    force: Force = False,
) -> None:
    """Fit a policy and give it an operating point with a guarantee, and save it.

    With probability 1 - delta over the draw of val, the mean loss on new samples is at most
    epsilon, the mean cost at most the budget, or both. The policy is fitted on held_out, where the
    candidates are fixed too, with geometric thresholds; val only certifies. If nothing can be
    certified, the error says what could be.
    """
    if epsilon is None and budget is None:
        raise ConfigError("give --epsilon, --budget or both: what is to be guaranteed?")
    if method in (*GROUPS, "auto"):
        raise ConfigError(f"--method takes one answer and scorer, and {method!r} is several")
    check_fresh(folder, "policy", force)
    from offramp import report
    from offramp.evaluation import evaluate
    from offramp.guarantees import Guarantee, certify
    from offramp.methods import find_methods
    from offramp.policy import Policy

    guarantee = Guarantee(epsilon, budget, delta, loss, largest_cost=largest_cost)
    splits = ledgers.read(needs_test=False)
    held_out = splits["held_out"]
    (found,) = find_methods(method, held_out.num_classes, held_out.kind)
    if ":" in method and found.thresholds != "geometric":
        raise ConfigError(
            f"a guarantee is chosen among geometric thresholds; name the method without "
            f"{':' + found.thresholds!r}"
        )
    with err.status(f"fitting and certifying {found.label}"):
        policy = Policy(found.scorer, found.answer).fit(held_out)
        policy.tune(held_out, "geometric", allow_split="held_out")
        certificate = certify(policy, splits["val"], guarantee)
    certificate.policy.save(folder, method, str(ledgers.path))
    out.print(str(certificate), soft_wrap=True)
    if "test" in splits and splits["test"].has_labels:
        _show_outcome(evaluate(certificate.policy, splits["test"]), "geometric")
    out.give(policy=folder, guarantee=certificate.policy.guarantee)
    for table in report.inspect(folder):
        out.print(table.rich())


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
    ledgers: LedgerOptions,
    budgets: Budgets = "0.25,0.5,0.75",
    methods: Candidates = ",".join(CANDIDATES),
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the policies, one per budget: policy-BUDGET."),
    ] = None,
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

    splits = ledgers.read()
    names = split_names(methods)
    with err.status("choosing exits, answers, scorers and thresholds"):
        found = advise(splits["held_out"], splits["val"], splits["test"], wanted, names)
    out.print(str(found), soft_wrap=True)
    if folder is not None:
        for budget, policy in found.plan.items():
            policy.save(folder / f"policy-{budget:g}")
        out.print(f"kept exits {found.plan.exits}; policies are in {folder}/", soft_wrap=True)


def _show(result: "Comparison", folder: Path, provenance: Mapping[str, Any] | None = None) -> None:
    from offramp import report

    figures = {
        method.name: {name: figure.value for name, figure in method.figures.items()}
        for method in result.methods
    }
    out.give(figures=figures, folder=folder)
    # First: printing may be cut off.
    paths, missing = report.write_comparison(result, folder, provenance)
    for table in report.comparison_tables(result):
        out.show(table)
    for sentence in report.verdicts(result):
        out.print(sentence, highlight=False)
    out.print(f"written to {folder}/: {', '.join(p.name for p in paths)}", highlight=False)
    if missing is not None:
        err.print(f"note: {missing}", markup=False, highlight=False)
