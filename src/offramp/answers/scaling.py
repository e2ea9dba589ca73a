"""Calibration of each exit by itself: temperature, vector and matrix scaling (Guo et al. 2017).

All three are fitted per exit by the likelihood of held_out (the paper's Appendix C). Each is
linear in what it learns, so that the loss is convex.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp

import scipy
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from offramp.answers.base import Answer
from offramp.component import current_exit_only
from offramp.errors import ConfigError
from offramp.ledger import Ledger

LOG_TEMPERATURE_LIMIT = 7.0  # e^7 = 1097: reached only where all answers are right, or at random


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
        if not 0 < self.multiplier < float("inf"):
            raise ConfigError(f"`multiplier` must be positive, got {self.multiplier}")

    def _fit(self, ledger: Ledger) -> None:
        exits = ledger.logits.unbind(dim=1)
        fitted = [_best_temperature(logits, ledger.labels) for logits in exits]
        temperatures = torch.tensor(fitted)
        temperatures[:-1] *= self.multiplier
        self.temperatures_ = temperatures

    @current_exit_only
    def answer_at(self, logits: Tensor) -> Tensor:
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
        def scaled(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return logits * weight + bias

        start = torch.ones(ledger.num_classes), torch.zeros(ledger.num_classes)
        fitted = [fit_linear(scaled, start, z, ledger.labels) for z in _per_exit(ledger)]
        self.weights_, self.biases_ = (torch.stack(part) for part in zip(*fitted, strict=True))

    @current_exit_only
    def answer_at(self, logits: Tensor) -> Tensor:
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
        if not 0 <= self.regularization < float("inf"):
            raise ConfigError(f"`regularization` must not be negative, got {self.regularization}")

    def _fit(self, ledger: Ledger) -> None:
        identity = torch.eye(ledger.num_classes)

        def scaled(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return torch.addmm(bias, logits, weight.T)

        def penalty(weight: Tensor, bias: Tensor) -> Tensor:
            off_diagonal = (weight * (1 - identity)).square().mean()
            return self.regularization * (off_diagonal + bias.square().mean())

        start = identity, torch.zeros(ledger.num_classes)
        fitted = [fit_linear(scaled, start, z, ledger.labels, penalty) for z in _per_exit(ledger)]
        self.weights_, self.biases_ = (torch.stack(part) for part in zip(*fitted, strict=True))

    @current_exit_only
    def answer_at(self, logits: Tensor) -> Tensor:
        """The current exit's logits through its matrix, `[n, m+1, K]` -> `[n, K]`."""
        exit_index = logits.shape[1] - 1
        return torch.addmm(self.biases_[exit_index], logits[:, -1], self.weights_[exit_index].T)

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One full matrix product."""
        return num_classes * num_classes


def _per_exit(ledger: Ledger) -> Iterator[Tensor]:
    """Each exit's logits in float32, `[N, K]`, one exit in memory at a time."""
    for logits in ledger.logits.unbind(dim=1):
        yield logits.float()


def _best_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature of the smallest loss on `[N, K]`, found in log space so it stays positive.

    The loss is convex in 1/T, so its slope has one root, or the best T lies at the limit.
    """
    label_mean = logits.gather(1, labels[:, None]).double().mean().item()

    def slope(log_temperature: float) -> float:
        """Derivative of the loss by 1/T: expected logit under the model minus the label's."""
        inverse = exp(-log_temperature)
        expected = 0.0
        for stored in logits.split(4096):
            part = stored.float()
            expected += ((part * inverse).softmax(1) * part).sum(dtype=torch.float64).item()
        return expected / len(logits) - label_mean

    low, high = -LOG_TEMPERATURE_LIMIT, LOG_TEMPERATURE_LIMIT
    if slope(low) <= 0:
        return exp(low)
    if slope(high) >= 0:
        return exp(high)
    return exp(float(scipy.optimize.brentq(slope, low, high, xtol=1e-6)))


def fit_linear(
    scaled: Callable[..., Tensor],
    start: tuple[Tensor, Tensor],
    logits: Tensor,
    labels: Tensor,
    penalty: Callable[..., Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Weight and bias of the smallest loss of `scaled(logits, weight, bias)`, by L-BFGS."""
    weight, bias = (part.clone().requires_grad_() for part in start)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=100, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        loss = cross_entropy(scaled(logits, weight, bias), labels)
        if penalty is not None:
            loss = loss + penalty(weight, bias)
        loss.backward()
        return loss.item()

    optimizer.step(closure)
    return weight.detach(), bias.detach()
