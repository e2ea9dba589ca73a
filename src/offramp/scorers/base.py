"""What a scorer is."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Self, TypeAlias

from offramp.arrays import AnyArray, Array
from offramp.component import Component
from offramp.errors import LedgerError
from offramp.ledger import History
from offramp.ledger.checks import WITHOUT_LABELS


class Scorer(Component):
    """Is it time to stop? Higher scores say yes.

    An own scorer is a dataclass that overrides `score_at`, and `fit` with `learned` if there is
    something to learn. Scores decide the order of samples at one exit, on a scale that must not
    saturate: samples that share a score cannot be told apart by any threshold. They are not
    probabilities; `probability` turns them into one where the scorer has one.

    Attributes:
        counts_votes: Whether it reads what each exit says by itself, `history.logits`, and not
            what would be answered, `history.answers`.
    """

    counts_votes: ClassVar[bool] = False

    @property
    def learns(self) -> bool:
        """Whether there is anything to fit."""
        return bool(self.learned) or type(self).fit is not Scorer.fit

    @property
    def reads_history(self) -> bool:
        """Whether earlier exits are read: unless `score_at` is marked `current_exit_only`."""
        return getattr(type(self).score_at, "reads_history", True)

    def fit(self, history: History, labels: Array, costs: Array) -> Self:
        """Learn to score from held_out samples; a scorer with nothing to learn does nothing.

        Args:
            history: All exits of the held_out samples.
            labels: `[N]`.
            costs: `[M]`, cumulative; `[N, M]` where they differ from sample to sample.
        """
        return self

    def fit_unlabelled(self, history: History, costs: Array) -> Self:
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

    def check_can_fit(self) -> None:
        """Raise where a fit needs what is not installed, before anything else is done."""

    def samples_wanted(self, num_exits: int, num_classes: int) -> int:
        """With fewer held_out samples than these the fit is likely to overfit; 0 if never."""
        return 0

    def fit_seeds(
        self, history: History, labels: Array, costs: Array, seeds: Sequence[int]
    ) -> list[Self]:
        """One fitted scorer per seed, or one in all where the fit is not random."""
        if "seed" not in self.settings():
            return [self.clone().fit(history, labels, costs)]
        return [self.clone(seed=seed).fit(history, labels, costs) for seed in seeds]

    def score_at(self, history: History) -> AnyArray:
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

    def probability(self, scores: AnyArray) -> AnyArray | None:
        """The value in [0, 1] that calibration is about, or None where the scorer has none."""
        return None

    def macs(self, exit_index: int, num_classes: int) -> int:
        """Multiply-accumulates that scoring takes at one exit."""
        return 0


Scoring: TypeAlias = Callable[[History], AnyArray]
"""From the exits so far to one stop score per sample, `[n]`."""


class PreparedScorer(Scorer):
    """Parent of scorers that look their weights up once per exit: they define `_prepared`."""

    def _prepared(self, exit_index: int, num_classes: int) -> Scoring:
        raise NotImplementedError

    def score_at(self, history: History) -> AnyArray:
        """The stop score of each sample, `[n]`, at the last of the exits so far."""
        return self._prepared(history.exit_index, history.num_classes)(history)

    def at_exit(self, exit_index: int, num_classes: int) -> Scoring:
        """Prepared, unless a subclass scores in a way of its own."""
        if type(self).score_at is not PreparedScorer.score_at:
            return self.score_at
        return self._prepared(exit_index, num_classes)
