"""Fits, scores, thresholds, certificates and figures stay what they were on small made-up ledgers.

The numbers stand in `pinned.json`. A change that means to change them writes them again:

    python tests/test_pinned.py
"""

import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import offramp
from offramp import Guarantee, Ledger, Policy, certify, compare, evaluate
from offramp.advice.advise import advise
from offramp.answers import (
    ClassWiseEnsemble,
    CurrentExit,
    GeometricEnsemble,
    MajorityVote,
    MatrixScaling,
    ProductOfExperts,
    TemperatureScaling,
    VectorScaling,
)
from offramp.bounds import BOUNDS
from offramp.costs import Costs
from offramp.evaluation.references import references
from offramp.registry import LOSSES
from offramp.scorers import (
    BreakEven,
    Corrector,
    Entropy,
    LogisticCorrector,
    Margin,
    MaxProbability,
    Patience,
)

FILE = Path(__file__).with_name("pinned.json")
SPLITS = ("held_out", "val", "test")
ROWS = slice(0, 6)  # the samples that are shown
BUDGETS = (0.4, 0.7)


@cache
def logits():
    """160 samples a split, four exits and eight classes, of an overconfident network."""
    stored = np.load(FILE.with_name("pinned_logits.npz"))
    costs = Costs(stages=[1e6] * 4, heads=[1e4] * 4)
    return {
        split: Ledger(
            stored[f"{split}_logits"],
            stored[f"{split}_labels"],
            costs,
            split=split,
            sample_ids=[f"{split}-{number}" for number in range(160)],
            network="four exits",
        )
        for split in SPLITS
    }


@cache
def answers(known=True, labelled=True):
    """Questions that two or three stages answer with a letter, some of them twice."""
    rng = np.random.default_rng(7)
    found = {}
    for split in SPLITS:
        truth = rng.integers(3, size=60)
        given, sure, features, costs = [], [], [], []
        for label in truth:
            stages = int(rng.integers(3, 5))
            knows = rng.random() < 0.35 + 0.15 * np.arange(stages)
            row = np.where(knows, label, rng.integers(3, size=stages))
            given.append(["abc"[each] for each in row])
            sure.append(np.clip(0.45 + 0.3 * knows + rng.normal(0, 0.15, stages), 0.02, 0.98))
            features.append(rng.normal(size=(stages, 1)).tolist())
            costs.append((10 * rng.random(stages) + 5).cumsum().round(3).tolist())
        correct = [[g == "abc"[t] for g in row] for row, t in zip(given, truth, strict=True)]
        found[split] = Ledger.from_answers(
            given if known else None,
            confidence=[row.tolist() for row in sure],
            correct=correct if labelled else None,
            features=features,
            costs=costs,
            unit="tokens",
            split=split,
            groups=[f"{split}-{number // 2}" for number in range(60)],
            sample_ids=[f"{split}-{number}" for number in range(60)],
            network="letters",
        )
    return found


def confidences():
    return answers(known=False)


@cache
def cascade():
    """Three models that share nothing, with costs of their own."""
    costs = Costs.of_members([1.0, 4.0, 10.0, 30.0], "dollars")
    return {name: ledger.with_costs(costs) for name, ledger in logits().items()}


