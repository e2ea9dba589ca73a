"""`auto` on cascades of language models, beside forty lines of scikit-learn and pairs of models.

    python benchmarks/cascades.py --resplits 20

All questions of each cascade in `traces/` below `OFFRAMP_DATA` are drawn anew into 300 to learn
from and the rest to test on (half and half where there are few). Every rule learns from all 300,
and is asked for the best within 30, 50 and 75 % of the dollars of the last model alone.
Printed are accuracies on test in points, the share of the dollars that was spent there, and what
`auto` gains over each rival: the mean over resplits, and where 95 % of the resplits lie.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from itertools import combinations, product
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, cross_val_predict

import offramp
from offramp import Ledger
from offramp.advice.rating import pool
from offramp.costs import Costs
from offramp.evaluation.pairs import pair_envelope
from offramp.evaluation.references import fixed_exits, mix_at

BUDGETS = (0.3, 0.5, 0.75)
LEARN = 300
Found = tuple[float, float]  # accuracy and cost on test


def questions(name: str) -> Ledger:
    """All questions of a cascade, of its train file and its test file."""
    folder = Path(os.environ.get("OFFRAMP_DATA", "data")) / "traces"
    files = [
        path for part in ("train", "test") if (path := folder / f"{name}_{part}.npz").is_file()
    ]
    parts = [np.load(path, allow_pickle=False) for path in files]
    log_confidence, correct, costs = (
        np.concatenate([part[key] for part in parts])
        for key in ("log_confidence", "correct", "cost_usd")
    )
    return Ledger.from_answers(
        log_confidence=log_confidence.clip(-80),
        correct=correct,
        costs=Costs.of_members(costs, "dollars"),
        split="all",
        network=name,
        sample_ids=list(range(len(correct))),
    )


def cut(ledger: Ledger, seed: int) -> tuple[Ledger, Ledger, Ledger]:
    """held_out and val, 150 questions each, and test."""
    learn = min(LEARN, len(ledger) // 2)
    order = np.random.default_rng(seed).permutation(len(ledger))
    pieces = order[: learn // 2], order[learn // 2 : learn], order[learn:]
    return tuple(  # type: ignore[return-value]
        ledger.take(piece).as_split(split)
        for piece, split in zip(pieces, ("held_out", "val", "test"), strict=True)
    )


def auto(held_out: Ledger, val: Ledger, test: Ledger) -> list[Found]:
    """The library."""
    plan = offramp.auto(held_out, val, BUDGETS)
    outcomes = [offramp.evaluate(plan[budget], plan.view(test)) for budget in BUDGETS]
    return [(outcome.accuracy, outcome.mean_cost) for outcome in outcomes]


def pairs_mixed(held_out: Ledger, val: Ledger, test: Ledger) -> list[Found]:
    """Mixes of two cascades of two models, set to cost the budget on test itself."""
    envelope = pair_envelope([held_out, val], test)
    return [(mix.accuracy, mix.cost) for mix in map(envelope.at, BUDGETS)]


def models_mixed(held_out: Ledger, val: Ledger, test: Ledger) -> list[Found]:
    """Mixes of two single models, likewise."""
    fixed = fixed_exits(test, test.heads_correct)
    accuracies = pool(held_out, val).heads_correct.mean(axis=0)
    return [(mix.accuracy, mix.cost) for mix in (mix_at(fixed, accuracies, b) for b in BUDGETS)]


def last_model(held_out: Ledger, val: Ledger, test: Ledger) -> list[Found]:
    """The last model alone, whatever the budget."""
    return [(test.heads_correct[:, -1].mean(), 1.0)] * len(BUDGETS)


def forty_lines(most: int) -> Callable[[Ledger, Ledger, Ledger], list[Found]]:
    """Sub-chains of at most so many models, with scikit-learn."""

    def rule(held_out: Ledger, val: Ledger, test: Ledger) -> list[Found]:
        learn = [np.concatenate(pair) for pair in zip(arrays(held_out), arrays(val), strict=True)]
        return chosen_by_sklearn(learn, arrays(test), most)

    return rule


def arrays(ledger: Ledger) -> list[np.ndarray]:
    """Log-confidences, right or wrong, and the dollars of each model: `[N, M]` each.

    Without a limit, a few log-confidences of -80 spoil the regressions of one cascade.
    """
    odds = ledger.outputs[..., 0].astype(np.float64)
    dollars = np.diff(ledger.cumulative_costs, axis=1, prepend=0)
    return [-np.logaddexp(0, -odds).clip(max=15), ledger.labels, dollars]


def chosen_by_sklearn(learn: list[np.ndarray], test: list[np.ndarray], most: int) -> list[Found]:
    """Logistic regressions of right or wrong on log-confidences, and quantiles as thresholds."""
    seen, right, dollars = learn
    dollars = dollars / dollars[:, -1].mean()
    models, known = range(right.shape[1]), {}
    for asked in (each for size in range(1, most) for each in combinations(models, size)):
        inputs, target = seen[:, list(asked)], right[:, asked[-1]]
        if min(target.sum(), (~target).sum()) < 5:
            known[asked] = inputs[:, -1], test[0][:, asked[-1]]
            continue
        fit = LogisticRegression(max_iter=1000)
        folds = KFold(5, shuffle=True, random_state=0)
        crossed = cross_val_predict(fit, inputs, target, cv=folds, method="predict_proba")[:, 1]
        fitted = fit.fit(inputs, target)
        known[asked] = crossed, fitted.predict_proba(test[0][:, list(asked)])[:, 1]
    candidates = []
    for chain in (each for size in range(1, most + 1) for each in combinations(models, size)):
        chances = [known[chain[:size]] for size in range(1, len(chain))]
        grids = [np.quantile(crossed, np.linspace(0, 1, 21)) for crossed, _ in chances]
        for limits in product(*grids):
            rule = [crossed >= limit for (crossed, _), limit in zip(chances, limits, strict=True)]
            found = replayed(chain, rule, right, dollars)
            candidates.append((*found, chain, limits))
    answers = []
    for budget in BUDGETS:
        within = [each for each in candidates if each[1] <= budget] or candidates[:1]
        _, _, chain, limits = max(within, key=lambda each: each[0])
        rule = [known[chain[: i + 1]][1] >= limit for i, limit in enumerate(limits)]
        answers.append(replayed(chain, rule, test[1], test[2] / test[2][:, -1].mean()))
    return answers


def replayed(
    chain: tuple[int, ...], rule: list[np.ndarray], right: np.ndarray, dollars: np.ndarray
) -> Found:
    """Accuracy and cost of a chain with these decisions to stop."""
    going, hits, spent = np.ones(len(right), bool), 0, 0.0
    for place, model in enumerate(chain):
        spent += dollars[going, model].sum()
        stops = going & rule[place] if place < len(rule) else going
        hits += right[stops, model].sum()
        going = going & ~stops
    return hits / len(right), spent / len(right)


RULES = {
    "auto": auto,
    "forty lines": forty_lines(3),
    "forty lines, pairs": forty_lines(2),
    "one model": forty_lines(1),
    "pairs, mixed": pairs_mixed,
    "models, mixed": models_mixed,
    "last model": last_model,
}


SHOWN = {"forty lines", "last model"}  # rivals that are shown for each cascade


def cascades() -> Iterator[str]:
    """Names of the cascades in the folder."""
    folder = Path(os.environ.get("OFFRAMP_DATA", "data")) / "traces"
    yield from sorted({path.stem.rpartition("_")[0] for path in folder.glob("cascade_*.npz")})


def show(title: str, columns: list[str], rows: dict[str, list[str]]) -> None:
    """Print one table."""
    print(f"\n**{title}**\n\n| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


def accuracies(values: np.ndarray) -> str:
    """The mean accuracy at each budget, of `[R, 3, 2]`."""
    return " ".join(f"{100 * accuracy:.2f}" for accuracy in values[..., 0].mean(axis=0))


def gains(found: dict[str, np.ndarray], rule: str) -> list[str]:
    """What `auto` gains over a rule at each budget: the mean, and 95 % of the resplits."""
    gaps = 100 * (found["auto"] - found[rule])[..., 0]
    lows, highs = np.quantile(gaps, [0.025, 0.975], axis=0)
    means = zip(gaps.mean(axis=0), lows, highs, strict=True)
    return [f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]" for mean, low, high in means]


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resplits", type=int, default=5, help="How often to draw anew.")
    parser.add_argument("--first", type=int, default=0, help="The first seed.")
    parser.add_argument("--only", nargs="+", default=list(cascades()), help="Names of cascades.")
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    options = parser.parse_args()
    every: dict[str, dict[str, np.ndarray]] = {}
    for name in options.only:
        ledger, start = questions(name), time.perf_counter()
        splits = [cut(ledger, options.first + seed) for seed in range(options.resplits)]
        every[name] = {
            rule: np.array([RULES[rule](*each) for each in splits]) for rule in options.rules
        }
        print(
            f"{name}, {len(ledger):,} questions: {time.perf_counter() - start:.0f} s", flush=True
        )
    mean = {
        rule: np.mean([each[rule] for each in every.values()], axis=0) for rule in options.rules
    }
    rivals = [rule for rule in options.rules if rule != "auto"]
    by_cascade = {r: [accuracies(each[r]) for each in every.values()] for r in options.rules}
    show("Accuracy", list(every), by_cascade)
    columns = [f"{budget:.0%}" for budget in BUDGETS]
    spent = {r: [f"{cost:.1%}" for cost in mean[r][..., 1].mean(axis=0)] for r in options.rules}
    show("Spent", columns, spent)
    show("Gains of auto on average", columns, {r: gains(mean, r) for r in rivals})
    for rival in filter(SHOWN.__contains__, rivals):
        by_name = {name: gains(each, rival) for name, each in every.items()}
        show(f"Gains of auto over {rival}", columns, by_name)


if __name__ == "__main__":
    main()
