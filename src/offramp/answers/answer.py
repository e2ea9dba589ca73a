"""What an answer is: a map from the exits' logits so far to the logits that are answered with."""

from typing import Self

import torch
from torch import Tensor

from offramp.component import Component
from offramp.ledger import Ledger

__all__ = ["Answer"]


class Answer(Component):
    """What does the network say if it stops here?

    An own answer is a dataclass that overrides `answer_at`, and `_fit` with `learned` if there
    is something to learn. It is fitted on held_out and sees only the exits so far.
    """

    @property
    def reads_history(self) -> bool:
        """Whether earlier exits are read: unless `answer_at` is marked `current_exit_only`."""
        return getattr(type(self).answer_at, "reads_history", True)

    def fit(self, ledger: Ledger, allow_split: str | None = None) -> Self:
        """Learn from a held_out ledger; an answer with nothing to learn does nothing.

        Args:
            ledger: The held_out ledger.
            allow_split: Another split's name, to fit on that one knowingly.
        """
        ledger.require_split("held_out", allow_split)
        self._fit(ledger)
        return self

    def _fit(self, ledger: Ledger) -> None:
        """Set the attributes named in `learned`."""

    def answer_at(self, logits: Tensor) -> Tensor:
        """The logits to answer with, `[n, K]`, at the last of the exits so far, `[n, m+1, K]`."""
        raise NotImplementedError(f"{type(self).__name__} must define answer_at")

    def answers(self, logits: Tensor) -> Tensor:
        """What would be answered at every exit, `[n, M, K]` from `[n, M, K]`."""
        self.check_fitted()
        exits = range(1, logits.shape[1] + 1)
        return torch.stack([self.answer_at(logits[:, :count]) for count in exits], dim=1)

    def macs(self, exit_index: int, num_classes: int) -> int:
        """Multiply-accumulates that the answer takes at one exit."""
        return 0
