"""Certified cascades: labels on demand beside BARGAIN and a Hoeffding bound.

    python benchmarks/certificates.py --resplits 500 [--bargain FOLDER]

A model answers questions, and a person the others: the mean error may be at most epsilon, with
confidence 0.9. For every resplit of a cascade in `traces/` below `OFFRAMP_DATA`, 300 questions fix
the path of thresholds and up to 600 others certify one, without labels but those that are asked
for. Printed are the share of questions that the model answers, the labels that were used, and the
share of resplits in which the error on *all* questions exceeds epsilon. BARGAIN (SIGMOD 2026;
`pip install --no-deps --target FOLDER bargain==0.1.3`) promises the error on the 600 questions
themselves, and is judged by that. Hoeffding: the same path, as many random labels as BARGAIN took.
"""

import argparse
import math
import sys
import types
from collections.abc import Sequence

import numpy as np
from cascades import cascades, questions  # type: ignore[import-not-found]  # next to this file

import offramp
from offramp import Guarantee, Ledger, MaxProbability, Policy
from offramp.arrays import Array
from offramp.costs import Costs
from offramp.errors import GuaranteeError

CERTIFY = 600
Ids = Sequence[int]
DELTA = 0.1


def beside_a_person(ledger: Ledger, model: int) -> Ledger:
    """One model, and a person who is always right and costs a hundred times as much."""
    right = ledger.labels[:, model]
    stated = ledger.history().confidences[:, model]
    return Ledger.from_answers(
        correct=np.stack([right, np.ones_like(right)], axis=1),
        confidence=np.stack([stated, np.ones_like(stated)], axis=1),
        costs=Costs.of_members([1.0, 100.0], "dollars"),
        split="all",
        network=f"{ledger.network} {model}",
        sample_ids=ledger.sample_ids,
    )


def on_demand(
    path: Policy, val: Ledger, epsilon: float, budget: int | None = None
) -> tuple[float, int]:
    """Threshold and labels of this library."""
    row_of = {name: row for row, name in enumerate(val.sample_ids or ())}
    asked: set[object] = set()

    def oracle(name: object) -> np.ndarray:
        asked.add(name)
        return np.asarray(val.labels[row_of[name]])

    try:
        wanted = Guarantee(epsilon, delta=DELTA)
        found = offramp.certify(path, val, wanted, oracle=oracle, budget=budget)
    except GuaranteeError:
        return math.inf, len(asked)
    return float(found.policy.thresholds[0]), len(asked)


def bargain(val: Ledger, epsilon: float, seed: int) -> tuple[np.ndarray, int]:
    """Which questions the model answers, and labels, by BARGAIN."""
    from BARGAIN import BARGAIN_A, Oracle, Proxy  # type: ignore[import-not-found]

    scores, right = val.outputs[:, 0, 0], val.labels[:, 0]

    class Model(Proxy):  # type: ignore[misc]
        def get_preds_and_scores(self, indxs: Ids, records: Ids) -> tuple[Array, Array]:
            rows = np.asarray(indxs, int)
            return np.zeros(len(rows)), scores[rows]

    class Person(Oracle):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(verbose=False)
            self.asked: set[int] = set()

        def is_answer_correct(self, indxs: Ids, records: Ids, outputs: Ids) -> Array:
            self.asked |= set(np.asarray(indxs, int).tolist())
            return np.asarray(right[np.asarray(indxs, int)], dtype=float)

        def get_pred(self, records: Ids, indxs: Ids | None = None) -> Array:
            return np.ones(len(records))

    person = Person()
    process = BARGAIN_A(Model(verbose=False), person, 1 - epsilon, DELTA, verbose=False, seed=seed)
    _, by_person = process.process(list(range(len(val))), return_oracle_usage=True)
    return ~np.asarray(by_person), len(person.asked)


def hoeffding(path: Policy, val: Ledger, epsilon: float, labels: int) -> float:
    """The last threshold of the path for which Hoeffding's bound holds, on random labels."""
    scores, right = val.outputs[:labels, 0, 0], val.labels[:labels, 0]
    slack, last = math.sqrt(math.log(1 / DELTA) / (2 * max(labels, 1))), math.inf
    for threshold in path.points.thresholds[::-1, 0]:
        if (~right[scores >= threshold]).sum() / max(labels, 1) + slack > epsilon:
            break
        last = threshold
    return float(last)


def measured(name: str, model: int, epsilon: float, resplits: int, with_bargain: bool) -> None:
    """One line."""
    whole = beside_a_person(questions(name), model)
    scores, wrong = whole.outputs[:, 0, 0], ~whole.labels[:, 0]
    found: dict[str, list[tuple[float, float, bool]]] = {}

    def note(rule: str, threshold: float, labels: int) -> None:
        answers = scores >= threshold
        broken = float((answers & wrong).mean()) > epsilon
        found.setdefault(rule, []).append((float(answers.mean()), labels, broken))

    for seed in range(resplits):
        order = np.random.default_rng(seed).permutation(len(whole))
        held_out = whole.take(order[:300]).as_split("held_out")
        val = whole.take(order[300 : 300 + CERTIFY]).as_split("val")
        path = Policy(MaxProbability()).fit(held_out)
        path.tune(held_out, "geometric", points=41, allow_split="held_out")
        threshold, labels = on_demand(path, val, epsilon)
        note("on demand", threshold, labels)
        if with_bargain:
            answers, labels = bargain(val, epsilon, seed)
            broken = float((answers & ~val.labels[:, 0]).mean()) > epsilon
            found.setdefault("bargain", []).append((float(answers.mean()), labels, broken))
        note("as many", *on_demand(path, val, epsilon, labels))
        note("hoeffding", hoeffding(path, val, epsilon, labels), labels)
    for rule, rows in found.items():
        share, labels_used, broken = np.mean(rows, axis=0)
        print(
            f"{name:28} model {model} {epsilon:5.0%}  {rule:10} answers {share:6.1%}  "
            f"labels {labels_used:5.0f}  broken {broken:6.1%}",
            flush=True,
        )


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resplits", type=int, default=20, help="How often to draw anew.")
    parser.add_argument("--bargain", help="Folder that BARGAIN was installed to.")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.02, 0.05, 0.1])
    parser.add_argument("--only", nargs="+", default=list(cascades()), help="Names of cascades.")
    options = parser.parse_args()
    if options.bargain:
        sys.path.append(options.bargain)
        for name in ("openai", "tqdm", "pandas"):  # imported, and not needed
            module = types.ModuleType(name)
            vars(module).update({"OpenAI": None, "tqdm": lambda each, **_: each})
            sys.modules.setdefault(name, module)
    for name in options.only:
        if len(questions(name)) < 300 + CERTIFY:
            continue
        models = questions(name).num_exits
        for epsilon in options.epsilon:
            measured(name, models - 2, epsilon, options.resplits, bool(options.bargain))


if __name__ == "__main__":
    main()
