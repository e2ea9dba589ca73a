"""Anything that answers in stages: five language models, and one that thinks.

Two data sets of real answers, which are not shipped: a folder `traces` below OFFRAMP_DATA.

- A cascade: Llama 1B, 3B, 8B, 70B and 405B on the same MMLU questions, with the confidence of each
  and what each call cost in dollars. 150 questions to fit on, 135 to tune on, 1,531 to test.
- A chain of thought: 75 MMLU-Pro questions, each thought about ten times, with the probabilities
  of the options after every tenth of the thinking. Questions are the groups.

    python examples/story_answers.py            # about five minutes on one core
    python examples/story_answers.py --quick    # made-up answers: only shows that it runs
"""

import argparse
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from matplotlib.figure import Figure

import offramp
from offramp import Guarantee, Ledger, Method, Policy, certify
from offramp.arrays import AnyArray, Array, namespace, sigmoid, softmax
from offramp.component import current_exit_only
from offramp.costs import Costs
from offramp.errors import GuaranteeError
from offramp.evaluation import PairEnvelope, pair_envelope
from offramp.evaluation.bootstrap import Interval, Resamples
from offramp.evaluation.columns import accuracy_column
from offramp.evaluation.results import Comparison
from offramp.scorers import Corrector, History, LogisticCorrector, Scorer
from offramp.scorers.ridge import fit_logistic
from offramp.targets import correctness

BUDGETS = (0.3, 0.5, 0.6, 0.75)
Arrays = dict[str, np.ndarray]


@dataclass
class Calibrated(Scorer):
    """The published rival: confidences calibrated by a logistic regression per model.

    With one threshold for all models, on the probability of being right (arXiv 2501.09345).
    """

    needs = "confidences"
    learned = ("weights_",)

    def fit(self, history: History, labels: Array, costs: Array) -> Self:
        """Slope and offset of the log-odds of each stage but the last."""
        right = correctness(history.predictions, labels).astype(np.float64)
        ridge, found = np.full(2, 1e-3), []
        for stage in range(history.exit_index):
            odds = history.until(stage).log_odds.astype(np.float64)
            design = np.stack([odds, np.ones_like(odds)], axis=1)
            found.append(fit_logistic(design, right[:, stage], ridge))
        self.weights_ = np.stack(found).astype(np.float32)
        return self

    @current_exit_only
    def score_at(self, history: History) -> AnyArray:
        """Calibrated log-odds, `[n]`."""
        slope, offset = self.weights_[history.exit_index]
        return slope * history.log_odds + offset

    def probability(self, scores: AnyArray) -> AnyArray:
        """The probability of being right."""
        return sigmoid(scores)


@dataclass
class Plateau(Scorer):
    """The published rival for thinking: stop when the entropy of the answer has settled (EAT).

    The score is minus the logarithm of a running variance of the entropy.
    """

    decay: float = 0.8

    def score_at(self, history: History) -> AnyArray:
        """`[n]`; the same for all at the first look, where nothing can have settled."""
        xp = namespace(history.log_probs)  # NumPy, or torch for a batch on a GPU
        entropies = -(xp.exp(history.log_probs) * history.log_probs).sum(axis=2)  # [n, m+1]
        mean, variance = entropies[:, 0], xp.ones_like(entropies[:, 0])
        for stage in range(1, history.exit_index + 1):
            away = entropies[:, stage] - mean
            mean = mean + (1 - self.decay) * away
            variance = self.decay * (variance + (1 - self.decay) * away**2)
        return -xp.log(variance + 1e-9)


def read(name: str, quick: bool) -> Arrays:
    """The arrays of a file of traces; made-up ones of the same form where that is enough."""
    if quick:
        return made_up("cot" in name, samples=120, seed=len(name))
    folder = Path(os.environ.get("OFFRAMP_DATA", "data")) / "traces"
    if not (folder / name).is_file():
        raise SystemExit(
            f"{folder / name} is missing: these answers are not shipped. Set OFFRAMP_DATA to the "
            "folder that holds traces/, or try --quick"
        )
    with np.load(folder / name, allow_pickle=False) as file:
        return dict(file)


def made_up(thinking: bool, samples: int, seed: int) -> Arrays:
    """Random answers that get better from stage to stage."""
    rng = np.random.default_rng(seed)
    stages = 11 if thinking else 5
    found = rng.random((samples, 1)) * 1.4 < np.linspace(0.3, 1, stages)
    odds = np.where(found, 1.5, -0.5) + rng.normal(size=found.shape)
    steps = rng.integers(10, 90, found.shape)
    if not thinking:
        costs = steps * 3.0 ** np.arange(stages)
        return {"correct": found, "log_confidence": -np.log1p(np.exp(-odds)), "cost_usd": costs}
    logits = rng.normal(size=(samples, stages, 10)).astype(np.float32)
    logits[..., 0] += 2 * odds
    tokens = steps.cumsum(axis=1) - steps[:, :1]
    groups, labels = np.arange(samples) // 3, np.zeros(samples, int)
    return {"logits": logits, "labels": labels, "tokens": tokens, "groups": groups}


