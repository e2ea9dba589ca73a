"""What a scorer is, and what it may see: the exits so far."""

from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from offramp.component import Component
from offramp.errors import LedgerError
from offramp.ledger import Ledger
from offramp.ledger.checks import WITHOUT_LABELS
from offramp.ledger.chunks import row_slices
from offramp.targets import correctness, soft_correctness


def log_odds(answer: Tensor) -> Tensor:
    """Log-odds of the most probable class, `[n, K]` logits -> `[n]`, without saturation.

    Example:
        >>> log_odds(torch.tensor([[100.0, 0.0], [101.0, 0.0]]))
        tensor([100., 101.])
    """
    top, _, rest = split_top(answer)
    return _odds(top, rest, rest.amax(dim=-1, keepdim=True))


def leading_pair(answer: Tensor) -> tuple[Tensor, Tensor]:
    """Log-odds of the most probable class `[n]`, and the two most probable classes `[n, 2]`.

    Example:
        >>> leading_pair(torch.tensor([[1.0, 4.0, 3.0]]))
        (tensor([0.8731]), tensor([[1, 2]]))
    """
    top, index, rest = split_top(answer)
    second, other = rest.max(dim=-1, keepdim=True)  # together far faster than `topk`
    return _odds(top, rest, second), torch.cat([index, other], dim=-1)


