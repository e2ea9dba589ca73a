"""Made-up ledgers with a known structure, for docs, tests and a first try."""

from dataclasses import dataclass

import torch
from torch import Tensor

from offramp import check
from offramp.costs import Costs
from offramp.ledger import Ledger

__all__ = ["ledgers"]

OVERCONFIDENCE = 1.8  # all logits are this much too large


def ledgers(
    seed: int = 0,
    samples: int = 2000,
    exits: int = 8,
    classes: int = 20,
    structure: bool = True,
    hopeless: float = 0.2,
    relapse: float = 0.03,
) -> dict[str, Ledger]:
    """Three ledgers of one made-up overconfident network.

    With structure, a sample becomes right at some depth and mostly stays right; until then two
    classes compete. A `hopeless` share is never right: there, many classes compete. Both look
    equally unsure by their max probability, so that only a score that sees more can tell which
    of them is worth more compute. A `relapse` share is right first and wrong again later.

    Without structure, all that an exit knows is how much it claims for its class: neither the
    other classes nor the exits before it add anything. There, max probability is as good a score
    as any, and correction must not win.

    Args:
        seed: The same seed gives the same ledgers.
        samples: Samples in each split.
        exits: M, at least 2.
        classes: K, at least 8.
        structure: Which of the two kinds.
        hopeless: Share of samples that no exit gets right (with structure).
        relapse: Share of the other samples that later exits get wrong again (with structure).

    Returns:
        `{"held_out": ..., "val": ..., "test": ...}`.

    Example:
        >>> splits = ledgers(seed=0, samples=500)
        >>> splits["test"]
        Ledger(split='test', 500 samples, 8 exits, 20 classes, macs costs)
    """
    check.whole("exits", exits, least=2)
    check.whole("classes", classes, least=8)
    check.within("hopeless", hopeless, 0, 1)
    check.within("relapse", relapse, 0, 1)
    costs = Costs(stages=(1e6,) * exits, heads=(1e4,) * exits)
    kind = _Structured(exits, classes, hopeless, relapse) if structure else _Free(exits, classes)
    made = {}
    for number, split in enumerate(("held_out", "val", "test")):
        generator = torch.Generator().manual_seed(3 * seed + number)
        labels = torch.randint(classes, (samples,), generator=generator)
        made[split] = Ledger(
            kind.logits(labels, generator),
            labels,
            costs,
            split=split,
            sample_ids=[f"{split}-{index}" for index in range(samples)],
            network=f"synthetic seed={seed} {kind}",
        )
    return made


@dataclass(frozen=True)
class _Structured:
    exits: int
    classes: int
    hopeless: float
    relapse: float

    def logits(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """`[N, M, K]`."""
        samples, shape = len(labels), (len(labels), self.exits)
        others = _other_classes(labels, self.classes, generator)  # [N, K-1], in random order
        right = self._right(samples, generator)  # bool [N, M]
        lost = ~right.any(dim=1)
        noise = _correlated_noise(shape, self.classes, generator)
        depth = torch.linspace(0, 1, self.exits)
        logits = 0.8 * noise
        # Unsure samples: the true class and a rival are close. Hopeless ones: six rivals are.
        rivals = 3.6 + 0.6 * torch.randn(*shape, generator=generator)
        logits.scatter_add_(2, _per_exit(others[:, :1], self.exits), rivals[..., None])
        near = torch.where(lost[:, None], 0.0, rivals - 0.5)
        logits.scatter_add_(2, _per_exit(labels[:, None], self.exits), near[..., None])
        crowd = torch.where(lost, 1.6, 0.0)[:, None, None].expand(*shape, 5)
        logits.scatter_add_(2, _per_exit(others[:, 1:6], self.exits), crowd)
        sure = right * (2.0 + 1.5 * depth + 1.2 * torch.randn(*shape, generator=generator).abs())
        logits.scatter_add_(2, _per_exit(labels[:, None], self.exits), sure[..., None])
        return OVERCONFIDENCE * _enforce(logits, labels, others[:, 0], right)

    def _right(self, samples: int, generator: torch.Generator) -> Tensor:
        """Which exit is right, bool `[N, M]`: from some depth on, but for the relapses."""
        exits = torch.arange(self.exits)
        start = torch.randint(self.exits, (samples, 2), generator=generator).min(dim=1).values
        draws = torch.rand(samples, 2, generator=generator)
        length = 1 + torch.randint(max(1, self.exits - 2), (samples,), generator=generator)
        end = torch.where(draws[:, 1] < self.relapse, start + length, self.exits)
        right = (exits >= start[:, None]) & (exits < end[:, None])
        return right & (draws[:, 0] >= self.hopeless)[:, None]


@dataclass(frozen=True)
class _Free:
    exits: int
    classes: int

    def logits(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """`[N, M, K]`.

        Every exit is a degraded copy of the next one: at random it forgets the class and claims
        little, else it keeps the class and claims a bit less. So nothing said earlier adds to
        what an exit says, and what it says is all in how much it claims for its class.
        """
        samples, shape = len(labels), (len(labels), self.exits)
        claim = 2.5 + torch.randn(samples, generator=generator)  # log-odds
        right = torch.rand(samples, generator=generator) < claim.sigmoid()
        top = torch.where(right, labels, self._random_class(samples, generator))
        claims, tops = torch.empty(shape), torch.empty(shape, dtype=torch.long)
        for exit_index in reversed(range(self.exits)):
            claims[:, exit_index], tops[:, exit_index] = claim, top
            forgets = torch.rand(samples, generator=generator) < 0.12
            fresh = 0.7 + torch.randn(samples, generator=generator)
            claim = torch.where(forgets, fresh, claim - 0.05)
            top = torch.where(forgets, self._random_class(samples, generator), top)
        logits = 1e-3 * torch.randn(*shape, self.classes, generator=generator)
        # The class with the claim must stay on top of the others, which lie near zero.
        lift = (claims + torch.tensor(self.classes - 1.0).log()).clamp_min(0.1)
        return OVERCONFIDENCE * logits.scatter_add_(2, tops[..., None], lift[..., None])

    def _random_class(self, samples: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.classes, (samples,), generator=generator)


def _per_exit(classes: Tensor, exits: int) -> Tensor:
    """`[N, c]` -> `[N, M, c]`, an index that is the same at every exit."""
    return classes[:, None].expand(-1, exits, -1)


def _other_classes(labels: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """All classes but the label, in random order, `[N, K-1]`."""
    order = torch.rand(len(labels), classes - 1, generator=generator).argsort(dim=1)
    return (labels[:, None] + 1 + order) % classes


def _correlated_noise(shape: tuple[int, int], classes: int, generator: torch.Generator) -> Tensor:
    """`[N, M, K]`: half of the variance belongs to the sample, half to the exit."""
    shared = torch.randn(shape[0], 1, classes, generator=generator)
    own = torch.randn(*shape, classes, generator=generator)
    return (shared + own) / 2**0.5


def _enforce(logits: Tensor, labels: Tensor, rivals: Tensor, right: Tensor) -> Tensor:
    """Swap two logits where noise made an exit right or wrong against the plan."""
    exits = logits.shape[1]
    top = logits.argmax(dim=2)
    label = _per_exit(labels[:, None], exits)
    partner = torch.where(right, top, rivals[:, None])[..., None]
    against = (top == label.squeeze(2)) != right
    at_label, at_partner = logits.gather(2, label), logits.gather(2, partner)
    swap = against[..., None]
    logits = logits.scatter(2, label, torch.where(swap, at_partner, at_label))
    return logits.scatter(2, partner, torch.where(swap, at_label, logits.gather(2, partner)))
