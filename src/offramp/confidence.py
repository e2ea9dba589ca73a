"""How probable it is that an answer is right: fitted apart from the decision when to stop.

A stop score is no such probability: the corrector's is high for a sample that no exit will get
right. Here a logistic regression per exit maps how sure the answer looks (its log-odds and its
entropy) to the probability of being right. It reads the current answer only, so that it asks for
no head that would not run anyway.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from offramp.component import Component
from offramp.scorers.confidence import certainty

__all__ = ["Confidence"]

Floats = npt.NDArray[np.float64]

RIDGE = 1e-2  # on weights of standardised features: holds them where few answers are wrong


@dataclass
class Confidence(Component):
    """The calibrated probability that an answer is right.

    Attributes:
        weights_: `[M, 3]` float64: of the log-odds, of minus the log-entropy, and a constant.

    Example:
        >>> from offramp import synthetic
        >>> ledger = synthetic.ledgers(seed=0)["held_out"]
        >>> confidence = Confidence().fit(ledger.chunks(), ledger.labels)
        >>> stated = confidence.probability(ledger.logits[:, 2], torch.full((len(ledger),), 2))
        >>> right = ledger.logits[:, 2].argmax(1) == ledger.labels
        >>> bool((stated.mean() - right.double().mean()).abs() < 0.01)
        True
    """

    learned = ("weights_",)

    def fit(self, answers: Iterable[tuple[Tensor | slice, Tensor]], labels: Tensor) -> Self:
        """Learn one logistic regression per exit.

        Args:
            answers: Positions of some samples and their answers `[n, M, K]`, all samples in all;
                by an answer that has not seen their labels.
            labels: `[N]`.
        """
        features: Tensor | None = None
        right: Tensor | None = None
        for rows, part in answers:
            if features is None or right is None:
                features = torch.empty(len(labels), part.shape[1], 2, dtype=torch.float64)
                right = torch.empty(len(labels), part.shape[1], dtype=torch.bool)
            features[rows] = _features(part.flatten(0, 1)).view(*part.shape[:2], 2)
            right[rows] = part.argmax(2) == labels[rows, None]
        assert features is not None and right is not None, "a ledger has samples"
        exits = range(features.shape[1])
        found = [_logistic(features[:, m].numpy(), right[:, m].numpy()) for m in exits]
        self.weights_ = torch.from_numpy(np.stack(found))
        return self

    def probability(self, answers: Tensor, exits: Tensor) -> Tensor:
        """The probability that each answer is right, `[n]` float32.

        Args:
            answers: `[n, K]`, logits that were answered with.
            exits: `[n]`, the exit of each.
        """
        self.check_fitted()
        features = _features(answers)
        weights = self.weights_[exits.long()]  # [n, 3]
        return ((features * weights[:, :2]).sum(1) + weights[:, 2]).sigmoid().float()


def _features(answers: Tensor) -> Tensor:
    """Log-odds of the answered class and minus the log-entropy, `[n, K]` -> `[n, 2]`."""
    return torch.stack(certainty(answers), dim=1).double()


def _logistic(features: Floats, right: npt.NDArray[np.bool_]) -> Floats:
    """Weights and constant, `[3]`, of the largest likelihood, a little held back.

    The targets are Platt's: not quite one and zero, so that an exit that is always right on
    held_out is not taken to be certain.
    """
    centre, scale = features.mean(axis=0), features.std(axis=0) + 1e-12
    inputs = np.column_stack([(features - centre) / scale, np.ones(len(features))])
    hits = right.sum()
    targets = np.where(right, (hits + 1) / (hits + 2), 1 / (len(right) - hits + 2))
    ridge = np.array([RIDGE, RIDGE, 0.0])

    def loss_and_gradient(weights: Floats) -> tuple[float, Floats]:
        logits = inputs @ weights
        losses = np.logaddexp(0, logits) - targets * logits
        gradient = inputs.T @ (expit(logits) - targets) + ridge * weights
        return float(losses.sum() + 0.5 * ridge @ weights**2), gradient

    found = minimize(loss_and_gradient, np.zeros(3), jac=True, method="L-BFGS-B").x
    slopes = found[:2] / scale
    return np.append(slopes, found[2] - slopes @ centre)
