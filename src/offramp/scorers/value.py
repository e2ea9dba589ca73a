"""The value of continuing: optimal stopping, learned backwards from the last exit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from offramp.errors import ConfigError
from offramp.scorers.cost_aware import seeds_of
from offramp.scorers.priced import PRICES, Priced
from offramp.scorers.scorer import History
from offramp.scorers.small_networks import Features, Loss, Parameters, initial_parameters, train

__all__ = ["ValueOfContinuing"]

LOSSES = ("classification", "regression")
SHARPNESS = {"classification": 1.0, "regression": 20.0}


@dataclass
class ValueOfContinuing(Priced):
    """Learn at each exit what stopping gains over going on with what was learned downstream.

    From the last exit backwards, and for twelve prices at once: where would a sample that goes
    on stop, by the networks of the later exits, and what would that be worth? Stopping now
    gains `correct - price x cost` minus that. So the score depends on *when* the right answer
    would come and what is paid until then, which the paper leaves open.

    Args:
        loss: `classification` learns the sign of the gain, weighed by its size; `regression` the
            gain itself.

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300, exits=4)
        >>> policy = Policy(ValueOfContinuing(epochs=1)).fit(splits["held_out"])
        >>> logits = splits["val"].logits[:, :2]
        >>> cheap, dear = (policy.scorer.at_price(p) for p in (0.02, 5.0))
        >>> history = History(logits, logits)
        >>> bool((dear.score_at(history).mean() > cheap.score_at(history).mean()))
        True
    """

    loss: Literal["classification", "regression"] = "classification"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in LOSSES:
            raise ConfigError(f"`loss` must be one of {', '.join(LOSSES)}, got {self.loss!r}")

    @property
    def _sharpness(self) -> float:
        return SHARPNESS[self.loss]

    def _train_seeds(
        self, history: History, correct: Tensor, costs: Tensor, seeds: Sequence[int]
    ) -> Parameters:
        exits, prices = range(history.exit_index), torch.tensor(PRICES).float().repeat(len(seeds))
        inputs = [self.view.width(m, history.answers.shape[2]) for m in exits]
        parameters = initial_parameters(inputs, self.hidden, seeds_of(seeds, len(PRICES)))
        paid = costs.float()[:, None] * prices  # [M, S]
        later = correct[:, -1:] - paid[-1]  # [N, S], worth of going on
        for m in reversed(exits):
            here = correct[:, m : m + 1] - paid[m]
            features = Features(self.view, history, range(m, m + 1), inputs[m])
            part = parameters.block(range(m, m + 1), features.width)
            train(part, features, self._loss_of(here - later), self.epochs)
            with torch.no_grad():
                rows = torch.arange(len(correct))
                stop = part.logits(features.batch(rows), features.log_odds)[0] >= 0
            later = torch.where(stop, here, later)
        return parameters

    def _loss_of(self, gains: Tensor) -> Loss:
        """The loss of one exit for gains `[N, S]`."""
        if self.loss == "regression":
            return lambda said, rows: mse_loss(said[0], gains[rows], reduction="sum")
        weights = gains.abs() / gains.abs().mean(dim=0)

        def loss_of(said: Tensor, rows: Tensor) -> Tensor:
            return binary_cross_entropy_with_logits(
                said[0], (gains[rows] > 0).float(), weights[rows], reduction="sum"
            )

        return loss_of
