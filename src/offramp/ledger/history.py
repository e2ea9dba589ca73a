"""What was known at the exits so far: `History` of logits, `AnswerHistory` of answers without."""

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from offramp.arrays import (
    AnyArray,
    Array,
    float32,
    float64,
    largest,
    log_softmax,
    namespace,
    sigmoid,
    softplus,
    top_indices,
    values_at,
)
from offramp.ledger.chunks import row_slices
from offramp.targets import correctness, soft_correctness


def log_odds(answer: AnyArray) -> AnyArray:
    """Log-odds of the most probable class, `[n, K]` logits -> `[n]`, without saturation.

    Example:
        >>> log_odds(np.array([[100.0, 0.0], [101.0, 0.0]]))
        array([100., 101.], dtype=float32)
    """
    if _is_one(answer):
        return _leading_of_one(answer)[0]
    top, _, rest = split_top(answer)
    return _odds(top, rest, largest(rest))


def leading_pair(answer: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Log-odds of the most probable class `[n]`, and the two most probable classes `[n, 2]`.

    Example:
        >>> odds, classes = leading_pair(np.array([[1.0, 4.0, 3.0]]))
        >>> odds.round(4), classes
        (array([0.8731], dtype=float32), array([[1, 2]]))
    """
    if _is_one(answer):
        odds, best, second = _leading_of_one(answer)
        return odds, np.array([[best, second]])
    top, index, rest = split_top(answer)
    other = rest.argmax(axis=-1, keepdims=True)
    return _odds(top, rest, values_at(rest, other)), namespace(rest).concat(
        [index, other], axis=-1
    )


def split_top(answer: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
    """The largest logit and its class, `[n, 1]` each, and all logits with it at minus infinity."""
    values = float32(answer)
    xp = namespace(values)
    index = values.argmax(axis=-1, keepdims=True)
    if xp is not np:
        return largest(values), index, values.scatter(-1, index, -math.inf)
    rest = values.copy()
    top = np.take_along_axis(values, index, axis=-1)
    np.put_along_axis(rest, index, -math.inf, axis=-1)
    return top, index, rest


def _odds(top: AnyArray, rest: AnyArray, second: AnyArray) -> AnyArray:
    xp = namespace(rest)
    # How far the sum of the others exceeds the largest of them.
    beyond = xp.log(xp.exp(rest - second).sum(axis=-1))
    return (top - second)[..., 0] - beyond


def _is_one(answer: AnyArray) -> bool:
    return isinstance(answer, np.ndarray) and answer.ndim == 2 and len(answer) == 1


def _leading_of_one(answer: Array) -> tuple[Array, int, int]:
    """Log-odds `[1]` and the two most probable classes of `[1, K]`, in half of the time."""
    rest = answer[0].astype(np.float32)  # a copy
    best = int(rest.argmax())
    top, rest[best] = rest[best], -math.inf
    second = int(rest.argmax())
    lead = top - rest[second : second + 1]
    rest -= rest[second]
    np.exp(rest, out=rest)
    return lead - np.log(np.add.reduce(rest, keepdims=True)), best, second


class History:
    """The exits so far, for n samples.

    Attributes:
        exit_index: m, the current exit.
        name: What the stages have put out, in files and messages.
        offers: What a component may need of a stage; see `Component.needs`.
        has_logits: Whether there are logits of classes.

    Args:
        logits: `[n, m+1, K]` from the heads.
        answers: `[n, m+1, K]` from the `Answer`: what would be answered at each exit.
        answer: `[n, K]`, the last of the answers, if it is at hand.
        lengths: `[n]`, how many exits each sample has, for fits on samples that end early.
        exit_index: The current exit, where earlier ones are left out since nothing reads them.
        known: `log_probs` and `predictions`, if they are at hand.
        rows: `[n]`, which samples of the arrays these are; all of them by default.

    Example:
        >>> history = History(np.zeros((5, 3, 4)), np.zeros((5, 3, 4)))
        >>> history.exit_index, len(history.take(np.array([0, 2])))
        (2, 2)
        >>> history.until(0).answers.shape
        (5, 1, 4)
    """

    name: ClassVar[str] = "logits"
    offers: ClassVar[tuple[str, ...]] = ("logits", "answers", "confidences")
    has_logits: ClassVar[bool] = True

    def __init__(
        self,
        logits: AnyArray,
        answers: AnyArray,
        answer: AnyArray | None = None,
        lengths: Array | None = None,
        exit_index: int | None = None,
        known: tuple[AnyArray, AnyArray] | None = None,
        rows: Array | None = None,
    ) -> None:
        self._logits, self._all_answers, self._rows = logits, answers, rows
        self.lengths = lengths
        self.exit_index = logits.shape[1] - 1 if exit_index is None else exit_index
        self.groups: Array | None = None  # numbers `[n]`, of the samples of a ledger with groups
        self._answer = answer
        self._log_probs: AnyArray | None = None
        self._predictions: AnyArray | None = None
        if known is not None:
            self._log_probs, self._predictions = known

    def __len__(self) -> int:
        return len(self._logits if self._rows is None else self._rows)

    @property
    def logits(self) -> AnyArray:
        """`[n, m+1, K]` from the heads."""
        return self._logits if self._rows is None else self._logits[self._rows]

    @property
    def answers(self) -> AnyArray:
        """`[n, m+1, K]`: what would be answered at each exit."""
        return self._all_answers if self._rows is None else self._all_answers[self._rows]

    @property
    def xp(self) -> Any:  # noqa: ANN401 - a module
        """The functions of the array API standard for these arrays, NumPy's or torch's."""
        return namespace(self._all_answers)

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self._all_answers.shape[2])

    @property
    def answer(self) -> AnyArray:
        """`[n, K]`: what would be answered now."""
        if self._answer is None:
            self._answer = self.answers[:, -1]
        return self._answer

    @property
    def log_probs(self) -> AnyArray:
        """`[n, m+1, K]` float32: log-probabilities of the answers at the exits so far."""
        if self._log_probs is None:
            self._log_probs = log_softmax(float32(self.answers))
        return self._log_probs

    @property
    def log_prob(self) -> AnyArray:
        """`[n, K]` float32: log-probabilities of what would be answered now."""
        if self._log_probs is not None:
            return self._log_probs[:, -1]
        return log_softmax(float32(self.answer))

    @property
    def predictions(self) -> AnyArray:
        """`[n, m+1]`: the class that would be answered at each exit so far."""
        if self._predictions is None:
            self._predictions = self.answers.argmax(-1)
        return self._predictions

    @property
    def log_odds(self) -> AnyArray:
        """`[n]`: log-odds of what would be answered now, without saturation."""
        return log_odds(self.answer)

    @property
    def odds(self) -> AnyArray:
        """`[n, m+1]` float64: log-odds of each answer so far.

        In float64, so that a score, rounded to float32, does not depend on how many samples it
        was computed with.
        """
        return float64(log_odds(self.answers))

    @property
    def agrees(self) -> AnyArray:
        """A bool `[n, m+1]`: which answers so far are what would be answered now."""
        return self.predictions == self.predictions[:, -1:]

    @property
    def features(self) -> AnyArray:
        """`[n, m+1, F]` float64: what else the stages state; nothing where there are logits."""
        return float64(self.answers[..., :0])

    @property
    def confidences(self) -> AnyArray:
        """`[n, m+1]`: the probability that each answer so far gives to itself."""
        xp = namespace(self.log_probs)
        return xp.exp(xp.max(self.log_probs, axis=2))

    @property
    def chances(self) -> AnyArray:
        """`[n, m+1]`: the probability that the last answer gives to each of those so far."""
        return soft_correctness(self.predictions, np.exp(self.log_probs[:, -1]))

    def inputs(self, past: bool, top: int) -> AnyArray:
        """Probabilities of the likeliest classes of what would be answered now, `[n, D]`.

        Args:
            past: Also at every exit so far, in the current exit's order.
            top: How many classes.
        """
        # Without the past, the earlier exits may never have been run.
        seen = self.log_probs if past else self.log_prob[:, None]
        xp, index = namespace(seen), top_indices(seen[:, -1], top)
        if len(seen) == 1:
            chosen = seen[:, :, index[0]]
        else:
            places = xp.broadcast_to(index[:, None], (*seen.shape[:2], top))
            chosen = xp.take_along_axis(seen, places, axis=2)
        return xp.reshape(xp.exp(chosen), (len(seen), chosen.shape[1] * top))

    def losses(self, labels: Array) -> AnyArray:
        """`[n, m+1]`: negative log-likelihood of the labels under each answer so far."""
        return -np.take_along_axis(self.log_probs, labels[:, None, None], axis=2)[..., 0]

    def goes_on(self, exit_index: int) -> Array | None:
        """A bool `[n]`: who has an exit after this one; None where all have."""
        return None if self.lengths is None else self.lengths > exit_index + 1

    def take(self, index: AnyArray | slice) -> "History":
        """The same exits for some of the samples."""
        lengths = None if self.lengths is None else self.lengths[index]
        rows = index if self._rows is None else self._rows[index]
        part = type(self)(self._logits[rows], self._all_answers[rows], lengths=lengths)
        part.groups = None if self.groups is None else self.groups[index]
        self._share(part, lambda cached: cached[index])
        return part

    def among(self, index: Array) -> "History":
        """The same, copied when it is read and not before: a few samples at a time by `chunks`."""
        lengths = None if self.lengths is None else self.lengths[index]
        rows = index if self._rows is None else self._rows[index]
        part = type(self)(self._logits, self._all_answers, lengths=lengths, rows=rows)
        part.groups = None if self.groups is None else self.groups[index]
        self._share(part, lambda cached: cached[index])
        return part

    def until(self, exit_index: int) -> "History":
        """What was known at an earlier exit."""
        stop = exit_index + 1
        so_far = self._logits[:, :stop], self._all_answers[:, :stop]
        part = type(self)(*so_far, lengths=self.lengths, rows=self._rows)
        self._share(part, lambda cached: cached[:, :stop])
        return part

    def chunks(self) -> Iterator[tuple[slice, "History"]]:
        """Go through the samples in order, a few at a time."""
        for rows in row_slices(len(self), math.prod(self._logits.shape[1:])):
            yield rows, self.take(rows)

    def _share(self, part: "History", pick: Callable[[AnyArray], AnyArray]) -> None:
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
        >>> said = np.array([[[2.0, 0.0], [-1.0, 1.0], [3.0, 0.0]]])  # a, b, a
        >>> history = AnswerHistory(said, said)
        >>> history.predictions.tolist(), history.agrees.tolist(), history.log_odds.tolist()
        ([[0, 1, 0]], [[True, False, True]], [3.0])
    """

    name = "answers"
    offers: ClassVar[tuple[str, ...]] = ("answers", "confidences")
    has_logits = False

    @property
    def odds(self) -> AnyArray:
        """`[n, m+1]` float64: the log-odds that each stage so far is right, as it was stated."""
        return float64(self.answers[..., 0])

    @property
    def log_odds(self) -> AnyArray:
        """`[n]`, of what would be answered now; below zero, it is rather wrong."""
        return self.answer[:, 0]

    @property
    def predictions(self) -> AnyArray:
        """`[n, m+1]`: the first stage that gave the answer of each stage."""
        said = self.answers[..., 1]
        return namespace(said).astype(said, namespace(said).int64)

    @property
    def features(self) -> AnyArray:
        """`[n, m+1, F]` float64: what else the stages state."""
        return float64(self.answers[..., 2:])

    @property
    def confidences(self) -> AnyArray:
        """`[n, m+1]`: the probability that each answer so far is right, as it was stated."""
        return sigmoid(self.answers[..., 0])

    @property
    def chances(self) -> AnyArray:
        """`[n, m+1]`: of being right, as far as the last stage can tell.

        Who agrees with it is as sure; who does not is right if it is wrong, and if it is itself.
        """
        own = self.confidences
        return np.where(self.agrees, own[:, -1:], (1 - own[:, -1:]) * own)

    def losses(self, labels: Array) -> AnyArray:
        """`[n, m+1]`: negative log-likelihood of being right or wrong."""
        right = correctness(self.predictions, labels)
        odds = self.answers[..., 0]
        return softplus(np.where(right, -odds, odds))

    def inputs(self, past: bool, top: int) -> AnyArray:
        """Confidence, agreement and features, now or at all stages so far: `[n, D]` float64."""
        xp, agrees = namespace(self.answers), float64(self.agrees[..., None])
        seen = xp.concat([sigmoid(self.odds)[..., None], agrees, self.features], axis=2)
        return seen.reshape(len(seen), -1) if past else seen[:, -1]


def voted_stage(said: AnyArray, sure: AnyArray) -> AnyArray:
    """The first stage that gave what most stages say, `[n, 1]`; of equals, the surer answer.

    Args:
        said: `[n, m+1]`, which stage was the first to give the answer of each.
        sure: `[n, m+1]` in [0, 1], how much the vote of each counts where votes are equal.
    """
    xp = namespace(said)
    same = float64(said[:, :, None] == said[:, None, :])  # [n, m+1, m+1]
    votes, weight = xp.sum(same, axis=2), xp.sum(same * sure[:, None, :], axis=2)
    # Confidences sum to less than one vote per stage: they only break ties.
    return xp.argmax(votes + weight / (2 * said.shape[1]), axis=1, keepdims=True)


class VoteHistory(AnswerHistory):
    """The same where no stage states a confidence: all that can be done is to count votes."""

    name = "votes"
    offers = ("answers",)


class ConfidenceHistory(AnswerHistory):
    """The same where nobody knows what was answered: no two stages are known to agree."""

    name = "confidences"
    offers = ("confidences",)

    @property
    def chances(self) -> AnyArray:
        """`[n, m+1]`: each stage can only speak for itself."""
        return self.confidences


HISTORIES = {each.name: each for each in (History, AnswerHistory, VoteHistory, ConfidenceHistory)}
"""By the names that stand in files."""
