"""Answers that break one promise each, and a sound one for them to break."""

from dataclasses import dataclass, field

import torch

from offramp import Answer, MaxProbability
from offramp.answers import CurrentExit
from offramp.component import current_exit_only


@dataclass
class Mean(Answer):
    """A correct answer that learns, for the others to break."""

    learned = ("mean_",)

    def _fit(self, ledger):
        self.mean_ = ledger.logits.float().mean(dim=0)  # [M, K]

    def answer_at(self, logits):
        return logits[:, -1] - self.mean_[logits.shape[1] - 1]


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
        return logits[:, -1] - logits[:, -1].mean(dim=0)


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
        weights = torch.full((len(ledger),), 1 / len(ledger))
        self.mean_ = torch.einsum("nmk,n->mk", ledger.logits, weights)


@dataclass
class MeanProbability(Answer):
    """Probabilities where logits are expected: their softmax is nearly flat."""

    def answer_at(self, logits):
        return logits.softmax(dim=2).mean(dim=1)


@dataclass
class Upside(Mean):
    def answer_at(self, logits):
        return -super().answer_at(logits)


BROKEN_ANSWERS = [
    (MeanProbability(), "an answer returns logits for every class", "got probabilities at exit 0"),
    (Upside(), "an answer keeps what the exits know", "is the sign wrong"),
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
