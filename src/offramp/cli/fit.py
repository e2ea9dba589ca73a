"""The commands `fit`, `auto` and `certify`, which save a policy."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offramp.cli.console import err, note, out
from offramp.cli.options import (
    Candidates,
    Force,
    LedgerOptions,
    Method,
    PolicyFolder,
    check_fresh,
    share,
)
from offramp.cli.settings import completing
from offramp.errors import ConfigError, LedgerError
from offramp.registry import CANDIDATES, GROUPS, LOSSES

if TYPE_CHECKING:
    from offramp import methods
    from offramp.ledger import Ledger
    from offramp.policy import Policy

Share = typer.Option(callback=share)  # of the cost of the full network


def fit_command(
    ledgers: LedgerOptions,
    budget: Annotated[float | None, Share] = None,
    max_drop: float | None = None,
    method: Method = "eefp",
    folder: PolicyFolder = Path("policy"),
    force: Force = False,
) -> None:
    """Fit a policy, choose its operating point for a budget, and save it.

    The answer and the scorer are fitted on held_out. Thresholds come from val; they are smooth,
    unless the method says otherwise, as in eefp:geometric. Where there is a test ledger with
    labels, the outcome on it is printed. Without labels, methods that need none can be fitted:
    break-even-no-ensemble, baseline.

    Args:
        budget: Mean cost, as a share of the full network.
        max_drop: Accuracy that may be lost, 0.01 for a point; in place of --budget.
    """
    if (budget is None) == (max_drop is None):
        raise ConfigError("give either --budget or --max-drop")
    if method in GROUPS:
        raise ConfigError(
            f"--method takes one method, and {method!r} is a group of them, for `offramp compare`"
        )
    check_fresh(folder, "policy", force)
    from offramp.methods import find_methods, ready

    splits = ledgers.read(needs_test=False)
    (found,) = find_methods(method, splits["val"].num_classes)
    chosen = ready(found)
    policy = _fitted(chosen, splits, budget, max_drop)
    thresholds = chosen.describe().get("thresholds")  # none: `auto` chooses them itself
    whole = f"{chosen.name}:{thresholds}" if thresholds and ":" not in method else chosen.name
    _save(policy, folder, whole, ledgers, splits, thresholds)
    if thresholds != found.thresholds and thresholds is not None:
        note(
            f"`offramp compare` calls this policy {whole}; it takes the paper's "
            f"{found.thresholds} thresholds for plain {method}"
        )


def auto_command(
    ledgers: LedgerOptions,
    budget: Annotated[float, Share] = 0.5,
    methods: Candidates = CANDIDATES,
    folder: PolicyFolder = Path("policy"),
    force: Force = False,
) -> None:
    """Choose exits, answer, scorer and thresholds for a budget, and save the policy.

    The choice is made by cross-validation on held_out and val. With --profile the budget is a
    share of seconds, and if no exit is cheap enough the policy is the full network.
    `offramp advise` measures whether exits are worth it at all.

    Args:
        budget: Mean cost, as a share of the full network.
    """
    check_fresh(folder, "policy", force)
    from offramp.advice.auto import Auto

    splits = ledgers.read(needs_test=False)
    _check_labels(ledgers.path, splits)
    chosen = Auto(candidates=tuple(methods))
    _save(_fitted(chosen, splits, budget), folder, chosen.name, ledgers, splits)


def certify_command(
    ledgers: LedgerOptions,
    epsilon: float | None = None,
    budget: Annotated[float | None, Share] = None,
    delta: float = 0.1,
    loss: Annotated[
        str,
        typer.Option(autocompletion=completing(LOSSES), help=f"One of {', '.join(LOSSES)}."),
    ] = "accuracy",
    class_: Annotated[int | None, typer.Option("--class")] = None,
    largest_cost: float | None = None,
    method: Method = "eefp",
    folder: PolicyFolder = Path("policy"),
    force: Force = False,
) -> None:
    """Fit a policy and give it an operating point with a guarantee, and save it.

    With probability 1 - delta over the draw of val, the mean loss on new samples is at most
    epsilon, the mean cost at most the budget, or both. The policy is fitted on held_out, where the
    candidates are fixed too, with geometric thresholds unless the method says otherwise, as in
    eefp:smooth; val only certifies. If nothing can be certified, the error says what could be.

    Args:
        epsilon: Largest mean loss, 0.01 for a point of accuracy.
        budget: Largest mean cost, as a share of the full network.
        delta: Probability with which the guarantee may fail.
        loss: Loss that is bounded. accuracy: what the policy is less accurate than the full
            network. regret: the full network is right, and the early answer wrong; regret-sure,
            regret-hopeless: only where the policy stopped with a confidence of at least one half,
            or gave up with less. disagreement: the two differ. precision, recall: the share of
            the answers, or of the samples, of a class that is wrong.
        class_: Number of the class, for precision and recall.
        largest_cost: Largest possible cost of a single sample, such as a limit on tokens: for
            --budget where costs differ from sample to sample.
    """
    if epsilon is None and budget is None:
        raise ConfigError("give --epsilon, --budget or both: what is to be guaranteed?")
    if method in (*GROUPS, "auto"):
        raise ConfigError(f"--method takes one answer and scorer, and {method!r} is several")
    check_fresh(folder, "policy", force)
    from offramp.guarantees import Guarantee, certify
    from offramp.methods import find_methods
    from offramp.policy import Policy

    guarantee = Guarantee(epsilon, budget, delta, loss, largest_cost=largest_cost, class_=class_)
    splits = ledgers.read(needs_test=False)
    held_out = splits["held_out"]
    (found,) = find_methods(method, held_out.num_classes, held_out.history_type)
    with err.status(f"fitting and certifying {found.label}"):
        policy = Policy(found.scorer, found.answer).fit(held_out)
        policy.tune(held_out, found.thresholds, allow_split="held_out")
        certificate = certify(policy, splits["val"], guarantee)
    out.print(str(certificate))
    out.give(guarantee=certificate.policy.guarantee)
    _save(certificate.policy, folder, method, ledgers, splits, found.thresholds)


def _check_labels(path: Path, splits: "Mapping[str, Ledger]") -> None:
    """Raise where there is nothing to choose by: no labels, or no answer that is ever right."""
    used = splits["held_out"], splits["val"]
    for ledger in used:
        if not ledger.has_labels:
            name = (
                "class, as `labels`" if ledger.has_logits else "right answer, in a column `label`"
            )
            raise LedgerError(
                f"auto chooses by labels, and {path} has none ({ledger.split}): give each sample "
                f"its {name}"
            )
    if not any(ledger.heads_correct.any() for ledger in used):
        raise LedgerError(
            f"no answer in {path} is ever right, so there is nothing to choose by: bring answers "
            "and labels into one form and one type"
        )


def _fitted(
    method: "methods.Method",
    splits: "Mapping[str, Ledger]",
    budget: float | None,
    max_drop: float | None = None,
) -> "Policy":
    """A policy of this method at the operating point that is asked for."""
    from offramp.evaluation.words import words_for

    wanted = 1.0 if budget is None else budget
    with err.status(f"fitting {method.label}"):
        (plan,) = method.plans(splits["held_out"], splits["val"], [wanted], seeds=1)
        if max_drop is None:
            plan.check_budgets()
        policy = plan[wanted] if max_drop is None else plan[wanted].at(max_drop=max_drop)
        if splits["held_out"].has_labels and policy.confidence is None:
            policy.fit_confidence(policy.view(splits["held_out"]))
    if budget is not None and not plan.why and policy.points.unspent(budget):
        note(f"{method.label}{policy.points.unspent(budget)}")
    if plan.best:
        out.print(plan.best)
    if plan.why:
        words = words_for(splits["val"])
        out.print(f"{plan.why[wanted]}; {words.stages} {list(policy.exits)}")
    return policy


LOST = {
    "held_out": "nothing says how far to trust the network, and answers get no confidence",
    "val": "the accuracy of the operating points is unknown, so --max-drop is refused",
    "test": "the outcome cannot be measured",
}
"""What is lost where a split has no labels."""


def _save(
    policy: "Policy",
    folder: Path,
    method: str,
    ledgers: LedgerOptions,
    splits: "Mapping[str, Ledger]",
    thresholds: str | None = None,
) -> None:
    """Save a policy, and show its outcome on test, if there is one, and what it is."""
    from offramp import report
    from offramp.evaluation import evaluate

    policy.save(folder, method, str(ledgers.path))
    for split, ledger in splits.items():
        if not ledger.has_labels:
            note(f"note: {split} has no labels: {LOST[split]}")
    if "test" in splits and splits["test"].has_labels:
        outcome = evaluate(policy, policy.view(splits["test"]))
        how = f", with {thresholds} thresholds" if thresholds else ""
        out.print(f"on test{how}: {outcome}")
        names = ("accuracy", "full_accuracy", "mean_cost", "exit_shares", "hopeless_share")
        out.give(test={name: getattr(outcome, name) for name in names})
    out.give(policy=folder, exits=policy.exits)
    for table in report.inspect(folder):
        out.show(table)
