"""An ensemble whose weights differ from class to class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from offramp.answers.answer import Answer
from offramp.answers.ensembles import best_weights, check_shrinkage
from offramp.answers.scaling import fit_linear
from offramp.ledger import Ledger

__all__ = ["ClassWiseEnsemble"]


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
        for m in range(exits):
            so_far = logits[:, : m + 1].float()
            shared = best_weights(so_far, ledger.labels)[:, None].expand(-1, classes)
            self.weights_[m, : m + 1], self.biases_[m] = self._fit_exit(
                so_far, ledger.labels, shared
            )

    def _fit_exit(self, logits: Tensor, labels: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        def penalty(weight: Tensor, bias: Tensor) -> Tensor:
            return self.shrinkage * ((weight - shared).square().sum() + bias.square().sum())

        start = shared.contiguous(), torch.zeros(logits.shape[2])
        return fit_linear(_mixed, start, logits, labels, penalty)

    def answer_at(self, logits: Tensor) -> Tensor:
        """The weighted sum of the exits so far, `[n, m+1, K]` -> `[n, K]`."""
        m = logits.shape[1] - 1
        return _mixed(logits, self.weights_[m, : m + 1], self.biases_[m])

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One multiply-accumulate per class and exit so far."""
        return (exit_index + 1) * num_classes


def _mixed(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (logits * weight).sum(dim=1) + bias
