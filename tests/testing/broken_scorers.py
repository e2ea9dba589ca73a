"""Scorers that break one promise each, and a sound one for them to break."""

from dataclasses import dataclass

import torch

from offramp import Scorer
from offramp.answers import CurrentExit
from offramp.component import current_exit_only
from offramp.ledger.history import log_odds
from offramp.scorers import Entropy


@dataclass
class Scaled(Scorer):
    """A correct scorer that learns, for the others to break."""

    learned = ("scale_",)

    def fit(self, history, labels, costs):
        self.scale_ = history.answers.float().std(dim=(0, 2))  # [M]
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
        return history.answer.argmax(dim=1)


@dataclass
class NeverEmpty(Scaled):
    def score_at(self, history):
        return super().score_at(history) if len(history) else torch.zeros(1)


@dataclass
class Infinite(Scaled):
    def score_at(self, history):
        scores = history.log_odds
        return torch.where(scores > 1e4, torch.inf, scores)


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
        return history.log_odds.argsort().argsort().float()


@dataclass
class PeekingScorer(Scaled):
    def score_at(self, history):
        whole = history.answers if history.answers._base is None else history.answers._base
        return log_odds(whole[: len(history), -1])


@dataclass
class MarkedScorer(Scaled):
    @current_exit_only
    def score_at(self, history):
        return history.log_probs.amax(dim=(1, 2)) + super().score_at(history)


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
        return history.answer.float().softmax(dim=1).amax(dim=1)


@dataclass
class Squashed(Scaled):
    def score_at(self, history):
        return super().score_at(history).sigmoid()


@dataclass
class OfLogits(Scorer):
    def score_at(self, history):
        return log_odds(history.logits[:, -1])


@dataclass
class PastOfLogits(Scorer):
    def score_at(self, history):
        agree = history.logits.argmax(dim=2) == history.predictions[:, -1:]
        return history.log_odds + agree.float().mean(dim=1)


@dataclass
class FittedToLogits(Scaled):
    def fit(self, history, labels, costs):
        self.scale_ = history.logits[: len(labels) // 2].float().std(dim=(0, 2))
        return self


@dataclass
class LargestLogit(Scorer):
    def score_at(self, history):
        return history.answer.amax(dim=1)


@dataclass
class MeanLogit(Scorer):
    """Of the predicted class at the exits so far, where the mean of probabilities was meant."""

    def score_at(self, history):
        index = history.predictions[:, -1:, None].expand(-1, history.exit_index + 1, -1)
        return history.answers.gather(2, index).mean(dim=(1, 2))


BROKEN_SCORERS = [
    (WrongSign(), "higher scores speak for stopping", "0% of the pairs do: is the sign wrong"),
    (SignOfEntropy(), "higher scores speak for stopping", "is the sign wrong"),
    (OnlyProbability(), "scores do not saturate", "48 samples have . different scores at exit 0"),
    (Squashed(), "scores do not saturate", "take history.log_odds or a logarithm"),
    (OfLogits(), "scores are of what would be answered", "score_at to look at history.answers"),
    (PastOfLogits(), "scores are of what would be answered", "change scores at exit 0"),
    (FittedToLogits(), "scores are of what would be answered", "the answer change `scale_`"),
    (LargestLogit(), "a constant added to all logits changes nothing", "change of up to"),
    (MeanLogit(), "a constant added to all logits changes nothing", "change of up to"),
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
