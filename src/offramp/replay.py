"""Trace: what an answer and a scorer say at every exit, `[N, M]`, streamed from a ledger."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from offramp.answers import Answer
from offramp.errors import LedgerError
from offramp.ledger import Ledger
from offramp.scorers import History, Scorer
from offramp.targets import correctness, stop_target


@dataclass(frozen=True)
class Trace:
    """Everything that a decision or a metric needs, without the logits.

    Attributes:
        labels: `[N]`.
        predictions: `[N, M]`, the class that would be answered at each exit.
        network_predictions: `[N, M]`, what the heads themselves say, before any answer.
        scores: `[N, M]` float32; `+inf` at the last exit, where no scorer is run.
        confidences: `[N, M]`, max probability of the answer.
        losses: `[N, M]`, negative log-likelihood of the label under the answer.
    """

    labels: Tensor
    predictions: Tensor
    network_predictions: Tensor
    scores: Tensor
    confidences: Tensor
    losses: Tensor

    def take(self, index: Tensor) -> "Trace":
        """The same for some of the samples."""
        return Trace(*(getattr(self, item.name)[index] for item in fields(self)))

    @property
    def correct(self) -> Tensor:
        """A bool `[N, M]`: whether each exit's answer is right."""
        return correctness(self.predictions, self.labels)

    @property
    def network_correct(self) -> Tensor:
        """A bool `[N, M]`: whether each head is right, before any answer."""
        return correctness(self.network_predictions, self.labels)

    @property
    def stop_targets(self) -> Tensor:
        """A bool `[N, M]`: whether it would be right to stop at each exit."""
        return stop_target(self.predictions, self.labels)


def trace(answer: Answer, scorer: Scorer, ledger: Ledger) -> Trace:
    """Run an answer and a scorer over a ledger, a few samples at a time.

    Args:
        answer: Fitted.
        scorer: Fitted.
        ledger: Any split.

    Example:
        >>> from offramp import synthetic
        >>> from offramp.answers import CurrentExit
        >>> from offramp.scorers import MaxProbability
        >>> ledger = synthetic.ledgers(samples=100)["val"]
        >>> trace(CurrentExit(), MaxProbability(), ledger).scores.shape
        torch.Size([100, 8])
    """
    answer.check_fitted()
    scorer.check_fitted()
    shape = len(ledger), ledger.num_exits
    predictions, heads = (torch.empty(shape, dtype=torch.long) for _ in range(2))
    scores, confidences, losses = (torch.empty(shape) for _ in range(3))
    with torch.inference_mode():
        for rows, logits in ledger.chunks():
            history = History(logits, answer.answers(logits))
            predictions[rows] = history.predictions
            heads[rows] = logits.argmax(dim=2)
            confidences[rows] = history.log_probs.amax(dim=2).exp()
            losses[rows] = _label_losses(history, ledger.labels[rows])
            scores[rows] = exit_scores(scorer, history)
    return Trace(ledger.labels, predictions, heads, scores, confidences, losses)


def exit_scores(scorer: Scorer, history: History) -> Tensor:
    """Scores of all exits `[n, M]`; the last one always stops, so that no scorer is run there.

    Raises:
        LedgerError: The scorer gives something else than one finite number per sample.
    """
    exits = range(history.exit_index)
    columns = [_checked(scorer, scorer.score_at(history.until(m)), len(history), m) for m in exits]
    return torch.stack([*columns, torch.full((len(history),), torch.inf)], dim=1)


def _checked(scorer: Scorer, scores: Tensor, samples: int, exit_index: int) -> Tensor:
    name = type(scorer).__name__
    if not isinstance(scores, Tensor):
        raise LedgerError(
            f"{name}.score_at must return a torch tensor, got {type(scores).__name__} at exit "
            f"{exit_index}"
        )
    if scores.shape != (samples,):
        raise LedgerError(
            f"{name}.score_at must give one score per sample, [{samples}], got "
            f"{list(scores.shape)} at exit {exit_index}"
        )
    if not scores.isfinite().all():
        bad = scores[~scores.isfinite()][0].item()
        raise LedgerError(
            f"{name}.score_at must give finite scores, got {bad} at exit {exit_index}"
        )
    return scores.float()


def _label_losses(history: History, labels: Tensor) -> Tensor:
    return cross_entropy(
        history.answers.float().flatten(0, 1),
        labels.repeat_interleave(history.exit_index + 1),
        reduction="none",
    ).view(len(labels), -1)
