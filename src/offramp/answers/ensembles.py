"""Answers that use every exit so far: products and weighted geometric means."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from offramp.answers.base import Answer
from offramp.answers.scaling import fit_linear
from offramp.errors import ConfigError
from offramp.ledger import Ledger


@dataclass
class ProductOfExperts(Answer):
    """Multiply the probabilities of all exits so far.

    The sum of raw logits differs from the sum of log-probabilities by a constant per sample,
    which no softmax sees.

    Example:
        >>> ProductOfExperts().answer_at(torch.tensor([[[1.0, 0.0], [0.0, 3.0]]]))
        tensor([[1., 3.]])
    """

    def answer_at(self, logits: Tensor) -> Tensor:
        """The sum of the exits so far, `[n, m+1, K]` -> `[n, K]`."""
        return logits.sum(dim=1)

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One addition per class and exit so far, each counted as a multiply-accumulate."""
        return (exit_index + 1) * num_classes


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
        (torch.Size([8, 8]), True)
    """

    shrinkage: float = 0.0
    learned = ("weights_",)

    def __post_init__(self) -> None:
        check_shrinkage(self.shrinkage)

    def _fit(self, ledger: Ledger) -> None:
        exits = range(ledger.num_exits)
        weights = torch.zeros(ledger.num_exits, ledger.num_exits)
        logits = ledger.logits
        for exit_index in exits:
            so_far = logits[:, : exit_index + 1]
            found = best_weights(so_far, ledger.labels, self.shrinkage)
            weights[exit_index, : exit_index + 1] = found
        self.weights_ = weights

    def answer_at(self, logits: Tensor) -> Tensor:
        """The weighted sum of the exits so far, `[n, m+1, K]` -> `[n, K]`."""
        exit_index = logits.shape[1] - 1
        return torch.einsum("nmk,m->nk", logits, self.weights_[exit_index, : exit_index + 1])

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One multiply-accumulate per class and exit so far."""
        return (exit_index + 1) * num_classes


def check_shrinkage(shrinkage: float) -> None:
    """Raise unless a shrinkage is a number that is not negative."""
    if not 0 <= shrinkage < float("inf"):
        raise ConfigError(f"`shrinkage` must not be negative, got {shrinkage}")


def best_weights(logits: Tensor, labels: Tensor, shrinkage: float = 0.0) -> Tensor:
    """Non-negative weights `[m+1]` of the smallest loss on `[N, m+1, K]`, by bounded L-BFGS."""
    start = np.zeros(logits.shape[1])
    start[-1] = 1.0  # the current exit alone: the answer that an ensemble has to improve on

    def loss_and_gradient(
        weights: npt.NDArray[np.float64],
    ) -> tuple[float, npt.NDArray[np.float64]]:
        leaf = torch.tensor(weights, dtype=torch.float32, requires_grad=True)
        total = 0.0
        for rows, classes in zip(logits.split(4096), labels.split(4096), strict=True):
            mixed = torch.einsum("nmk,m->nk", rows.float(), leaf)
            loss = cross_entropy(mixed, classes, reduction="sum") / len(labels)
            loss.backward()
            total += loss.item()
        assert leaf.grad is not None
        away = weights - start
        gradient = leaf.grad.double().numpy() + 2 * shrinkage * away
        return total + shrinkage * float(away @ away), gradient

    bounds = [(0.0, None)] * len(start)
    found = scipy.optimize.minimize(
        loss_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds
    )
    return torch.tensor(found.x, dtype=torch.float32)


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
        (torch.Size([8, 8, 20]), 60)
    """

    shrinkage: float = 0.1
    learned = ("weights_", "biases_")

    def __post_init__(self) -> None:
        check_shrinkage(self.shrinkage)

    def _fit(self, ledger: Ledger) -> None:
        exits, classes = ledger.num_exits, ledger.num_classes
        self.weights_ = torch.zeros(exits, exits, classes)
        self.biases_ = torch.zeros(exits, classes)
        logits = ledger.logits
        for exit_index in range(exits):
            so_far = logits[:, : exit_index + 1].float()
            shared = best_weights(so_far, ledger.labels)[:, None].expand(-1, classes)
            self.weights_[exit_index, : exit_index + 1], self.biases_[exit_index] = self._fit_exit(
                so_far, ledger.labels, shared
            )

    def _fit_exit(self, logits: Tensor, labels: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        def penalty(weight: Tensor, bias: Tensor) -> Tensor:
            return self.shrinkage * ((weight - shared).square().sum() + bias.square().sum())

        start = shared.contiguous(), torch.zeros(logits.shape[2])
        return fit_linear(_mixed, start, logits, labels, penalty)

    def answer_at(self, logits: Tensor) -> Tensor:
        """The weighted sum of the exits so far, `[n, m+1, K]` -> `[n, K]`."""
        exit_index = logits.shape[1] - 1
        weights = self.weights_[exit_index, : exit_index + 1]
        return _mixed(logits, weights, self.biases_[exit_index])

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One multiply-accumulate per class and exit so far."""
        return (exit_index + 1) * num_classes


def _mixed(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (logits * weight).sum(dim=1) + bias
