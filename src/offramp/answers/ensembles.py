"""Answers that use every exit so far: products and weighted geometric means."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from offramp import check
from offramp.answers.base import Answer
from offramp.answers.scaling import fit_linear
from offramp.errors import ConfigError
from offramp.ledger import History, Ledger


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
class MajorityVote(Answer):
    """Answer what most exits so far say; of answers with as many votes, the surer one.

    Of logits, the votes are shared out as probabilities; half a vote goes to the mean
    probabilities, which breaks ties. Of answers without logits, the vote is as sure as its voters:
    their summed confidence by the number of stages.

    Args:
        of: `logits` or `answers`; a policy sets it to what its ledger holds.

    Example:
        >>> logits = torch.tensor([[[1.0, 0.0], [0.0, 3.0], [2.0, 0.0]]])
        >>> MajorityVote().answer_at(logits).argmax(dim=1), MajorityVote().answer_at(logits[:, :2])
        (tensor([0]), tensor([[-0.7385, -0.6498]]))
    """

    of: str = "logits"
    needs = "answers"

    def __post_init__(self) -> None:
        check.one_of("of", self.of, ("logits", "answers"))

    def on(self, history_type: type[History]) -> Self:
        """A copy that counts what such ledgers hold."""
        return super().on(history_type).clone(of=history_type.name)

    def answer_at(self, logits: Tensor) -> Tensor:
        """The vote of the exits so far, `[n, m+1, K]` -> `[n, K]`."""
        if self.of == "answers":
            return _voted(logits)
        votes = torch.nn.functional.one_hot(logits.argmax(dim=2), logits.shape[2]).sum(dim=1)
        shares = votes + 0.5 * logits.float().softmax(dim=2).mean(dim=1)
        return (shares / shares.sum(dim=1, keepdim=True)).log()

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One addition per class and exit so far, each counted as a multiply-accumulate."""
        return (exit_index + 1) * num_classes


def _voted(outputs: Tensor) -> Tensor:
    """The row `[n, 2+F]` of a vote over stages without logits `[n, m+1, 2+F]`."""
    said, sure = outputs[..., 1].long(), outputs[..., 0].double().sigmoid()
    same = (said[:, :, None] == said[:, None, :]).double()  # [n, m+1, m+1]
    votes, weight = same.sum(dim=2), (same * sure[:, None, :]).sum(dim=2)
    # Confidences sum to less than one vote per stage: they only break ties.
    stages = outputs.shape[1]
    winner = (votes + weight / (2 * stages)).argmax(dim=1, keepdim=True)  # [n, 1]
    share = (weight.gather(1, winner) / stages).clamp(1e-12, 1 - 1e-12).logit()
    first = said.gather(1, winner)
    return torch.cat([share.to(outputs.dtype), first.to(outputs.dtype), outputs[:, -1, 2:]], dim=1)


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
    folds = 2  # a weight per exit is learned well enough from half of the samples

    def __post_init__(self) -> None:
        check_shrinkage(self.shrinkage)

    def _fit(self, ledger: Ledger) -> None:
        samples = _Samples(ledger.logits, ledger.labels)
        weights = torch.zeros(ledger.num_exits, ledger.num_exits)
        found = torch.empty(0)
        for exit_index in range(ledger.num_exits):
            start = torch.cat([0.5 * found, torch.tensor([0.5 if exit_index else 1.0])])
            found = samples.best_weights(start, self.shrinkage)
            weights[exit_index, : exit_index + 1] = found
        self.weights_ = weights

    def answer_at(self, logits: Tensor) -> Tensor:
        """The weighted sum of the exits so far, `[n, m+1, K]` -> `[n, K]`."""
        exit_index = logits.shape[1] - 1
        return (logits * self.weights_[exit_index, : exit_index + 1, None]).sum(dim=1)

    def macs(self, exit_index: int, num_classes: int) -> int:
        """One multiply-accumulate per class and exit so far."""
        return (exit_index + 1) * num_classes


def check_shrinkage(shrinkage: float) -> None:
    """Raise unless a shrinkage is a number that is not negative."""
    if not 0 <= shrinkage < float("inf"):
        raise ConfigError(f"`shrinkage` must not be negative, got {shrinkage}")


