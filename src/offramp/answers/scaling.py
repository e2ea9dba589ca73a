"""Calibration of each exit by itself: temperature, vector and matrix scaling (Guo et al. 2017).

All three are fitted per exit by the likelihood of held_out (the paper's Appendix C). Each is
linear in what it learns, so that the loss is convex.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp
from typing import Protocol

import numpy as np

from offramp import check
from offramp.answers.base import Answer
from offramp.arrays import AnyArray, Array, float32, float64, log_softmax, softmax
from offramp.component import current_exit_only
from offramp.ledger import Ledger

LOG_TEMPERATURE_LIMIT = 7.0  # e^7 = 1097: reached only where all answers are right, or at random
CHUNK = 4096  # samples at a time
SEARCH = {"maxiter": 100, "ftol": 1e-9, "gtol": 1e-6, "maxcor": 100}


@dataclass
class TemperatureScaling(Answer):
    """Divide each exit's logits by one positive temperature; predictions stay the same.

    Args:
        multiplier: Multiplies the fitted temperature of all exits but the last. The paper makes
            its deliberately decalibrated networks with 3.0 (underconfident) and 0.3
            (overconfident).

    Attributes:
        temperatures_: `[M]`, after the multiplier.

    Example:
        >>> from offramp import synthetic
        >>> answer = TemperatureScaling().fit(synthetic.ledgers(seed=0)["held_out"])
        >>> bool((answer.temperatures_ > 1).all())  # the made-up network is overconfident
        True
    """

    multiplier: float = 1.0
    learned = ("temperatures_",)

    def __post_init__(self) -> None:
        check.positive("multiplier", self.multiplier)

    def _fit(self, ledger: Ledger) -> None:
        exits = range(ledger.num_exits)
        fitted = [_best_temperature(ledger.logits[:, m], ledger.labels) for m in exits]
        temperatures = np.array(fitted, np.float32)
        temperatures[:-1] *= self.multiplier
        self.temperatures_ = temperatures

    @current_exit_only
    def answer_at(self, logits: AnyArray) -> AnyArray:
        """The current exit's logits over its temperature, `[n, m+1, K]` -> `[n, K]`."""
        return logits[:, -1] / self.temperatures_[logits.shape[1] - 1]

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One multiplication per class."""
        return num_classes


@dataclass
class VectorScaling(Answer):
    """Scale and shift each class's logit, per exit.

    Attributes:
        weights_: `[M, K]`.
        biases_: `[M, K]`.
    """

    learned = ("weights_", "biases_")

    def _fit(self, ledger: Ledger) -> None:
        start = np.ones(ledger.num_classes)
        fitted = [fit_linear(Scaled(z, ledger.labels), start) for z in _per_exit(ledger)]
        self.weights_, self.biases_ = map(np.stack, zip(*fitted, strict=True))

    @current_exit_only
    def answer_at(self, logits: AnyArray) -> AnyArray:
        """The current exit's logits, scaled and shifted, `[n, m+1, K]` -> `[n, K]`."""
        exit_index = logits.shape[1] - 1
        return logits[:, -1] * self.weights_[exit_index] + self.biases_[exit_index]

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One multiply-accumulate per class."""
        return num_classes


@dataclass
class MatrixScaling(Answer):
    """Map each exit's logits by a full matrix and a bias.

    Without a regulariser, as in the paper, K x K parameters overfit a small held_out, and
    accuracy falls.

    Args:
        regularization: Weight of the mean squared off-diagonal element and bias (ODIR, Kull et
            al. 2019), added to the loss.

    Attributes:
        weights_: `[M, K, K]`.
        biases_: `[M, K]`.
    """

    regularization: float = 0.0
    learned = ("weights_", "biases_")

    def __post_init__(self) -> None:
        check.at_least("regularization", self.regularization, 0)

    def _fit(self, ledger: Ledger) -> None:
        identity = np.eye(ledger.num_classes)
        off_diagonal = self.regularization * (1 - identity) / identity.size
        biases = self.regularization / len(identity)
        fitted = [
            fit_linear(Mapped(z, ledger.labels), identity, off_diagonal, biases)
            for z in _per_exit(ledger)
        ]
        self.weights_, self.biases_ = map(np.stack, zip(*fitted, strict=True))

    @current_exit_only
    def answer_at(self, logits: AnyArray) -> AnyArray:
        """The current exit's logits through its matrix, `[n, m+1, K]` -> `[n, K]`."""
        exit_index = logits.shape[1] - 1
        # In float64, so that an answer does not depend on how many samples it was computed with.
        exact, weights = float64(logits[:, -1]), float64(self.weights_[exit_index])
        return float32(exact @ weights.T + self.biases_[exit_index])

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One full matrix product."""
        return num_classes * num_classes


def _per_exit(ledger: Ledger) -> Iterator[Array]:
    """Each exit's logits in float32, `[N, K]`, one exit in memory at a time."""
    for exit_index in range(ledger.num_exits):
        yield ledger.logits[:, exit_index].astype(np.float32)