def cascade_ledger(arrays: Arrays, split: str) -> Ledger:
    """What each model said of each question, with what it cost alone."""
    return Ledger.from_answers(
        log_confidence=arrays["log_confidence"],
        correct=arrays["correct"],
        costs=Costs.of_members(arrays["cost_usd"], "dollars"),
        split=split,
        network="llama cascade",
    )


def against(table: Comparison, test: Ledger, ours: str, rival: str) -> list[str]:
    """Gains of one method over another at each budget, in points, with 95 % intervals."""
    draws = Resamples(len(test), groups=test.group_numbers)
    moved = {}
    for name in (ours, rival):
        plan = table.plans[name][0]
        columns = [
            draws.accuracies(plan[budget].replay(test), table.budgets)[:, number]
            for number, budget in enumerate(table.budgets)
        ]
        moved[name] = np.stack(columns, axis=1)
    cells = []
    for number, budget in enumerate(table.budgets):
        gap = table[ours].accuracy(budget) - table[rival].accuracy(budget)
        resampled = (moved[ours] - moved[rival])[:, number]
        found = accuracy_column(budget).interval(gap, resampled, test.num_units)
        cells.append(points(found))
    return cells


def points(gap: Interval) -> str:
    """A difference in points, with its interval."""
    return f"{100 * gap.value:+.2f} [{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]"


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    for row in (heads, ["---"] * len(heads), *rows):
        print(f"| {' | '.join(row)} |")
    print()


def cascade(quick: bool) -> None:
    """Five models: fitted and tuned on 285 questions, and tested."""
    train = cascade_ledger(read("cascade_mmlu_llama_train.npz", quick), "all")
    test = cascade_ledger(read("cascade_mmlu_llama_test.npz", quick), "test")
    order = np.random.default_rng(0).permutation(len(train))
    few = round(len(train) * 150 / 285)
    held_out = train.take(order[:few]).as_split("held_out")
    val = train.take(order[few:]).as_split("val")
    calibrated = Method(
        "calibrated", "Calibrated, one threshold", Calibrated(), thresholds="shared"
    )
    names = ["baseline:smooth", calibrated, "eefp-logistic", "break-even-no-ensemble"]
    table = offramp.compare(
        held_out,
        val,
        test,
        [*names, Method("eefp", "EEFP (paper)", Corrector()), "auto"],
        BUDGETS,
        3,
    )
    alone = test.labels.mean(axis=0)
    costs = test.cost_model.alone / test.reference_cost
    print(f"## Cascade: {len(held_out)} + {len(val)} questions, {len(test):,} to test\n")
    heads = ["", *(f"{budget:.0%}" for budget in BUDGETS), "EEFP"]
    print_table(
        heads,
        [
            [m.label, *(f"{m.accuracy(b):.2%}" for b in BUDGETS), f"{m.figures['eefp'].value:.3f}"]
            for m in table.methods
        ]
        + [
            [f"Mix of pairs, chosen on {name}", *pair_rows(ledger, test), ""]
            for name, ledger in {"val": val, "held_out and val": train, "test": test}.items()
        ],
    )
    rivals = ["calibrated", "baseline:smooth"]
    rows = [[f"over {table[name].label}", *against(table, test, "auto", name)] for name in rivals]
    mixed = [table["auto"].differences["pair-mix"][f"accuracy@{budget:g}"] for budget in BUDGETS]
    rows.append(["over the mix of pairs, chosen on held_out and val", *map(points, mixed)])
    print_table(["Auto, points", *heads[1:-1]], rows)
    singles = [f"{float(c):.0%}: {float(a):.2%}" for c, a in zip(costs, alone, strict=True)]
    print("models alone, cost and accuracy:", ", ".join(singles))
    best = table.plans["auto"][0]
    for budget in BUDGETS:
        outcome = offramp.evaluate(best[budget], test)
        gaps = best[budget].replay(test).right.astype(float) - test.labels[:, -1]
        moved = Resamples(len(test)).means(gaps[:, None])[:, 0]
        full = accuracy_column(budget).interval(float(gaps.mean()), moved, len(test))
        print(
            f"auto at {budget:.0%}: {outcome.accuracy:.2%} for {outcome.mean_cost:.1%} of the "
            f"dollars, {points(full)} points against the last model; models {best[budget].exits}; "
            f"{outcome.gave_up_share:.1%} gave up, which lost {outcome.gave_up_loss:.1%}"
        )
    print()
    draw(table, pair_envelope([train], test), costs, alone)


def pair_rows(chosen_on: Ledger, test: Ledger) -> list[str]:
    """Accuracies of the envelope of two-model cascades that is best on some questions."""
    envelope = pair_envelope([chosen_on], test)
    return [f"{envelope.at(budget).accuracy:.2%}" for budget in BUDGETS]


