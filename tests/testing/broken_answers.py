"""Answers that break one promise each, and a sound one for them to break."""

from dataclasses import dataclass, field

import numpy as np

from offramp import Answer, MaxProbability
from offramp.answers import CurrentExit
from offramp.arrays import softmax
from offramp.component import current_exit_only


@dataclass
class Mean(Answer):
    """A correct answer that learns, for the others to break."""

    learned = ("mean_",)

    def _fit(self, ledger):
        self.mean_ = ledger.logits.mean(axis=0, dtype=np.float32)  # [M, K]

    def answer_at(self, logits):
        return logits[:, -1] - self.mean_[logits.shape[1] - 1]


class NoDataclass(Answer):
    def answer_at(self, logits):
        return logits[:, -1]


@dataclass
class TupleSetting(Mean):
    weights: tuple = (1, 2)


@dataclass
class ArraySetting(Mean):
    weights: object = field(default_factory=lambda: np.ones(2))


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
        return np.int64(super().answer_at(logits).round())


@dataclass
class Growing(Mean):
    factor: float = 2.0

    def __post_init__(self):
        self.factor *= 2


@dataclass
class Eager(Mean):
    def __post_init__(self):
        self.mean_ = np.zeros((4, 8))


@dataclass
class Silent(Mean):
    def fit(self, ledger, allow_split=None):
        super().fit(ledger, allow_split)


@dataclass
class NoUnderscore(Mean):
    learned = ("mean",)

    def _fit(self, ledger):
        self.mean = ledger.logits.mean(axis=0, dtype=np.float32)

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
        logits = ledger.logits
        logits -= logits.mean()
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
        self.mean_ = self.mean_ + np.random.rand()


@dataclass
class AnySplit(Mean):
    def fit(self, ledger, allow_split=None):
        self._fit(ledger)
        return self


@dataclass
class Noisy(Mean):
    def answer_at(self, logits):
        return super().answer_at(logits) + 1e-6 * np.random.rand()


@dataclass
class Batched(Mean):
    def answer_at(self, logits):
        return logits[:, -1] - logits[:, -1].mean(axis=0)


@dataclass
class Peeking(Mean):
    def answer_at(self, logits):
        whole = logits if logits.base is None else logits.base
        return super().answer_at(logits) + whole[: len(logits), -1]


@dataclass
class WronglyMarked(Mean):
    @current_exit_only
    def answer_at(self, logits):
        return logits.sum(axis=1)


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
        return logits - logits.mean(axis=1)[:, None]


@dataclass
class LateBloomer(Mean):
    def describe(self):
        return {"name": "Mean", "settings": {}}


@dataclass
class Exotic(Mean):
    """Learns numbers of a type that files do not have."""

    learned = ("mean_", "phases_")

    def _fit(self, ledger):
        super()._fit(ledger)
        self.phases_ = self.mean_.astype(np.complex128)


@dataclass
class EightClasses(Mean):
    def answer_at(self, logits):
        answer = super().answer_at(logits)
        return answer + 0 * answer[:, 7:]


@dataclass
class Overflowing(Mean):
    """Sums in the type of the logits, which may be float16."""

    def _fit(self, ledger):
        weighted = (3e4 * ledger.logits).sum(axis=0, dtype=ledger.logits.dtype)
        self.mean_ = weighted / len(ledger) / 3e4


@dataclass
class OtherOnTensors(Mean):
    def answer_at(self, logits):
        answer = super().answer_at(logits)
        return answer if isinstance(answer, np.ndarray) else 2 * answer


@dataclass
class OnlyArrays(Mean):
    """Not broken: on a GPU, a runner decides on the CPU."""

    def answer_at(self, logits):
        if not isinstance(logits, np.ndarray):
            raise TypeError("arrays of NumPy are needed")
        return super().answer_at(logits)


@dataclass
class MeanProbability(Answer):
    """Probabilities where logits are expected: their softmax is nearly flat."""

    def answer_at(self, logits):
        return softmax(logits).mean(axis=1)


@dataclass
class Upside(Mean):
    def answer_at(self, logits):
        return -super().answer_at(logits)


NUMBERS = "there is one finite number per sample, or per sample and class"
KIND = "it is an instance of its base class"
RESTORED = r"describe\(\) and state\(\) hold everything"
SMALLEST = "it works with two classes, two exits and float16"

BROKEN_ANSWERS = [
    (CurrentExit, KIND, "got the class CurrentExit itself"),
    (MaxProbability(), KIND, "a subclass of offramp.Answer is needed, got MaxProbability"),
    (NoDataclass(), "settings are plain values", "NoDataclass must be a dataclass"),
    (TupleSetting(), "settings are plain values", r"`weights` was \(1, 2\) and became \[1"),
    (ArraySetting(), "settings are plain values", "not JSON serializable"),
    (NoAnswer(), "it can be fitted and run", "NotImplementedError was raised: NoAnswer must"),
    (Silent(), "fit returns self", "it returned NoneType"),
    (OneColumn(), NUMBERS, r"the shape \[48, 8\] is needed, got \[48, 1\] at exit 0"),
    (WholeNumbers(), NUMBERS, "floating-point numbers are needed, got int64"),
    (Noisy(), "the same samples give the same result", "there is a change of up to .* at exit 0"),
    (Peeking(), "nothing sees a later exit", "other logits at later exits, there is a change"),
    (LateBloomer(), RESTORED, "the description restores another class than LateBloomer"),
    (Growing(), "the constructor only stores its arguments", "`factor` was 4.0 and is 8.0"),
    (Eager(), "the constructor only stores its arguments", "before fit, there is `mean_`"),
    (NoUnderscore(), "`learned` names everything that fit learns", "`learned` has `mean`"),
    (Hoarder(), "`learned` names everything that fit learns", "fit also sets `samples`"),
    (Meddler(), "nothing that is given changes", "`logits` changed"),
    (Adjusting(), "nothing that is given changes", "`strength` changed"),
    (Dice(), "fit depends only on data, settings and seed", "a change of .* in `mean_`; draw"),
    (HalfMacs(), "macs are counts", "got 4.0 at exit 0"),
    (NegativeMacs(), "macs are counts", "got -1 at exit 0"),
    (Batched(), "samples are independent", "alone, there is a change of"),
    (WronglyMarked(), "current_exit_only is true where it is set", "at exit 1; remove the mark"),
    (OtherOnTensors(), "tensors give what arrays give", "there is a change of .* at exit 0"),
    (Exotic(), "a saved policy decides as before", "was raised: .*dtype"),
    (EightClasses(), SMALLEST, "ValueError was raised"),
    (Overflowing(), SMALLEST, "LedgerError was raised: .*finite"),
    (MeanProbability(), "an answer is logits", "got probabilities at exit 0"),
    (AnySplit(), "answers are fitted on held_out", "fit accepted the split 'val'"),
    (TwoMinds(), r"answers\(\) agrees with answer_at\(\)", "there is a change of .* at exit 0"),
    (Upside(), "an answer keeps what the exits know", "is the sign wrong"),
]