def _best_temperature(logits: Array, labels: Array) -> float:
    """The temperature of the smallest loss on `[N, K]`, found in log space so it stays positive.

    The loss is convex in 1/T, so its slope has one root, or the best T lies at the limit.
    """
    from scipy.optimize import brentq  # takes a third of a second, which loading does not need

    label_mean = logits[np.arange(len(labels)), labels].astype(np.float64).mean()
    parts = np.array_split(logits, -(-len(logits) // CHUNK))

    def slope(log_temperature: float) -> float:
        """Derivative of the loss by 1/T: expected logit under the model minus the label's."""
        inverse = np.float32(exp(-log_temperature))
        expected = 0.0
        for stored in parts:
            part = stored.astype(np.float32, copy=False)
            expected += np.einsum("nk,nk->", softmax(part * inverse), part, dtype=np.float64)
        return expected / len(logits) - float(label_mean)

    low, high = -LOG_TEMPERATURE_LIMIT, LOG_TEMPERATURE_LIMIT
    if slope(low) <= 0:
        return exp(low)
    if slope(high) >= 0:
        return exp(high)
    return exp(float(brentq(slope, low, high, xtol=1e-6)))


class Linear(Protocol):
    """Logits that are linear in a weight and a bias, and what their loss says of these."""

    labels: Array

    def answers(self, weight: Array, bias: Array) -> Array:
        """The logits to answer with, `[N, K]`."""

    def gradient(self, errors: Array) -> Array:
        """The derivative by the weight, from the derivative `[N, K]` by the answers."""


@dataclass
class Scaled:
    """Logits `[N, K]` times a weight per class `[K]`."""

    logits: Array
    labels: Array

    def answers(self, weight: Array, bias: Array) -> Array:
        """Scaled and shifted."""
        return self.logits * weight + bias

    def gradient(self, errors: Array) -> Array:
        """`[K]`."""
        found: Array = np.einsum("nk,nk->k", errors, self.logits)
        return found


@dataclass
class Mapped:
    """Logits `[N, K]` through a matrix `[K, K]`."""

    logits: Array
    labels: Array

    def answers(self, weight: Array, bias: Array) -> Array:
        """Mapped and shifted."""
        return self.logits @ weight.T + bias

    def gradient(self, errors: Array) -> Array:
        """`[K, K]`."""
        found: Array = errors.T @ self.logits
        return found


def fit_linear(
    linear: Linear, start: Array, pull: Array | float = 0.0, pull_bias: float = 0.0
) -> tuple[Array, Array]:
    """Weight and bias of the smallest loss, float32, by L-BFGS.

    Args:
        linear: What the answers are.
        start: The weight to begin with, and to which it is drawn; the bias is drawn to zero.
        pull: How strongly, by element: this times the squared distance is added to the loss.
        pull_bias: The same for the bias.
    """
    from scipy.optimize import minimize

    rows, classes = np.arange(len(linear.labels)), start.shape[-1]

    def loss(flat: Array) -> tuple[float, Array]:
        weight, bias = flat[:-classes].reshape(start.shape), flat[-classes:]
        answers = linear.answers(weight.astype(np.float32), bias.astype(np.float32))
        log_probs = log_softmax(answers)
        value = -log_probs[rows, linear.labels].mean(dtype=np.float64)
        errors = np.exp(log_probs)
        errors[rows, linear.labels] -= 1
        errors /= len(rows)
        away = weight - start
        value += (pull * away**2).sum() + pull_bias * (bias**2).sum()
        by_weight = linear.gradient(errors) + 2 * pull * away
        by_bias = errors.sum(axis=0) + 2 * pull_bias * bias
        return float(value), np.concatenate([by_weight.ravel(), by_bias]).astype(np.float64)

    first = np.concatenate([start.ravel(), np.zeros(classes)]).astype(np.float64)
    found = minimize(loss, first, jac=True, method="L-BFGS-B", options=SEARCH).x.astype(np.float32)
    return found[:-classes].reshape(start.shape), found[-classes:]
