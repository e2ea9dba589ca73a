"""Made-up ledgers with a known structure, for docs, tests and a first try."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from offramp import check
from offramp.arrays import Array, sigmoid
from offramp.costs import Costs
from offramp.ledger import Ledger

__all__ = ["cascade", "ledgers"]

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
        rng = np.random.default_rng(3 * seed + number)
        labels = rng.integers(classes, size=samples)
        made[split] = Ledger(
            kind.logits(labels, rng).astype(np.float32),
            labels,
            costs,
            split=split,
            sample_ids=[f"{split}-{index}" for index in range(samples)],
            network=f"synthetic seed={seed} {kind}",
        )
    return made


def cascade(
    seed: int = 0,
    samples: int = 300,
    prices: tuple[float, ...] = (1.0, 4.0, 10.0, 30.0),
    known: bool = True,
) -> dict[str, Ledger]:
    """Three ledgers of a made-up cascade of models that answer questions for dollars.

    Every model is better than the one before it, and overconfident in a way of its own. Wrong
    answers of one question are often the same. Costs differ from question to question.

    Args:
        seed: The same seed gives the same ledgers.
        samples: Questions in each split.
        prices: Of each model, per unit of a question's length.
        known: Whether the answers are known, or only which are right.

    Returns:
        `{"held_out": ..., "val": ..., "test": ...}`.

    Example:
        >>> cascade(seed=0)["test"]
        Ledger(split='test', 300 samples, 4 stages of answers, dollars costs)
    """
    random, models = np.random.default_rng(seed), len(prices)
    skills, habits = np.linspace(0.2, 1.8, models), random.uniform(0.5, 2.0, models)
    found: dict[str, Ledger] = {}
    for split in ("held_out", "val", "test"):
        hardness = random.normal(size=(samples, 1))
        edge = skills - hardness + 0.7 * random.normal(size=(samples, models))
        stated = sigmoid(2 * edge + random.normal(size=edge.shape)) ** habits
        answers = np.where(edge > 0, 0, random.integers(1, 4, edge.shape))
        told: dict[str, Any] = (
            {"answers": answers, "labels": [0] * samples} if known else {"correct": edge > 0}
        )
        lengths = random.lognormal(0, 0.3, (samples, 1))
        found[split] = Ledger.from_answers(
            **told,
            confidence=stated.clip(0.001, 0.999),
            costs=Costs.of_members(lengths * np.array(prices), "dollars"),
            split=split,
            network=f"made-up cascade {seed}",
            sample_ids=[f"{split}-{number}" for number in range(samples)],
        )
    return found


@dataclass(frozen=True)
class _Structured:
    exits: int
    classes: int
    hopeless: float
    relapse: float

    def logits(self, labels: Array, rng: np.random.Generator) -> Array:
        """`[N, M, K]`."""
        shape = (len(labels), self.exits)
        others = _other_classes(labels, self.classes, rng)  # [N, K-1], in random order
        right = self._right(len(labels), rng)  # bool [N, M]
        lost = np.logical_not(right.any(axis=1))
        logits = 0.8 * _correlated_noise(shape, self.classes, rng)
        # Unsure samples: the true class and a rival are close. Hopeless ones: six rivals are.
        rivals = rng.normal(3.6, 0.6, shape)
        _add(logits, others[:, 0], rivals)
        _add(logits, labels, np.where(lost[:, None], 0.0, rivals - 0.5))
        for other in others[:, 1:6].T:
            _add(logits, other, np.where(lost, 1.6, 0.0)[:, None])
        depth = np.linspace(0, 1, self.exits)
        _add(logits, labels, right * (2.0 + 1.5 * depth + 1.2 * np.abs(rng.normal(size=shape))))
        _enforce(logits, labels, others[:, 0], right)
        return OVERCONFIDENCE * logits

    def _right(self, samples: int, rng: np.random.Generator) -> Array:
        """Which exit is right, bool `[N, M]`: from some depth on, but for the relapses."""
        exits = np.arange(self.exits)
        start = rng.integers(self.exits, size=(samples, 2)).min(axis=1)
        is_lost, relapses = (rng.random(samples) < p for p in (self.hopeless, self.relapse))
        length = rng.integers(1, max(2, self.exits - 1), size=samples)
        end = np.where(relapses, start + length, self.exits)
        right = (exits >= start[:, None]) & (exits < end[:, None])
        return np.asarray(right & ~is_lost[:, None])


@dataclass(frozen=True)
class _Free:
    exits: int
    classes: int

    def logits(self, labels: Array, rng: np.random.Generator) -> Array:
        """`[N, M, K]`.

        Every exit is a degraded copy of the next one: at random it forgets the class and claims
        little, else it keeps the class and claims a bit less. So nothing said earlier adds to
        what an exit says, and what it says is all in how much it claims for its class.
        """
        samples = len(labels)
        claim = rng.normal(2.5, 1.0, samples)  # log-odds
        right = rng.random(samples) < sigmoid(claim)
        top = np.where(right, labels, rng.integers(self.classes, size=samples))
        logits = 1e-3 * rng.normal(size=(samples, self.exits, self.classes))
        for exit_index in reversed(range(self.exits)):
            # The class with the claim must stay on top of the others, which lie near zero.
            lift = np.maximum(claim + math.log(self.classes - 1), 0.1)
            logits[np.arange(samples), exit_index, top] += lift
            forgets = rng.random(samples) < 0.12
            claim = np.where(forgets, rng.normal(0.7, 1.0, samples), claim - 0.05)
            top = np.where(forgets, rng.integers(self.classes, size=samples), top)
        return OVERCONFIDENCE * logits


def _add(logits: Array, classes: Array, values: Array) -> None:
    """Add `[N, M]` to the logits of one class `[N]` of each sample."""
    logits[np.arange(len(logits)), :, classes] += values


def _other_classes(labels: Array, classes: int, rng: np.random.Generator) -> Array:
    """All classes but the label, in random order, `[N, K-1]`."""
    order = rng.random((len(labels), classes - 1)).argsort(axis=1)
    return np.asarray((labels[:, None] + 1 + order) % classes)


def _correlated_noise(shape: tuple[int, int], classes: int, rng: np.random.Generator) -> Array:
    """`[N, M, K]`: half of the variance belongs to the sample, half to the exit."""
    shared, own = rng.normal(size=(shape[0], 1, classes)), rng.normal(size=(*shape, classes))
    return np.asarray((shared + own) / math.sqrt(2))


def _enforce(logits: Array, labels: Array, rivals: Array, right: Array) -> None:
    """Swap two logits where noise made an exit right or wrong against the plan."""
    top = logits.argmax(axis=2)
    sample, exit_index = np.nonzero((top == labels[:, None]) != right)
    label = labels[sample]
    partner = np.where(right, top, rivals[:, None])[sample, exit_index]
    here = logits[sample, exit_index]  # [Z, K]
    rows = np.arange(len(here))
    logits[sample, exit_index, label] = here[rows, partner]
    logits[sample, exit_index, partner] = here[rows, label]
