"""Answers that use every exit so far: products and weighted geometric means."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from offramp import check
from offramp.answers.base import Answer
from offramp.answers.scaling import fit_linear
from offramp.arrays import (
    AnyArray,
    Array,
    float32,
    float64,
    log_softmax,
    namespace,
    sigmoid,
    softmax,
)
from offramp.ledger import History, Ledger
from offramp.ledger.history import AnswerHistory, VoteHistory, voted_stage


@dataclass
class ProductOfExperts(Answer):
    """Multiply the probabilities of all exits so far.

    The sum of raw logits differs from the sum of log-probabilities by a constant per sample,
    which no softmax sees.

    Example:
        >>> ProductOfExperts().answer_at(np.array([[[1.0, 0.0], [0.0, 3.0]]]))
        array([[1., 3.]])
    """

    def answer_at(self, logits: AnyArray) -> AnyArray:
        """The sum of the exits so far, `[n, m+1, K]` -> `[n, K]`."""
        return namespace(logits).sum(logits, axis=1)

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One addition per class and exit so far, each counted as a multiply-accumulate."""
        return (exit_index + 1) * num_classes


@dataclass
class MajorityVote(Answer):
    """Answer what most exits so far say; of answers with as many votes, the surer one.

    Of logits, the votes are shared out as probabilities; half a vote goes to the mean
    probabilities, which breaks ties. Of answers without logits, the vote is as sure as its voters:
    their summed confidence by the number of stages. Where none states a confidence, that is the
    share of the votes.

    Args:
        of: `logits`, `answers`, or `votes`, which are answers without confidences; a policy sets
            it to what its ledger holds.

    Example:
        >>> logits = np.array([[[1.0, 0.0], [0.0, 3.0], [2.0, 0.0]]])
        >>> MajorityVote().answer_at(logits).argmax(axis=1)
        array([0])
        >>> MajorityVote().answer_at(logits[:, :2]).round(4)
        array([[-0.7385, -0.6498]], dtype=float32)
    """

    of: str = "logits"
    needs = "answers"

    def __post_init__(self) -> None:
        check.one_of("of", self.of, ("logits", "answers", "votes"))

    def on(self, history_type: type[History]) -> Self:
        """A copy that counts what such ledgers hold."""
        return super().on(history_type).clone(of=history_type.name)

    def gives(self, history_type: type[History]) -> type[History]:
        """Votes have a confidence even where answers have none."""
        return AnswerHistory if history_type is VoteHistory else history_type

    def answer_at(self, logits: AnyArray) -> AnyArray:
        """The vote of the exits so far, `[n, m+1, K]` -> `[n, K]`."""
        if self.of != "logits":
            return _voted(logits, self.of == "answers")
        xp = namespace(logits)
        best, classes = xp.argmax(logits, axis=2), xp.arange(logits.shape[2], device=logits.device)
        votes = float32(xp.sum(xp.astype(best[..., None] == classes, xp.int64), axis=1))
        shares = votes + 0.5 * xp.mean(softmax(float32(logits)), axis=1)
        return xp.log(shares / xp.sum(shares, axis=1, keepdims=True))

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One addition per class and exit so far, each counted as a multiply-accumulate."""
        return (exit_index + 1) * num_classes


def _voted(outputs: AnyArray, is_stated: bool) -> AnyArray:
    """The row `[n, 2+F]` of a vote over stages without logits `[n, m+1, 2+F]`."""
    xp, said, odds = namespace(outputs), outputs[..., 1], float64(outputs[..., 0])
    sure = sigmoid(odds) if is_stated else xp.ones_like(odds)  # else, each counts as one vote
    winner = voted_stage(said, sure)  # [n, 1]
    weight = xp.sum(sure * float64(said == xp.take_along_axis(said, winner, axis=1)), axis=1)
    share = xp.clip(weight[:, None] / outputs.shape[1], 1e-12, 1 - 1e-12)
    odds = xp.astype(xp.log(share) - xp.log1p(-share), outputs.dtype)
    return xp.concat([odds, xp.take_along_axis(said, winner, axis=1), outputs[:, -1, 2:]], axis=1)


@dataclass
class GeometricEnsemble(Answer):
    """Weighted geometric mean of the exits so far; the weights are fitted at each exit.

    The weights are non-negative and chosen by the likelihood of held_out, exit by exit. The
    loss is convex in them, so the fit needs no seed.

    Args:
        shrinkage: How strongly the weights are drawn to the current exit alone: this times their
            squared distance from it is added to the loss.

    Attributes:
        weights_: `[M, M]`, row m weighs the exits 0..m, zero above the diagonal.

    Example:
        >>> from offramp import synthetic
        >>> answer = GeometricEnsemble().fit(synthetic.ledgers(seed=0)["held_out"])
        >>> answer.weights_.shape, bool((answer.weights_ >= 0).all())
        ((8, 8), True)
    """

    shrinkage: float = 0.0
    learned = ("weights_",)
    folds = 2  # a weight per exit is learned well enough from half of the samples

    def __post_init__(self) -> None:
        check.at_least("shrinkage", self.shrinkage, 0)

    def _fit(self, ledger: Ledger) -> None:
        samples = _Samples(ledger.logits, ledger.labels)
        weights = np.zeros((ledger.num_exits, ledger.num_exits), np.float32)
        found = np.empty(0)
        for exit_index in range(ledger.num_exits):
            start = np.append(0.5 * found, 0.5 if exit_index else 1.0)
            found = samples.best_weights(start, self.shrinkage)
            weights[exit_index, : exit_index + 1] = found
        self.weights_ = weights

    def answer_at(self, logits: AnyArray) -> AnyArray:
        """The weighted sum of the exits so far, `[n, m+1, K]` -> `[n, K]`."""
        exit_index = logits.shape[1] - 1
        weighted = logits * self.weights_[exit_index, : exit_index + 1, None]
        return namespace(logits).sum(weighted, axis=1)

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One multiply-accumulate per class and exit so far."""
        return (exit_index + 1) * num_classes


