"""Patience: stop when enough exits in a row have said the same (PABEE, Zhou et al. 2020)."""

from dataclasses import dataclass

from torch import Tensor

from offramp.scorers.scorer import History, Scorer

__all__ = ["Patience"]


@dataclass
class Patience(Scorer):
    """The number of exits in a row, up to this one, that predict the current class.

    Scores are small whole numbers, so thresholds can only follow a budget coarsely.

    Example:
        >>> import torch
        >>> answers = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]])
        >>> Patience().score_at(History(answers, answers))
        tensor([2.])
    """

    def score_at(self, history: History) -> Tensor:
        """Length of the current run of equal predictions, `[n]`."""
        other = history.predictions != history.predictions[:, -1:]
        # Sums and not products, since ONNX knows no running product.
        return (other.flip(1).int().cumsum(dim=1) == 0).sum(dim=1).float()