def draw(table: Comparison, pairs: PairEnvelope, costs: Array, alone: Array) -> None:
    """Accuracy against dollars, as story-answers.svg."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    grid = np.linspace(0.1, 1, 91)
    for name in ("auto", "calibrated"):
        curve = table[name].curves[0]  # of the policy for the middle budget
        reached = [100 * curve.at(budget).accuracy for budget in grid]
        axes.plot(grid, reached, label=table[name].label)
    mixed = [100 * pairs.at(budget).accuracy for budget in grid]
    axes.plot(grid, mixed, label="Mix of two-model cascades")
    axes.plot(costs, 100 * alone, "o", color="0.3", label="one model alone")
    axes.set(xlabel="dollars, as a share of the largest model alone", ylabel="accuracy, %")
    axes.legend(frameon=False)
    figure.savefig("story-answers.svg", metadata={"Date": None})


def thinking(quick: bool, splits: int, resplits: int) -> None:
    """One model that thinks: question-wise splits."""
    arrays = read("gemma4_12b_cot_mmlu_pro.npz", quick)
    ledger = Ledger(
        arrays["logits"],
        arrays["labels"],
        Costs.from_cumulative(arrays["tokens"], "tokens"),
        split="all",
        groups=arrays["groups"],
        network="a model that thinks",
    )
    budgets = (0.25, 0.5)
    plateau = Method("plateau", "Entropy plateau", Plateau(), thresholds="shared")
    found: dict[str, list[list[float]]] = {}
    constants = []
    for seed in range(splits):
        held_out, val, test = ledger.partition(0.35, 0.35, 0.3, seed=seed)
        table = offramp.compare(
            held_out, val, test, ["baseline:smooth", plateau, "auto"], budgets, 1, resamples=2
        )
        full = table.references.full.accuracy
        for method in table.methods:
            found.setdefault(method.label, []).append([method.accuracy(b) - full for b in budgets])
        constants.append(constant_threshold(test, 0.995, full))
    print(f"## Thinking: {ledger.num_units} questions, {splits} question-wise splits\n")
    rows = []
    for label, values in found.items():
        columns = zip(*mean_and_error(values), strict=True)
        rows.append(
            [label, *(f"{100 * mean:+.1f} ± {100 * error:.1f}" for mean, error in columns)]
        )
    print_table(
        ["points against the full chain", *(f"{b:.0%} of the tokens" for b in budgets)], rows
    )
    (gap, cost), errors = mean_and_error(constants)
    print(f"stop at 0.995: {100 * gap:+.1f} ± {100 * errors[0]:.1f} points for {cost:.0%}\n")
    guarantees(ledger, resplits)


def mean_and_error(values: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Means and standard deviations over splits, by column."""
    table = np.array(values)
    return table.mean(axis=0).tolist(), table.std(axis=0, ddof=1).tolist()


def constant_threshold(test: Ledger, threshold: float, full: float) -> list[float]:
    """Gain over the full chain and cost of stopping at a fixed confidence (DEER)."""
    sure = softmax(test.logits).max(axis=2) >= threshold
    sure[:, -1] = True
    rows, exits = np.arange(len(test)), sure.argmax(axis=1)
    right = test.logits[rows, exits].argmax(axis=1) == test.labels
    paid = test.cost_model.cumulative[rows, exits].mean() / test.reference_cost
    return [float(right.mean()) - full, float(paid)]


def guarantees(ledger: Ledger, resplits: int) -> None:
    """How often a certified loss is exceeded on questions that nobody has seen."""
    for epsilon in (0.02, 0.1):
        broken, costs, refused = 0, [], 0
        for seed in range(resplits):
            held_out, val, test = ledger.partition(0.2, 0.5, 0.3, seed=1000 + seed)
            policy = Policy(LogisticCorrector()).fit_seeds(held_out, [0])[0]
            policy.tune(held_out, "geometric", 41, allow_split="held_out")
            try:
                policy = certify(
                    policy, val, Guarantee(epsilon=epsilon, delta=0.1, loss="regret")
                ).policy
            except GuaranteeError:
                refused += 1
                continue
            replay = policy.replay(test)
            broken += int((replay.network_correct[:, -1] & ~replay.right).mean() > epsilon)
            costs.append(float(replay.costs.mean()))
        spent = f"mean cost {np.mean(costs):.0%}" if costs else "no policy"
        print(
            f"loss of at most {epsilon:.0%}, delta 0.1: {refused} of {resplits} resplits could "
            f"not be certified, {broken} of the others were above it on test; {spent}"
        )


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="made-up answers: only shows that it runs"
    )
    parser.add_argument(
        "--splits", type=int, default=10, help="question-wise splits (default: 10)"
    )
    parser.add_argument("--resplits", type=int, default=500, help="for guarantees (default: 500)")
    given = parser.parse_args()
    warnings.simplefilter("ignore", offramp.errors.FewSamplesWarning)
    cascade(given.quick)
    thinking(given.quick, 2 if given.quick else given.splits, 3 if given.quick else given.resplits)


if __name__ == "__main__":
    main()