def split_top(answer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logit and its class, `[n, 1]` each, and all logits with it at minus infinity."""
    values = answer.float()
    top, index = values.max(dim=-1, keepdim=True)
    return top, index, values.scatter(-1, index, -torch.inf)


def _odds(top: Tensor, rest: Tensor, second: Tensor) -> Tensor:
    # How far the sum of the others exceeds the largest of them: two operations, not seven.
    beyond = rest.log_softmax(dim=-1).amax(dim=-1, keepdim=True)
    return (top - second + beyond).squeeze(-1)


class History:
    """The exits so far, for n samples.

    Args:
        logits: `[n, m+1, K]` from the heads.
        answers: `[n, m+1, K]` from the `Answer`: what would be answered at each exit.
        answer: `[n, K]`, the last of the answers, if it is at hand.
        lengths: `[n]`, how many exits each sample has, for fits on samples that end early.

    Example:
        >>> history = History(torch.zeros(5, 3, 4), torch.zeros(5, 3, 4))
        >>> history.exit_index, len(history.take(torch.tensor([0, 2])))
        (2, 2)
        >>> history.until(0).answers.shape
        torch.Size([5, 1, 4])
    """

    def __init__(
        self,
        logits: Tensor,
        answers: Tensor,
        answer: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> None:
        self.logits = logits
        self.answers = answers
        self.lengths = lengths
        self._answer = answer
        self._log_probs: Tensor | None = None
        self._predictions: Tensor | None = None

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def exit_index(self) -> int:
        """m, the current exit."""
        return self.logits.shape[1] - 1

    @property
    def num_classes(self) -> int:
        """K."""
        return self.answers.shape[2]

    @property
    def answer(self) -> Tensor:
        """`[n, K]`: what would be answered now."""
        if self._answer is None:
            self._answer = self.answers.select(1, -1)
        return self._answer

    @property
    def log_probs(self) -> Tensor:
        """`[n, m+1, K]` float32: log-probabilities of the answers at the exits so far."""
        if self._log_probs is None:
            self._log_probs = self.answers.float().log_softmax(dim=-1)
        return self._log_probs

    @property
    def log_prob(self) -> Tensor:
        """`[n, K]` float32: log-probabilities of what would be answered now."""
        if self._log_probs is not None:
            return self._log_probs.select(1, -1)
        return self.answer.float().log_softmax(dim=-1)

    @property
    def predictions(self) -> Tensor:
        """`[n, m+1]`: the class that would be answered at each exit so far."""
        if self._predictions is None:
            self._predictions = self.answers.argmax(dim=-1)
        return self._predictions

    @property
    def log_odds(self) -> Tensor:
        """`[n]`: log-odds of what would be answered now, without saturation."""
        return log_odds(self.answer)

    @property
    def confidences(self) -> Tensor:
        """`[n, m+1]`: the probability that each answer so far gives to itself."""
        return self.log_probs.amax(dim=2).exp()

    @property
    def chances(self) -> Tensor:
        """`[n, m+1]`: the probability that the last answer gives to each of those so far."""
        return soft_correctness(self.predictions, self.log_probs[:, -1].exp())

    def losses(self, labels: Tensor) -> Tensor:
        """`[n, m+1]`: negative log-likelihood of the labels under each answer so far."""
        exits = self.exit_index + 1
        flat = self.answers.float().flatten(0, 1), labels.repeat_interleave(exits)
        return cross_entropy(*flat, reduction="none").view(len(labels), -1)

    def goes_on(self, exit_index: int) -> Tensor | None:
        """A bool `[n]`: who has an exit after this one; None where all have."""
        return None if self.lengths is None else self.lengths > exit_index + 1

    def take(self, index: Tensor | slice) -> "History":
        """The same exits for some of the samples."""
        lengths = None if self.lengths is None else self.lengths[index]
        part = type(self)(self.logits[index], self.answers[index], lengths=lengths)
        self._share(part, lambda cached: cached[index])
        return part

    def until(self, exit_index: int) -> "History":
        """What was known at an earlier exit."""
        stop = exit_index + 1
        part = type(self)(self.logits[:, :stop], self.answers[:, :stop], lengths=self.lengths)
        self._share(part, lambda cached: cached[:, :stop])
        return part

    def chunks(self) -> Iterator[tuple[slice, "History"]]:
        """Go through the samples in order, a few at a time."""
        for rows in row_slices(len(self), self.logits[0].numel()):
            yield rows, self.take(rows)

    def _share(self, part: "History", pick: Callable[[Tensor], Tensor]) -> None:
        """Hand on what is already computed: it holds sample by sample and exit by exit."""
        part._log_probs = None if self._log_probs is None else pick(self._log_probs)
        part._predictions = None if self._predictions is None else pick(self._predictions)


class AnswerHistory(History):
    """The stages so far of what answers without logits.

    Args:
        logits: `[n, m+1, 2+F]`: the log-odds that the stage is right, which stage was the first to
            give its answer, and F features.
        answers: The same, of what would be answered at each stage.

    Example:
        >>> said = torch.tensor([[[2.0, 0.0], [-1.0, 1.0], [3.0, 0.0]]])  # a, b, a
        >>> history = AnswerHistory(said, said)
        >>> history.predictions.tolist(), history.agrees.tolist(), history.log_odds.tolist()
        ([[0, 1, 0]], [[True, False, True]], [3.0])
    """

    @property
    def odds(self) -> Tensor:
        """`[n, m+1]` float64: the log-odds of each stage so far.

        In float64, so that a score, rounded to float32, does not depend on how many samples it
        was computed with.
        """
        return self.answers[..., 0].double()

    @property
    def log_odds(self) -> Tensor:
        """`[n]`, of what would be answered now; below zero, it is rather wrong."""
        return self.answer[:, 0]

    @property
    def predictions(self) -> Tensor:
        """`[n, m+1]`: the first stage that gave the answer of each stage."""
        return self.answers[..., 1].long()

    @property
    def agrees(self) -> Tensor:
        """A bool `[n, m+1]`: which stages say what would be answered now."""
        return self.predictions == self.predictions[:, -1:]

    @property
    def features(self) -> Tensor:
        """`[n, m+1, F]` float64."""
        return self.answers[..., 2:].double()

    @property
    def confidences(self) -> Tensor:
        """`[n, m+1]`: the probability that each answer so far is right, as it was stated."""
        return self.answers[..., 0].sigmoid()

    @property
    def chances(self) -> Tensor:
        """`[n, m+1]`: of being right, as far as the last stage can tell.

        Who agrees with it is as sure; who does not is right if it is wrong, and if it is itself.
        """
        own = self.confidences
        return torch.where(self.agrees, own[:, -1:], (1 - own[:, -1:]) * own)

    def losses(self, labels: Tensor) -> Tensor:
        """`[n, m+1]`: negative log-likelihood of being right or wrong."""
        right = correctness(self.predictions, labels)
        odds = self.answers[..., 0]
        return softplus(torch.where(right, -odds, odds))

    def inputs(self, history: bool) -> Tensor:
        """Confidence, agreement and features, now or at all stages so far: `[n, D]` float64."""
        agrees = self.agrees[..., None].double()
        seen = torch.cat([self.odds[..., None].sigmoid(), agrees, self.features], dim=2)
        return seen.flatten(1) if history else seen[:, -1]


class ConfidenceHistory(AnswerHistory):
    """The same where nobody knows what was answered: no two stages are known to agree."""

    @property
    def chances(self) -> Tensor:
        """`[n, m+1]`: each stage can only speak for itself."""
        return self.confidences


HISTORIES = {"logits": History, "answers": AnswerHistory, "confidences": ConfidenceHistory}
"""How the outputs of ledgers of each kind are read."""


def ledger_history(ledger: Ledger, answers: Tensor) -> History:
    """All exits of a ledger, with what would be answered at each `[N, M, K]`."""
    return HISTORIES[ledger.kind](ledger.outputs, answers, lengths=ledger.lengths)


class Scorer(Component):
    """Is it time to stop? Higher scores say yes.

    An own scorer is a dataclass that overrides `score_at`, and `fit` with `learned` if there is
    something to learn. Scores decide the order of samples at one exit, on a scale that must not
    saturate: samples that share a score cannot be told apart by any threshold. They are not
    probabilities; `probability` turns them into one where the scorer has one.
    """

    @property
    def learns(self) -> bool:
        """Whether there is anything to fit."""
        return bool(self.learned) or type(self).fit is not Scorer.fit

    @property
    def reads_history(self) -> bool:
        """Whether earlier exits are read: unless `score_at` is marked `current_exit_only`."""
        return getattr(type(self).score_at, "reads_history", True)

    def fit(self, history: History, labels: Tensor, costs: Tensor) -> Self:
        """Learn to score from held_out samples; a scorer with nothing to learn does nothing.

        Args:
            history: All exits of the held_out samples.
            labels: `[N]`.
            costs: `[M]`, cumulative; `[N, M]` where they differ from sample to sample.
        """
        return self

    def fit_unlabelled(self, history: History, costs: Tensor) -> Self:
        """Learn without labels; a scorer that needs them raises, unless it learns nothing.

        Args:
            history: All exits of the held_out samples.
            costs: `[M]`, cumulative; `[N, M]` where they differ from sample to sample.

        Raises:
            LedgerError: With what works without labels.
        """
        if self.learns:
            raise LedgerError(f"{type(self).__name__} learns from labels, {WITHOUT_LABELS}")
        return self

    def samples_wanted(self, num_exits: int, num_classes: int) -> int:
        """With fewer held_out samples than these the fit is likely to overfit; 0 if never."""
        return 0

    def fit_seeds(
        self, history: History, labels: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> list[Self]:
        """One fitted scorer per seed, or one in all where the fit is not random."""
        if "seed" not in self.settings():
            return [self.clone().fit(history, labels, costs)]
        return [self.clone(seed=seed).fit(history, labels, costs) for seed in seeds]

    def score_at(self, history: History) -> Tensor:
        """The stop score of each sample, `[n]`, at the last of the exits so far.

        Scores are kept in float32: differences that only float64 can hold are lost.
        """
        raise NotImplementedError(f"{type(self).__name__} must define score_at")

    def at_exit(self, exit_index: int, num_classes: int) -> "Scoring":
        """`score_at` at one exit, with what is the same for all samples worked out beforehand.

        A runner asks for it once per exit: to look up the weights of an exit takes as long as
        to score a sample. An own scorer need not define it.
        """
        return self.score_at

    def probability(self, scores: Tensor) -> Tensor | None:
        """The value in [0, 1] that calibration is about, or None where the scorer has none."""
        return None

    def macs(self, exit_index: int, num_classes: int) -> int:
        """Multiply-accumulates that scoring takes at one exit."""
        return 0


Scoring: TypeAlias = Callable[[History], Tensor]
"""From the exits so far to one stop score per sample, `[n]`."""


class PreparedScorer(Scorer):
    """Parent of scorers that look their weights up once per exit: they define `_prepared`."""

    def _prepared(self, exit_index: int, num_classes: int) -> Scoring:
        raise NotImplementedError

    def score_at(self, history: History) -> Tensor:
        """The stop score of each sample, `[n]`, at the last of the exits so far."""
        return self._prepared(history.exit_index, history.num_classes)(history)

    def at_exit(self, exit_index: int, num_classes: int) -> Scoring:
        """Prepared, unless a subclass scores in a way of its own."""
        if type(self).score_at is not PreparedScorer.score_at:
            return self.score_at
        return self._prepared(exit_index, num_classes)
