"""Scorers that break one promise each, and a sound one for them to break."""

from dataclasses import dataclass

import numpy as np

from offramp import Scorer
from offramp.answers import CurrentExit
from offramp.arrays import float32, namespace, sigmoid, softmax, top_indices
from offramp.component import current_exit_only
from offramp.ledger.history import log_odds
from offramp.scorers import Entropy, MaxProbability


@dataclass
class Scaled(Scorer):
    """A correct scorer that learns, for the others to break."""

    learned = ("scale_",)

    def fit(self, history, labels, costs):
        self.scale_ = history.answers.std(axis=(0, 2), dtype=np.float32)  # [M]
        return self

    def score_at(self, history):
        return history.log_odds / self.scale_[history.exit_index]


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
        return history.answer.argmax(axis=1)


@dataclass
class NeverEmpty(Scaled):
    def score_at(self, history):
        return super().score_at(history) if len(history) else np.zeros(1)


@dataclass
class Infinite(Scaled):
    def score_at(self, history):
        scores = history.log_odds
        return namespace(scores).where(scores > 1e4, np.inf, scores)


@dataclass
class SilentScorer(Scaled):
    def fit(self, history, labels, costs):
        super().fit(history, labels, costs)


@dataclass
class DicedScorer(Scaled):
    seed: int = 0

    def fit(self, history, labels, costs):
        super().fit(history, labels, costs)
        self.scale_ = self.scale_ + np.random.rand()
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
        return float32(history.log_odds.argsort().argsort())


@dataclass
class PeekingScorer(Scaled):
    def score_at(self, history):
        whole = history.answers if history.answers.base is None else history.answers.base
        return log_odds(whole[: len(history), -1])


@dataclass
class MarkedScorer(Scaled):
    @current_exit_only
    def score_at(self, history):
        surest = namespace(history.answers).max(history.log_probs, axis=(1, 2))
        return surest + super().score_at(history)


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
        self._offset = float(history.answers.mean())
        return self

    def score_at(self, history):
        return super().score_at(history) + getattr(self, "_offset", 0.0)


@dataclass
class TopFive(Scaled):
    def score_at(self, history):
        xp, best = namespace(history.answer), top_indices(history.answer, 5)
        top = xp.take_along_axis(history.answer, best, axis=1)
        return top[:, 0] - top[:, 4]


@dataclass
class WrongSign(Scaled):
    def score_at(self, history):
        return -super().score_at(history)


@dataclass
class SignOfEntropy(Scorer):
    def score_at(self, history):
        return -Entropy().score_at(history)


@dataclass
class OnlyProbability(Scorer):
    def score_at(self, history):
        return namespace(history.answer).max(softmax(history.answer), axis=1)


@dataclass
class Squashed(Scaled):
    def score_at(self, history):
        return sigmoid(super().score_at(history))


@dataclass
class OfLogits(Scorer):
    def score_at(self, history):
        return log_odds(history.logits[:, -1])


@dataclass
class PastOfLogits(Scorer):
    def score_at(self, history):
        agree = history.logits.argmax(axis=2) == history.predictions[:, -1:]
        return history.log_odds + float32(agree).mean(axis=1)


@dataclass
class NoVotes(MaxProbability):
    counts_votes = True


@dataclass
class FittedToLogits(Scaled):
    def fit(self, history, labels, costs):
        self.scale_ = history.logits[: len(labels) // 2].std(axis=(0, 2), dtype=np.float32)
        return self


@dataclass
class LargestLogit(Scorer):
    def score_at(self, history):
        return namespace(history.answer).max(history.answer, axis=1)


@dataclass
class MeanLogit(Scorer):
    """Of the predicted class at the exits so far, where the mean of probabilities was meant."""

    def score_at(self, history):
        xp, index = namespace(history.answers), history.predictions[:, -1:, None]
        index = xp.broadcast_to(index, (*history.predictions.shape, 1))
        return xp.take_along_axis(history.answers, index, axis=2).mean(axis=(1, 2))


NUMBERS = "there is one finite number per sample, or per sample and class"
RESTORED = r"describe\(\) and state\(\) hold everything"
SMALLEST = "it works with two classes, two exits and float16"
OF_ANSWERS = "scores are of what would be answered"
CONSTANTS = "a constant added to all logits changes nothing"

BROKEN_SCORERS = [
    (CurrentExit(), "it is an instance of its base class", "offramp.Scorer is needed, got Curr"),
    (NoScore(), "it can be fitted and run", "NotImplementedError was raised: NoScore must"),
    (SilentScorer(), "fit returns self", "it returned NoneType"),
    (ScorePerClass(), NUMBERS, r"the shape \[48\] is needed, got \[48, 8\] at exit 0"),
    (Counts(), NUMBERS, "floating-point numbers are needed, got int64"),
    (NeverEmpty(), NUMBERS, r"the shape \[0\] is needed, got \[1\] at exit 0"),
    (PeekingScorer(), "nothing sees a later exit", "other logits at later exits, there is a ch"),
    (NotSaved(), RESTORED, "after restoring it, there is a change of"),
    (DicedScorer(), "fit depends only on data, settings and seed", "a change of .* in `scale_`"),
    (BoolMacs(), "macs are counts", "got True at exit 0"),
    (RankedInBatch(), "samples are independent", "alone, there is a change of"),
    (MarkedScorer(), "current_exit_only is true where it is set", "at exit 1; remove the mark"),
    (TopFive(), SMALLEST, "IndexError was raised"),
    (Infinite(), "scores are finite", "where one is huge, got inf at exit 0"),
    (OneSeed(), "every seed gives a scorer", r"the seeds 0 and 1, .* with the seeds \[0\]"),
    (SameSeed(), "every seed gives a scorer", r"the seeds 0 and 1, .* with the seeds \[0, 0\]"),
    (PreparedOtherwise(), r"at_exit\(\) agrees with score_at\(\)", "a change of .* at exit 0"),
    (Overconfident(), r"probability\(\) returns probabilities", "got values from -"),
    (WrongSign(), "higher scores speak for stopping", "0% of the samples .* is the sign wrong"),
    (SignOfEntropy(), "higher scores speak for stopping", "is the sign wrong"),
    (OnlyProbability(), "scores do not saturate", "48 very sure samples have . different scores"),
    (Squashed(), "scores do not saturate", "take history.log_odds or a logarithm"),
    (OfLogits(), OF_ANSWERS, "look at history.answers"),
    (PastOfLogits(), OF_ANSWERS, "with other logits before the answer, there is a change"),
    (
        NoVotes(),
        OF_ANSWERS,
        "it counts votes, and where something else would be answered, there is",
    ),
    (FittedToLogits(), OF_ANSWERS, "fitted with other logits before the answer, .*in `scale_`"),
    (LargestLogit(), CONSTANTS, "a change of up to .* take history.log_probs"),
    (MeanLogit(), CONSTANTS, "a change of up to"),
]
