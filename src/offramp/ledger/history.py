"""What was known at the exits so far: `History` of logits, `AnswerHistory` of answers without."""

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from offramp.ledger.chunks import row_slices
from offramp.targets import correctness, soft_correctness


def log_odds(answer: Tensor) -> Tensor:
    """Log-odds of the most probable class, `[n, K]` logits -> `[n]`, without saturation.

    Example:
        >>> log_odds(torch.tensor([[100.0, 0.0], [101.0, 0.0]]))
        tensor([100., 101.])
    """
    top, _, rest = split_top(answer)
    return _odds(top, rest, rest.amax(dim=-1, keepdim=True))


def leading_pair(answer: Tensor) -> tuple[Tensor, Tensor]:
    """Log-odds of the most probable class `[n]`, and the two most probable classes `[n, 2]`.

    Example:
        >>> leading_pair(torch.tensor([[1.0, 4.0, 3.0]]))
        (tensor([0.8731]), tensor([[1, 2]]))
    """
    top, index, rest = split_top(answer)
    second, other = rest.max(dim=-1, keepdim=True)  # together far faster than `topk`
    return _odds(top, rest, second), torch.cat([index, other], dim=-1)


def split_top(answer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logit and its class, `[n, 1]` each, and all logits with it at minus infinity."""
    values = answer.float()
    top, index = values.max(dim=-1, keepdim=True)
    return top, index, values.scatter(-1, index, -torch.inf)


def _odds(top: Tensor, rest: Tensor, second: Tensor) -> Tensor:
    # How far the sum of the others exceeds the largest of them: two operations, not seven.
    beyond = rest.log_softmax(dim=-1).amax(dim=-1, keepdim=True)
    return (top - second + beyond).squeeze(-1)


class History:
    """The exits so far, for n samples.

    Attributes:
        name: What the stages have put out, in files and messages.
        offers: What a component may need of a stage; see `Component.needs`.
        has_logits: Whether there are logits of classes.

    Args:
        logits: `[n, m+1, K]` from the heads.
        answers: `[n, m+1, K]` from the `Answer`: what would be answered at each exit.
        answer: `[n, K]`, the last of the answers, if it is at hand.
        lengths: `[n]`, how many exits each sample has, for fits on samples that end early.

    Example:
        >>> history = History(torch.zeros(5, 3, 4), torch.zeros(5, 3, 4))
        >>> history.exit_index, len(history.take(torch.tensor([0, 2])))
        (2, 2)
        >>> history.until(0).answers.shape
        torch.Size([5, 1, 4])
    """

    name: ClassVar[str] = "logits"
    offers: ClassVar[tuple[str, ...]] = ("logits", "answers", "confidences")
    has_logits: ClassVar[bool] = True

    def __init__(
        self,
        logits: Tensor,
        answers: Tensor,
        answer: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> None:
        self.logits = logits
        self.answers = answers
        self.lengths = lengths
        self._answer = answer
        self._log_probs: Tensor | None = None
        self._predictions: Tensor | None = None

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def exit_index(self) -> int:
        """m, the current exit."""
        return self.logits.shape[1] - 1

    @property
    def num_classes(self) -> int:
        """K."""
        return self.answers.shape[2]

    @property
    def answer(self) -> Tensor:
        """`[n, K]`: what would be answered now."""
        if self._answer is None:
            self._answer = self.answers.select(1, -1)
        return self._answer

    @property
    def log_probs(self) -> Tensor:
        """`[n, m+1, K]` float32: log-probabilities of the answers at the exits so far."""
        if self._log_probs is None:
            self._log_probs = self.answers.float().log_softmax(dim=-1)
        return self._log_probs

    @property
    def log_prob(self) -> Tensor:
        """`[n, K]` float32: log-probabilities of what would be answered now."""
        if self._log_probs is not None:
            return self._log_probs.select(1, -1)
        return self.answer.float().log_softmax(dim=-1)

    @property
    def predictions(self) -> Tensor:
        """`[n, m+1]`: the class that would be answered at each exit so far."""
        if self._predictions is None:
            self._predictions = self.answers.argmax(dim=-1)
        return self._predictions

    @property
    def log_odds(self) -> Tensor:
        """`[n]`: log-odds of what would be answered now, without saturation."""
        return log_odds(self.answer)

    @property
    def confidences(self) -> Tensor:
        """`[n, m+1]`: the probability that each answer so far gives to itself."""
        return self.log_probs.amax(dim=2).exp()

    @property
    def chances(self) -> Tensor:
        """`[n, m+1]`: the probability that the last answer gives to each of those so far."""
        return soft_correctness(self.predictions, self.log_probs[:, -1].exp())

    def losses(self, labels: Tensor) -> Tensor:
        """`[n, m+1]`: negative log-likelihood of the labels under each answer so far."""
        exits = self.exit_index + 1
        flat = self.answers.float().flatten(0, 1), labels.repeat_interleave(exits)
        return cross_entropy(*flat, reduction="none").view(len(labels), -1)

    def goes_on(self, exit_index: int) -> Tensor | None:
        """A bool `[n]`: who has an exit after this one; None where all have."""
        return None if self.lengths is None else self.lengths > exit_index + 1

    def take(self, index: Tensor | slice) -> "History":
        """The same exits for some of the samples."""
        lengths = None if self.lengths is None else self.lengths[index]
        part = type(self)(self.logits[index], self.answers[index], lengths=lengths)
        self._share(part, lambda cached: cached[index])
        return part

    def until(self, exit_index: int) -> "History":
        """What was known at an earlier exit."""
        stop = exit_index + 1
        part = type(self)(self.logits[:, :stop], self.answers[:, :stop], lengths=self.lengths)
        self._share(part, lambda cached: cached[:, :stop])
        return part

    def chunks(self) -> Iterator[tuple[slice, "History"]]:
        """Go through the samples in order, a few at a time."""
        for rows in row_slices(len(self), self.logits[0].numel()):
            yield rows, self.take(rows)

    def _share(self, part: "History", pick: Callable[[Tensor], Tensor]) -> None:
        """Hand on what is already computed: it holds sample by sample and exit by exit."""
        part._log_probs = None if self._log_probs is None else pick(self._log_probs)
        part._predictions = None if self._predictions is None else pick(self._predictions)


class AnswerHistory(History):
    """The stages so far of what answers without logits.

    Args:
        logits: `[n, m+1, 2+F]`: the log-odds that the stage is right, which stage was the first to
            give its answer, and F features.
        answers: The same, of what would be answered at each stage.

    Example:
        >>> said = torch.tensor([[[2.0, 0.0], [-1.0, 1.0], [3.0, 0.0]]])  # a, b, a
        >>> history = AnswerHistory(said, said)
        >>> history.predictions.tolist(), history.agrees.tolist(), history.log_odds.tolist()
        ([[0, 1, 0]], [[True, False, True]], [3.0])
    """

    name = "answers"
    offers: ClassVar[tuple[str, ...]] = ("answers", "confidences")
    has_logits = False

    @property
    def odds(self) -> Tensor:
        """`[n, m+1]` float64: the log-odds of each stage so far.

        In float64, so that a score, rounded to float32, does not depend on how many samples it
        was computed with.
        """
        return self.answers[..., 0].double()

    @property
    def log_odds(self) -> Tensor:
        """`[n]`, of what would be answered now; below zero, it is rather wrong."""
        return self.answer[:, 0]

    @property
    def predictions(self) -> Tensor:
        """`[n, m+1]`: the first stage that gave the answer of each stage."""
        return self.answers[..., 1].long()

    @property
    def agrees(self) -> Tensor:
        """A bool `[n, m+1]`: which stages say what would be answered now."""
        return self.predictions == self.predictions[:, -1:]

    @property
    def features(self) -> Tensor:
        """`[n, m+1, F]` float64."""
        return self.answers[..., 2:].double()

    @property
    def confidences(self) -> Tensor:
        """`[n, m+1]`: the probability that each answer so far is right, as it was stated."""
        return self.answers[..., 0].sigmoid()

    @property
    def chances(self) -> Tensor:
        """`[n, m+1]`: of being right, as far as the last stage can tell.

        Who agrees with it is as sure; who does not is right if it is wrong, and if it is itself.
        """
        own = self.confidences
        return torch.where(self.agrees, own[:, -1:], (1 - own[:, -1:]) * own)

    def losses(self, labels: Tensor) -> Tensor:
        """`[n, m+1]`: negative log-likelihood of being right or wrong."""
        right = correctness(self.predictions, labels)
        odds = self.answers[..., 0]
        return softplus(torch.where(right, -odds, odds))

    def inputs(self, history: bool) -> Tensor:
        """Confidence, agreement and features, now or at all stages so far: `[n, D]` float64."""
        agrees = self.agrees[..., None].double()
        seen = torch.cat([self.odds[..., None].sigmoid(), agrees, self.features], dim=2)
        return seen.flatten(1) if history else seen[:, -1]


class ConfidenceHistory(AnswerHistory):
    """The same where nobody knows what was answered: no two stages are known to agree."""

    name = "confidences"
    offers = ("confidences",)

    @property
    def chances(self) -> Tensor:
        """`[n, m+1]`: each stage can only speak for itself."""
        return self.confidences


HISTORIES = {each.name: each for each in (History, AnswerHistory, ConfidenceHistory)}
"""By the names that stand in files."""