STEPS = 50  # of Newton's method; about five are needed
SMALL_STEP = 1e-4  # in the loss; the next one would be far smaller
COARSE = 400  # samples that give a start, where there are twice as many or more
COARSE_STEP = 1e-2  # small enough there: other samples would move the optimum by more
CHUNK = 1024  # samples at a time
KEPT = 1 << 25  # logits that are held in float32, where there are no more of them


def best_weights(logits: Tensor, labels: Tensor, shrinkage: float = 0.0) -> Tensor:
    """Non-negative weights `[M]` of the smallest loss on `[N, M, K]`.

    Args:
        logits: `[N, M, K]`.
        labels: `[N]`.
        shrinkage: See `GeometricEnsemble`.
    """
    alone = torch.eye(logits.shape[1])[-1]
    return _Samples(logits, labels).best_weights(alone, shrinkage)


class _Samples:
    """What weighted geometric means of the first exits are fitted to.

    Args:
        logits: `[N, M, K]`.
        labels: `[N]`.
        small: In the loss: what a last step may promise.
    """

    def __init__(self, logits: Tensor, labels: Tensor, small: float = SMALL_STEP) -> None:
        self.count, self.small = len(labels), small
        self.parts: Iterable[tuple[Tensor, Tensor]] = _Chunks(logits, labels)
        if logits.numel() <= KEPT:
            self.parts = list(self.parts)
        stride = self.count // COARSE
        self.few: _Samples | None = None
        if stride > 1:
            self.few = _Samples(logits[::stride], labels[::stride], COARSE_STEP)

    def best_weights(self, start: Tensor, shrinkage: float) -> Tensor:
        """Non-negative weights `[m+1]` of the smallest loss, for as many exits as `start` has.

        By Newton's method, where weights at zero that want to go below are held there.
        """
        if self.few is not None:  # the first steps need not be exact
            start = self.few.best_weights(start, shrinkage)
        weights = start.double()
        loss, gradient, hessian = self._derivatives(weights, shrinkage)
        for _ in range(STEPS):
            free = (weights > 0) | (gradient < 0)
            step = torch.zeros_like(weights)
            step[free] = torch.linalg.solve(hessian[free][:, free], gradient[free])
            if gradient @ step < self.small:  # Newton's method squares what is left
                return (weights - step).clamp_min(0).float()
            for halvings in range(10):
                new = (weights - step / 2**halvings).clamp_min(0)
                found = self._derivatives(new, shrinkage)
                if found[0] <= loss:
                    break
            else:
                break
            weights, (loss, gradient, hessian) = new, found
        return weights.float()

    def _derivatives(self, weights: Tensor, shrinkage: float) -> tuple[float, Tensor, Tensor]:
        """Mean loss with the penalty, its gradient `[m+1]` and Hessian `[m+1, m+1]`."""
        exits, loss = len(weights), 0.0
        eye = torch.eye(exits, dtype=torch.float64)
        gradient, hessian = torch.zeros_like(weights), torch.zeros_like(eye)
        for rows, classes in self.parts:
            logits = rows[:exits]  # [m+1, n, K]
            flat = logits.flatten(1)
            log_probs = (weights.float() @ flat).view(logits.shape[1:]).log_softmax(dim=1)
            loss += nll_loss(log_probs, classes, reduction="sum").item()
            expected = flat * log_probs.exp().flatten()
            means = expected.view(logits.shape).sum(dim=2)  # [m+1, n]
            target = logits[:, torch.arange(len(classes)), classes]
            gradient += (means - target).sum(dim=1)
            hessian += expected @ flat.T - means @ means.T
        # The current exit alone is the answer that an ensemble has to improve on.
        away = weights - eye[-1]
        loss = loss / self.count + shrinkage * float(away @ away)
        gradient = gradient / self.count + 2 * shrinkage * away
        return loss, gradient, hessian / self.count + (2 * shrinkage + 1e-6) * eye


@dataclass(frozen=True)
class _Chunks:
    """Logits as float32 `[M, n, K]`, with labels, a few samples at a time."""

    logits: Tensor
    labels: Tensor

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows, classes in zip(self.logits.split(CHUNK), self.labels.split(CHUNK), strict=True):
            values = rows.float().transpose(0, 1)
            # No softmax sees a constant, and float32 sums are more exact without it.
            yield (values - values.mean(dim=2, keepdim=True)).contiguous(), classes


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
