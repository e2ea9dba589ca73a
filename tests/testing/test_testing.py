"""The library's own classes keep the promises, and every check notices what breaks it."""

from dataclasses import dataclass, field

import pytest
import torch

from offramp import Answer, Corrector, MaxProbability, Scorer, TemperatureScaling, thresholds
from offramp import answers as answer_room
from offramp import scorers as scorer_room
from offramp.answers import (
    ClassWiseEnsemble,
    CurrentExit,
    GeometricEnsemble,
    MajorityVote,
    MatrixScaling,
    ProductOfExperts,
    StackingNetwork,
    VectorScaling,
)
from offramp.component import current_exit_only
from offramp.errors import PromiseError
from offramp.scorers import (
    BreakEven,
    Entropy,
    ExitUtility,
    Gates,
    LogisticCorrector,
    Margin,
    Patience,
    PerformanceControl,
)
from offramp.testing import check_answer, check_scorer, check_threshold_method
from offramp.testing.components import ANSWER_PROMISES, SCORER_PROMISES
from offramp.testing.promises import Promise, check_promises
from offramp.testing.threshold_methods import THRESHOLD_PROMISES
from offramp.thresholds.geometric import geometric_sweep

ANSWERS = [
    *(
        MajorityVote(),
        CurrentExit(),
        ProductOfExperts(),
        TemperatureScaling(),
        TemperatureScaling(multiplier=3.0),
    ),
    *(VectorScaling(), MatrixScaling(), GeometricEnsemble(), ClassWiseEnsemble()),
    StackingNetwork(),
]
SCORERS = [
    *(MaxProbability(), Entropy(), Margin(), Patience(), PerformanceControl()),
    *(Corrector(), Corrector(history=False, k="all", target="correctness", seed=3)),
    Corrector(log_odds=False),
    Gates(),
    *(ExitUtility(), BreakEven(), BreakEven(history=False, classes=False)),
    *(LogisticCorrector(), LogisticCorrector(history=False)),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_the_librarys_answers_keep_every_promise(answer):
    check_answer(answer)


@pytest.mark.parametrize("scorer", SCORERS, ids=str)
def test_the_librarys_scorers_keep_every_promise(scorer):
    check_scorer(scorer)


@pytest.mark.parametrize("name", thresholds.THRESHOLD_METHODS)
def test_the_librarys_threshold_methods_keep_every_promise(name):
    check_threshold_method(thresholds.THRESHOLD_METHODS[name])


def test_all_of_the_librarys_classes_are_checked():
    for room, checked, parent in (
        (answer_room, ANSWERS, Answer),
        (scorer_room, SCORERS, Scorer),
    ):
        public = {getattr(room, name) for name in room.__all__}
        classes = {each for each in public if isinstance(each, type) and issubclass(each, parent)}
        assert classes - {parent} == {type(each) for each in checked}


# Answers and scorers that break one promise each


@dataclass
class Mean(Answer):
    """A correct answer that learns, for the others to break."""

    learned = ("mean_",)

    def _fit(self, ledger):
        self.mean_ = ledger.logits.float().mean(dim=0)  # [M, K]

    def answer_at(self, logits):
        return logits[:, -1] - self.mean_[logits.shape[1] - 1]


@dataclass
class Scaled(Scorer):
    """A correct scorer that learns, for the others to break."""

    learned = ("scale_",)

    def fit(self, history, labels, costs):
        self.scale_ = history.answers.float().std(dim=(0, 2))  # [M]
        return self

    def score_at(self, history):
        return history.answer.amax(dim=1) / self.scale_[history.exit_index]


def test_the_classes_that_others_break_are_sound():
    check_answer(Mean())
    check_scorer(Scaled())


class NoDataclass(Answer):
    def answer_at(self, logits):
        return logits[:, -1]


@dataclass
class TupleSetting(Mean):
    weights: tuple = (1, 2)


@dataclass
class TensorSetting(Mean):
    weights: object = field(default_factory=lambda: torch.ones(2))


@dataclass
class NoAnswer(Answer):
    pass


@dataclass
class OneColumn(Mean):
    def answer_at(self, logits):
        return logits[:, -1, :1]


@dataclass
class WholeNumbers(Mean):
    def answer_at(self, logits):
        return super().answer_at(logits).round().long()


@dataclass
class Growing(Mean):
    factor: float = 2.0

    def __post_init__(self):
        self.factor *= 2


@dataclass
class Eager(Mean):
    def __post_init__(self):
        self.mean_ = torch.zeros(4, 8)


@dataclass
class Silent(Mean):
    def fit(self, ledger, allow_split=None):
        super().fit(ledger, allow_split)


@dataclass
class NoUnderscore(Mean):
    learned = ("mean",)

    def _fit(self, ledger):
        self.mean = ledger.logits.float().mean(dim=0)

    def answer_at(self, logits):
        return logits[:, -1] - self.mean[logits.shape[1] - 1]


@dataclass
class Hoarder(Mean):
    def _fit(self, ledger):
        super()._fit(ledger)
        self.samples = len(ledger)


@dataclass
class Meddler(Mean):
    def _fit(self, ledger):
        ledger.logits.sub_(ledger.logits.mean())
        super()._fit(ledger)


@dataclass
class Adjusting(Mean):
    strength: float = 1.0

    def _fit(self, ledger):
        super()._fit(ledger)
        self.strength = 0.5


@dataclass
class Dice(Mean):
    def _fit(self, ledger):
        super()._fit(ledger)
        self.mean_ = self.mean_ + torch.rand(())


@dataclass
class AnySplit(Mean):
    def fit(self, ledger, allow_split=None):
        self._fit(ledger)
        return self


@dataclass
class Noisy(Mean):
    def answer_at(self, logits):
        return super().answer_at(logits) + 1e-6 * torch.rand(())


@dataclass
class Batched(Mean):
    def answer_at(self, logits):
        return logits[:, -1] - logits[:, -1].sum(dim=0)


@dataclass
class Peeking(Mean):
    def answer_at(self, logits):
        whole = logits if logits._base is None else logits._base
        return super().answer_at(logits) + whole[: len(logits), -1]


@dataclass
class WronglyMarked(Mean):
    @current_exit_only
    def answer_at(self, logits):
        return logits.sum(dim=1)


@dataclass
class HalfMacs(Mean):
    def macs(self, exit_index, num_classes):
        return num_classes / 2


@dataclass
class NegativeMacs(Mean):
    def macs(self, exit_index, num_classes):
        return -1


@dataclass
class TwoMinds(Mean):
    def answers(self, logits):
        return logits - logits.mean(dim=1, keepdim=True)


@dataclass
class LateBloomer(Mean):
    def describe(self):
        return {"name": "Mean", "settings": {}}


@dataclass
class SharedMemory(Mean):
    learned = ("mean_", "again_")

    def _fit(self, ledger):
        super()._fit(ledger)
        self.again_ = self.mean_.view(-1)[1:]


@dataclass
class EightClasses(Mean):
    def answer_at(self, logits):
        return super().answer_at(logits) + torch.arange(8.0)


@dataclass
class FullPrecision(Mean):
    def _fit(self, ledger):
        self.mean_ = torch.einsum("nmk,n->mk", ledger.logits, torch.ones(len(ledger)))


BROKEN_ANSWERS = [
    (CurrentExit, "it is an instance of its base class", "got the class CurrentExit itself"),
    (
        MaxProbability(),
        "it is an instance of its base class",
        "a subclass of offramp.Answer; got MaxProbability",
    ),
    (NoDataclass(), "settings are plain values", "NoDataclass must be a dataclass"),
    (TupleSetting(), "settings are plain values", r"`weights` was \(1, 2\) and became \[1"),
    (TensorSetting(), "settings are plain values", "JSON can store; it cannot"),
    (NoAnswer(), "it can be fitted and run", "NotImplementedError was raised: NoAnswer must"),
    (
        OneColumn(),
        "an answer returns logits for every class",
        r"\[n, K\] = \[48, 8\]; got \[48, 1\]",
    ),
    (WholeNumbers(), "an answer returns logits for every class", "got torch.int64"),
    (Growing(), "the constructor only stores its arguments", "`factor` was 4.0 and is 8.0"),
    (Eager(), "the constructor only stores its arguments", "found `mean_`"),
    (Silent(), "fit returns self", "it returned NoneType"),
    (NoUnderscore(), "`learned` names everything that fit learns", "`learned` has `mean`"),
    (Hoarder(), "`learned` names everything that fit learns", "fit also sets `samples`"),
    (Meddler(), "fit changes nothing else", "fit changed them in place"),
    (Adjusting(), "fit changes nothing else", "`strength` changed"),
    (Dice(), "fit depends only on data, settings and seed", "differ in `mean_`: a change of"),
    (AnySplit(), "answers are fitted on held_out", "to refuse the split 'val'.*it accepted it"),
    (
        Noisy(),
        "the same samples give the same result",
        "for the same samples every time; a change of up to",
    ),
    (Batched(), "samples are independent", "alone, there is a change of"),
    (Peeking(), "nothing sees a later exit", "the result at exit 0 not to depend on later"),
    (WronglyMarked(), "current_exit_only is true where it is set", "at exit 1; remove the mark"),
    (HalfMacs(), "macs are counts", "an integer of at least 0; got 4.0 at exit 0"),
    (NegativeMacs(), "macs are counts", "got -1 at exit 0"),
    (TwoMinds(), r"answers\(\) agrees with answer_at\(\)", "they differ at exit 0: a change of"),
    (
        LateBloomer(),
        r"describe\(\) and state\(\) hold everything",
        "to restore the class LateBloomer",
    ),
    (SharedMemory(), "a saved policy decides as before", "was raised: .*shared? memory"),
    (
        EightClasses(),
        "it works with two classes, two exits and float16",
        "RuntimeError was raised",
    ),
    (
        FullPrecision(),
        "it works with two classes, two exits and float16",
        "RuntimeError was raised",
    ),
]


@dataclass
class NoScore(Scorer):
    pass


@dataclass
class ScorePerClass(Scaled):
    def score_at(self, history):
        return history.answer


@dataclass
class Counts(Scaled):
    def score_at(self, history):
        return history.answer.argmax(dim=1)


@dataclass
class NeverEmpty(Scaled):
    def score_at(self, history):
        return super().score_at(history) if len(history) else torch.zeros(1)


@dataclass
class Infinite(Scaled):
    def score_at(self, history):
        probability = history.answer.softmax(dim=1).amax(dim=1)
        return probability.logit()


@dataclass
class SilentScorer(Scaled):
    def fit(self, history, labels, costs):
        super().fit(history, labels, costs)


@dataclass
class DicedScorer(Scaled):
    seed: int = 0

    def fit(self, history, labels, costs):
        super().fit(history, labels, costs)
        self.scale_ = self.scale_ + torch.rand(())
        return self


@dataclass
class OneSeed(Scaled):
    seed: int = 0

    def fit_seeds(self, history, labels, costs, seeds):
        return [self.clone().fit(history, labels, costs)]


@dataclass
class SameSeed(Scaled):
    seed: int = 0

    def fit_seeds(self, history, labels, costs, seeds):
        return [self.clone().fit(history, labels, costs) for _ in seeds]


@dataclass
class RankedInBatch(Scaled):
    def score_at(self, history):
        return history.answer.amax(dim=1).argsort().argsort().float()


@dataclass
class PeekingScorer(Scaled):
    def score_at(self, history):
        whole = history.logits if history.logits._base is None else history.logits._base
        return whole[: len(history), -1].amax(dim=1)


@dataclass
class MarkedScorer(Scaled):
    @current_exit_only
    def score_at(self, history):
        return history.answers.amax(dim=(1, 2))


@dataclass
class BoolMacs(Scaled):
    def macs(self, exit_index, num_classes):
        return True


@dataclass
class PreparedOtherwise(Scaled):
    def at_exit(self, exit_index, num_classes):
        return lambda history: 2 * self.score_at(history)


@dataclass
class Overconfident(Scaled):
    def probability(self, scores):
        return scores


@dataclass
class NotSaved(Scaled):
    def fit(self, history, labels, costs):
        super().fit(history, labels, costs)
        self._offset = history.answers.float().mean()
        return self

    def score_at(self, history):
        return super().score_at(history) + getattr(self, "_offset", 0.0)


@dataclass
class TopFive(Scaled):
    def score_at(self, history):
        top = history.answer.topk(5).values
        return top[:, 0] - top[:, 4]


BROKEN_SCORERS = [
    (
        PreparedOtherwise(),
        r"at_exit\(\) agrees with score_at\(\)",
        "they differ at exit 0: a change",
    ),
    (
        CurrentExit(),
        "it is an instance of its base class",
        "a subclass of offramp.Scorer; got CurrentExit",
    ),
    (NoScore(), "it can be fitted and run", "NotImplementedError was raised: NoScore must"),
    (ScorePerClass(), "there is one score per sample", r"\[48\]; got \[48, 8\] at exit 0"),
    (Counts(), "there is one score per sample", "floating-point scores; got torch.int64"),
    (NeverEmpty(), "there is one score per sample", r"no scores for no samples; got \[1\]"),
    (Infinite(), "scores are finite", r"as confident as float16 allows, got \[inf\] at exit 0"),
    (SilentScorer(), "fit returns self", "it returned NoneType"),
    (DicedScorer(), "fit depends only on data, settings and seed", "differ in `scale_`"),
    (OneSeed(), "every seed gives a scorer", "2 fitted scorers for two seeds.*got 1"),
    (SameSeed(), "every seed gives a scorer", r"seeds in their settings; got \[0, 0\]"),
    (RankedInBatch(), "samples are independent", "alone, there is"),
    (PeekingScorer(), "nothing sees a later exit", "the result at exit 0 not to depend on later"),
    (MarkedScorer(), "current_exit_only is true where it is set", "at exit 1; remove the mark"),
    (BoolMacs(), "macs are counts", "got True at exit 0"),
    (
        Overconfident(),
        r"probability\(\) returns probabilities",
        r"to lie in \[0, 1\] for each score; got values",
    ),
    (NotSaved(), r"describe\(\) and state\(\) hold everything", "state..; a change of"),
    (TopFive(), "it works with two classes, two exits and float16", "RuntimeError was raised"),
]


def no_tensor(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, points).tolist()


def too_many(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, 2 * points)


def single(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, points).float()


def undefined(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    return found.masked_fill(found == torch.inf, torch.nan)


def on_scores(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    for m in range(len(costs) - 1):
        values = scores[:, m].double().sort().values
        above = torch.searchsorted(values, found[:, m]).clamp_max(len(values) - 1)
        found[:, m] = torch.where(found[:, m].isfinite(), values[above], found[:, m])
    return found


def only_dear(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, points)[points // 2 :]


def only_cheap(scores, correct, costs, points):
    return geometric_sweep(scores, correct, costs, points)[:1]


def dice(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    return found[: points - int(torch.randint(1, 10, ()))]


def meddling(scores, correct, costs, points):
    found = geometric_sweep(scores, correct, costs, points)
    costs /= 2
    return found


def first_sample(scores, correct, costs, points):
    """Depends on the first sample: all points if it is confident, else only the two ends."""
    found = geometric_sweep(scores, correct, costs, points)
    return found if scores[0, 0] > 0 else found[[0, -1]]


BROKEN_METHODS = [
    (no_tensor, "thresholds are one row per operating point", r"\[P, M\] with M = 4 .*got list"),
    (too_many, "thresholds are one row per operating point", "1 to 21 operating points.*got 42"),
    (single, "thresholds are one row per operating point", "float64.*got torch.float32"),
    (undefined, "thresholds are never NaN", "[0-9]+ are NaN"),
    (on_scores, "thresholds lie between scores", "is a score at exit 0"),
    (
        only_dear,
        "the cost on val stays within the budget",
        "exit 0, 0.200, upwards; the cheapest",
    ),
    (
        only_cheap,
        "a larger budget buys accuracy",
        "more accurate than stopping every sample at exit",
    ),
    (dice, "the same scores give the same thresholds", "from the same scores; they differ"),
    (meddling, "the same scores give the same thresholds", "unchanged; it changed them"),
    (first_sample, "the order of the samples does not matter", "at the budget 0.4 for samples"),
]

CASES = [
    *((check_answer, *case) for case in BROKEN_ANSWERS),
    *((check_scorer, *case) for case in BROKEN_SCORERS),
    *((check_threshold_method, *case) for case in BROKEN_METHODS),
]


def name_of(value):
    return getattr(value, "__name__", type(value).__name__)


@pytest.mark.parametrize(
    ("check", "broken", "promise", "happened"), CASES, ids=[name_of(case[1]) for case in CASES]
)
def test_a_broken_class_fails_exactly_the_check_of_its_promise(check, broken, promise, happened):
    with pytest.raises(PromiseError, match=f"(?s)breaks the promise '{promise}'.*{happened}") as e:
        check(broken)
    assert len(e.value.promises) == 1


def test_every_check_has_a_class_that_fails_it():
    for promises, cases in (
        (ANSWER_PROMISES, BROKEN_ANSWERS),
        (SCORER_PROMISES, [*BROKEN_SCORERS, *BROKEN_ANSWERS]),  # they share most checks
        (THRESHOLD_PROMISES, BROKEN_METHODS),
    ):
        covered = {case[1].replace("\\", "") for case in cases}
        assert {promise.text for promise in promises} <= covered


def test_several_broken_promises_are_all_named():
    @dataclass
    class ManyFaults(NegativeMacs):
        @current_exit_only
        def answer_at(self, logits):
            return logits.sum(dim=1)

    with pytest.raises(PromiseError, match=r"ManyFaults breaks 2 promises:\n- ManyF") as error:
        check_answer(ManyFaults())
    assert error.value.promises == ("macs are counts", "current_exit_only is true where it is set")


def test_a_broken_basic_promise_ends_the_checks():
    asked = []

    def fails(tested):
        raise ValueError("no")

    promises = [Promise("first", fails, basic=True), Promise("second", asked.append)]
    with pytest.raises(PromiseError, match="expected no error; ValueError was raised: no"):
        check_promises("Thing", promises, "tested")
    assert asked == []


def test_a_check_leaves_no_trace():
    scorer, state = Scaled(), torch.get_rng_state()
    check_scorer(scorer)
    assert torch.equal(state, torch.get_rng_state())
    assert not scorer.is_fitted