def decided(policy, test):
    """What a policy does on test."""
    replay = policy.replay(test)
    some = slice(0, None, max(1, len(policy.points) // 4))
    last = policy.at_point(len(policy.points) // 2)
    return {
        "predictions": replay.predictions[ROWS],
        "scores": replay.scores[ROWS],
        "chances": replay.confidences[ROWS],
        "thresholds": policy.points.thresholds[some],
        "costs": replay.point_costs[some],
        "exits": last.replay(test).exits[:20],
        "paid": last.replay(test).costs[ROWS],
        "hopeless": replay.hopeless[:20],
        "targets": replay.stop_targets[ROWS],
    }


def fitted(scorer, answer, splits, thresholds="geometric"):
    policy = Policy(scorer, answer).fit(splits["held_out"])
    return policy.tune(splits["val"], thresholds)


ANSWERS = [
    *(TemperatureScaling(), TemperatureScaling(multiplier=3.0), VectorScaling()),
    *(MatrixScaling(), ProductOfExperts(), GeometricEnsemble(), GeometricEnsemble(shrinkage=0.1)),
    *(ClassWiseEnsemble(), MajorityVote()),
]
SCORERS = [
    *(MaxProbability(), Entropy(), Margin(), Patience(), LogisticCorrector(), BreakEven()),
    *(LogisticCorrector(history=False), BreakEven(history=False, classes=False)),
]
OF_ANSWERS = [MaxProbability(), LogisticCorrector(), BreakEven(), BreakEven(history=False)]
CORRECTORS = [
    Corrector(epochs=2),
    Corrector(history=False, k="all", target="correctness", epochs=2, seed=3),
    Corrector(log_odds=False, epochs=2),
]
CASES = {}


def case(name):
    def add(make):
        assert name not in CASES, name
        CASES[name] = make
        return make

    return add


for each in ANSWERS:
    is_exact = not isinstance(each, VectorScaling | MatrixScaling | ClassWiseEnsemble)

    @case(f"answer {each}" if is_exact else f"search for {each}")
    def _answer(answer=each, is_exact=is_exact):
        policy = fitted(MaxProbability(), answer.clone(), logits())
        test = logits()["test"]
        found = {"answers": policy.answer.answers(test.logits[ROWS])}
        return found | decided(policy, test) if is_exact else found


for each in SCORERS:

    @case(f"scorer {each}")
    def _scorer(scorer=each):
        return decided(fitted(scorer.clone(), CurrentExit(), logits()), logits()["test"])


for each in CORRECTORS:

    @case(f"corrector {each}")
    def _corrector(scorer=each):
        policy = Policy(scorer.clone()).fit(logits()["held_out"])
        return {"scores": policy.replay(logits()["test"]).scores[ROWS]}


for each in OF_ANSWERS:
    for splits in (answers, confidences):

        @case(f"scorer {each} of {splits.__name__}")
        def _of_answers(scorer=each, splits=splits):
            return decided(fitted(scorer.clone(), CurrentExit(), splits()), splits()["test"])


@case("vote of answers")
def _vote():
    policy = fitted(MaxProbability(), MajorityVote(), answers())
    return decided(policy, answers()["test"])


@case("corrector of answers")
def _corrector_of_answers():
    policy = Policy(Corrector(epochs=2)).fit(answers()["held_out"])
    return {"scores": policy.replay(answers()["test"]).scores[ROWS]}


@cache
def logits_alone():
    return {
        split: Ledger(ledger.logits, None, ledger.cost_model, split=split, network="alone")
        for split, ledger in logits().items()
    }


def answers_alone():
    return answers(labelled=False)


for splits in (logits_alone, answers_alone):

    @case(f"break-even on {splits.__name__}")
    def _unlabelled(splits=splits):
        parts = splits()
        policy = Policy(BreakEven()).fit(parts["held_out"]).tune(parts["val"], "shared")
        replay = policy.replay(parts["test"])
        return {
            "scores": replay.scores[ROWS],
            "thresholds": policy.points.thresholds[::40],
            "budgets": policy.points.budgets[::40],
        }


for each in ("geometric", "smooth", "shared"):
    for splits in (logits, answers):

        @case(f"thresholds {each} of {splits.__name__}")
        def _thresholds(thresholds=each, splits=splits):
            policy = fitted(MaxProbability(), CurrentExit(), splits(), thresholds)
            points, test = policy.points, splits()["test"]
            some = slice(0, None, max(1, len(points) // 8))
            within = policy.at(budget=0.6)
            return {
                "thresholds": points.thresholds[some],
                "budgets": points.budgets[some],
                "accuracies": points.accuracies[some],
                "exits": within.replay(test).exits[:20],
                "within a drop": policy.at(max_drop=0.05).replay(test).exits[:20],
            }


def certified(splits, guarantee):
    """The point, losses, costs and bounds of a certificate."""
    policy = Policy(MaxProbability()).fit(splits["held_out"])
    policy.tune(splits["held_out"], "geometric", allow_split="held_out")
    return {
        k: v for k, v in vars(certify(policy, splits["val"], guarantee)).items() if k != "policy"
    }


for loss in LOSSES[:-2]:  # without those of a class, which answers have not
    for delta in (0.2, None):

        @case(f"guarantee of {loss}, delta {delta}")
        def _guarantee(loss=loss, delta=delta):
            return certified(answers(), Guarantee(epsilon=0.4, delta=delta, loss=loss))


for bound in BOUNDS:

    @case(f"guarantee by {bound}")
    def _bound(bound=bound):
        return certified(logits(), Guarantee(0.3, 0.9, loss="regret", bound=bound))


@case("guarantee of a budget in tokens")
def _tokens():
    return certified(answers(), Guarantee(budget=0.95, delta=0.2, largest_cost=60.0))


@case("outcome")
def _outcome():
    policy = fitted(LogisticCorrector(), TemperatureScaling(), logits(), "smooth")
    found = evaluate(policy.at(budget=0.5), logits()["test"])
    return {k: v for k, v in found.to_json().items() if isinstance(v, float | list)}


for splits in (logits, cascade, answers):

    @case(f"comparison on {splits.__name__}")
    def _compared(splits=splits):
        names = ["baseline", "baseline:smooth", "eefp-logistic"]
        found = compare(**splits(), methods=names, budgets=BUDGETS, resamples=40, progress=False)
        parts = ("figures", "exits", "diagnostics", "differences")
        return {m.name: {part: shown(getattr(m, part)) for part in parts} for m in found.methods}

    @case(f"references on {splits.__name__}")
    def _references(splits=splits):
        found = references(splits()["val"], splits()["test"], BUDGETS)
        return {key: numbers_of(value) for key, value in sorted(vars(found).items())}

    @case(f"advice on {splits.__name__}")
    def _advice(splits=splits):
        found = advise(**splits(), budgets=BUDGETS, resamples=40)
        return {"rows": [numbers_of(row) for row in found.budgets]}


for splits in (logits, cascade, answers):

    @case(f"auto on {splits.__name__}")
    def _auto(splits=splits):
        parts = splits()
        plan = offramp.auto(parts["held_out"], parts["val"], BUDGETS)
        test = plan.view(parts["test"])
        return {
            "exits": plan.exits,
            "methods": [str(name) for name in plan.methods.values()],
            "taken": [policy.replay(test).exits[:20] for policy in plan.values()],
        }


@case("sessions")
def _sessions():
    policy = fitted(BreakEven(), CurrentExit(), logits(), "shared").at(budget=0.5)
    test, found = logits()["test"], []
    for sample in range(6):
        session = policy.start()
        for row in test.logits[sample]:
            if session.observe(row):
                break
        found.append([session.stage, session.answer])
    return {"found": found}


def numbers_of(value):
    """The numbers in anything: by field, by key, in order."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, str | bool | None | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): numbers_of(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [numbers_of(part) for part in value]
    return {key: numbers_of(part) for key, part in vars(value).items() if key[0] != "_"}


def shown(value):
    """The numbers in anything, of long lists some and their mean."""
    return thinned(numbers_of(value))


def thinned(value):
    if isinstance(value, dict):
        return {key: thinned(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    few = value[:: max(1, len(value) // 5)] if len(value) > 12 else value
    is_plain = all(isinstance(part, int | float) for part in value)
    total = [sum(value)] if is_plain and len(value) > 12 else []
    return [thinned(part) for part in few] + total


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def made(name):
    return rounded(numbers_of(CASES[name]()))


def differences(found, pinned, tolerance, place=""):
    """Where two nested values differ."""
    if isinstance(pinned, dict):
        if not isinstance(found, dict) or found.keys() != pinned.keys():
            return [f"{place}: keys"]
        parts = [(found[key], pinned[key], f"{place}/{key}") for key in pinned]
    elif isinstance(pinned, list):
        if not isinstance(found, list) or len(found) != len(pinned):
            return [f"{place}: length"]
        parts = [
            (*pair, f"{place}[{n}]") for n, pair in enumerate(zip(found, pinned, strict=True))
        ]
    elif isinstance(pinned, float) and isinstance(found, float):
        same = found == pytest.approx(pinned, rel=tolerance, abs=tolerance, nan_ok=True)
        return [] if same else [f"{place}: {found} instead of {pinned}"]
    else:
        return [] if found == pinned else [f"{place}: {found!r} instead of {pinned!r}"]
    return [each for part in parts for each in differences(*part[:2], tolerance, part[2])]


@pytest.mark.filterwarnings("ignore::offramp.errors.FewSamplesWarning")
@pytest.mark.parametrize("name", CASES)
def test_results_stay_what_they_were(name):
    pinned = json.loads(FILE.read_text())
    # Training and a search that ends near the optimum add up what machines round differently.
    tolerance = 0.03 if name.startswith(("corrector", "search")) else 1e-4
    assert not differences(made(name), pinned[name], tolerance)


def test_nothing_is_pinned_that_is_not_tried():
    assert json.loads(FILE.read_text()).keys() == CASES.keys()


if __name__ == "__main__":
    wanted = sys.argv[1:] or list(CASES)
    known = json.loads(FILE.read_text()) if FILE.is_file() and sys.argv[1:] else {}
    lines = [
        f"{json.dumps(n)}: {json.dumps(known[n] if n not in wanted else made(n))}" for n in CASES
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
