"""What a scorer is, and what it may see: the exits so far."""

from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeAlias

from torch import Tensor

from offramp.component import Component
from offramp.errors import LedgerError
from offramp.ledger.checks import WITHOUT_LABELS
from offramp.ledger.chunks import row_slices


class History:
    """The exits so far, for n samples.

    Args:
        logits: `[n, m+1, K]` from the heads.
        answers: `[n, m+1, K]` from the `Answer`: what would be answered at each exit.
        answer: `[n, K]`, the last of the answers, if it is at hand.

    Example:
        >>> import torch
        >>> history = History(torch.zeros(5, 3, 4), torch.zeros(5, 3, 4))
        >>> history.exit_index, len(history.take(torch.tensor([0, 2])))
        (2, 2)
        >>> history.until(0).answers.shape
        torch.Size([5, 1, 4])
    """

    def __init__(self, logits: Tensor, answers: Tensor, answer: Tensor | None = None) -> None:
        self.logits = logits
        self.answers = answers
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

    def take(self, index: Tensor | slice) -> "History":
        """The same exits for some of the samples."""
        part = History(self.logits[index], self.answers[index])
        self._share(part, lambda cached: cached[index])
        return part

    def until(self, exit_index: int) -> "History":
        """What was known at an earlier exit."""
        stop = exit_index + 1
        part = History(self.logits[:, :stop], self.answers[:, :stop])
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