STEPS = 50  # of Newton's method; about five are needed
SMALL_STEP = 1e-4  # in the loss; the next one would be far smaller
COARSE = 400  # samples that give a start, where there are twice as many or more
COARSE_STEP = 1e-2  # small enough there: other samples would move the optimum by more
CHUNK = 1024  # samples at a time
KEPT = 1 << 26  # logits that are held in float32; of more samples, some are enough for M weights


def best_weights(logits: Array, labels: Array, shrinkage: float = 0.0) -> Array:
    """Non-negative weights `[M]` of the smallest loss on `[N, M, K]`.

    Args:
        logits: `[N, M, K]`.
        labels: `[N]`.
        shrinkage: See `GeometricEnsemble`.
    """
    alone = np.eye(logits.shape[1])[-1]
    return _Samples(logits, labels).best_weights(alone, shrinkage)


class _Samples:
    """What weighted geometric means of the first exits are fitted to.

    Args:
        logits: `[N, M, K]`.
        labels: `[N]`.
        small: In the loss: what a last step may promise.
    """

    def __init__(self, logits: Array, labels: Array, small: float = SMALL_STEP) -> None:
        every = -(-logits.size // KEPT)
        logits, labels = logits[::every], labels[::every]
        self.count, self.small = len(labels), small
        self.parts = list(_Chunks(logits, labels))
        stride = self.count // COARSE
        self.few: _Samples | None = None
        if stride > 1:
            self.few = _Samples(logits[::stride], labels[::stride], COARSE_STEP)

    def best_weights(self, start: Array, shrinkage: float) -> Array:
        """Non-negative weights `[m+1]` of the smallest loss, for as many exits as `start` has.

        By Newton's method, where weights at zero that want to go below are held there.
        """
        if self.few is not None:  # the first steps need not be exact
            start = self.few.best_weights(start, shrinkage)
        weights = start.astype(np.float64)
        loss, gradient, hessian = self._derivatives(weights, shrinkage)
        for _ in range(STEPS):
            free = (weights > 0) | (gradient < 0)
            step = np.zeros_like(weights)
            step[free] = np.linalg.solve(hessian[free][:, free], gradient[free])
            if gradient @ step < self.small:  # Newton's method squares what is left
                return np.maximum(weights - step, 0).astype(np.float32)
            for halvings in range(10):
                new = np.maximum(weights - step / 2**halvings, 0)
                found = self._derivatives(new, shrinkage)
                if found[0] <= loss:
                    break
            else:
                break
            weights, (loss, gradient, hessian) = new, found
        return weights.astype(np.float32)

    def _derivatives(self, weights: Array, shrinkage: float) -> tuple[float, Array, Array]:
        """Mean loss with the penalty, its gradient `[m+1]` and Hessian `[m+1, m+1]`."""
        exits, loss = len(weights), 0.0
        eye = np.eye(exits)
        gradient, hessian = np.zeros_like(weights), np.zeros_like(eye)
        for rows, classes in self.parts:
            logits = rows[:exits]  # [m+1, n, K]
            flat, samples = logits.reshape(exits, -1), np.arange(len(classes))
            mixed = weights.astype(np.float32) @ flat
            log_probs = log_softmax(mixed.reshape(logits.shape[1:]))
            loss -= float(log_probs[samples, classes].sum(dtype=np.float64))
            expected = flat * np.exp(log_probs).ravel()
            means = expected.reshape(logits.shape).sum(axis=2)  # [m+1, n]
            target = logits[:, samples, classes]
            gradient += (means - target).sum(axis=1, dtype=np.float64)
            hessian += expected @ flat.T - means @ means.T
        # The current exit alone is the answer that an ensemble has to improve on.
        away = weights - eye[-1]
        loss = loss / self.count + shrinkage * float(away @ away)
        gradient = gradient / self.count + 2 * shrinkage * away
        return loss, gradient, hessian / self.count + (2 * shrinkage + 1e-6) * eye


@dataclass(frozen=True)
class _Chunks:
    """Logits as float32 `[M, n, K]`, with labels, a few samples at a time."""

    logits: Array
    labels: Array

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        for start in range(0, len(self.labels), CHUNK):
            rows = slice(start, start + CHUNK)
            values = np.ascontiguousarray(self.logits[rows].swapaxes(0, 1), np.float32)
            # No softmax sees a constant, and float32 sums are more exact without it.
            yield values - values.mean(axis=2, keepdims=True), self.labels[rows]


@dataclass
class ClassWiseEnsemble(Answer):
    """A weighted sum of the exits so far, with a weight per exit and class, and a bias per class.

    Early exits may be good at some classes and poor at others. There are K times as many weights
    as in a `GeometricEnsemble`, so they are drawn to that one's, which are fitted first. The fit
    needs the logits of held_out in memory, in float32.

    Args:
        shrinkage: How strongly: this times the squared distance from them, and times the squared
            biases, is added to the loss. A large value gives the `GeometricEnsemble`. Of 0.001,
            0.01, 0.03 and 0.1, the largest had the smallest loss by cross-validation on the
            held_out split of a nine-exit CIFAR-100 network.

    Attributes:
        weights_: `[M, M, K]`, row m weighs the exits 0..m, zero above the diagonal.
        biases_: `[M, K]`.

    Example:
        >>> from offramp import synthetic
        >>> answer = ClassWiseEnsemble().fit(synthetic.ledgers(seed=0, samples=200)["held_out"])
        >>> answer.weights_.shape, answer.macs(exit_index=2, num_classes=20)
        ((8, 8, 20), 60)
    """

    shrinkage: float = 0.1
    learned = ("weights_", "biases_")

    def __post_init__(self) -> None:
        check.at_least("shrinkage", self.shrinkage, 0)

    def _fit(self, ledger: Ledger) -> None:
        exits, classes = ledger.num_exits, ledger.num_classes
        self.weights_ = np.zeros((exits, exits, classes), np.float32)
        self.biases_ = np.zeros((exits, classes), np.float32)
        for exit_index in range(exits):
            logits = ledger.logits[:, : exit_index + 1].astype(np.float32)
            shared = np.tile(best_weights(logits, ledger.labels)[:, None], classes)
            mixed = _Mixed(logits, ledger.labels)
            found = fit_linear(mixed, shared, self.shrinkage, self.shrinkage)
            self.weights_[exit_index, : exit_index + 1], self.biases_[exit_index] = found

    def answer_at(self, logits: AnyArray) -> AnyArray:
        """The weighted sum of the exits so far, `[n, m+1, K]` -> `[n, K]`."""
        exit_index = logits.shape[1] - 1
        weights = self.weights_[exit_index, : exit_index + 1]
        return namespace(logits).sum(logits * weights, axis=1) + self.biases_[exit_index]

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One multiply-accumulate per class and exit so far."""
        return (exit_index + 1) * num_classes


@dataclass
class _Mixed:
    """Logits `[N, m+1, K]` times a weight per exit and class `[m+1, K]`."""

    logits: Array
    labels: Array

    def answers(self, weight: Array, bias: Array) -> Array:
        """Their sum over the exits, shifted."""
        found: Array = np.einsum("nmk,mk->nk", self.logits, weight) + bias
        return found

    def gradient(self, errors: Array) -> Array:
        """`[m+1, K]`."""
        found: Array = np.einsum("nk,nmk->mk", errors, self.logits)
        return found
