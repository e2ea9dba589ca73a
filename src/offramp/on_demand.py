"""Labels on demand: a guarantee that asks for the labels that it needs, one by one.

Where a policy answers as the full network does, nothing is lost, whatever the label is. So labels
are needed of samples whose early answer differs, and only until the guarantee is certain: a
gambler bets on a loss below epsilon, sample by sample in random order. If the loss were larger,
his wealth would exceed 1 / delta with probability delta at most, however long he plays
(Waudby-Smith and Ramdas 2024).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

import numpy as np

from offramp.arrays import Array
from offramp.errors import ConfigError, LedgerError
from offramp.ledger import Ledger
from offramp.ledger.chunks import cut
from offramp.replay import Replay

Oracle = Callable[[Any], Any]
"""From the id of a sample, or its number where it has none, to its class; of answers without
logits, to a row of truth values: which stages are right."""

KINDS = ("accuracy", "regret")
HOPELESS = 50  # samples with a label, after which a loss that seems too large is given up
BOLD = 0.9  # of the largest stake that cannot ruin the gambler


@dataclass
class Labels:
    """The labels that were asked for.

    Attributes:
        oracle: Who knows them.
        val: The samples, in which stages are numbered as the oracle does.
        budget: How many may be asked for; None for as many as are needed.
        known: By sample, whether each exit of `val` is right, bool `[M]`.
    """

    oracle: Oracle
    val: Ledger
    budget: int | None = None
    known: dict[int, Any] = field(default_factory=dict)

    def of(self, sample: int) -> Any | None:  # noqa: ANN401 - a class, or a row of truth values
        """The label of a sample; None where no more may be asked for."""
        if sample not in self.known:
            if self.budget is not None and len(self.known) >= self.budget:
                return None
            ids = self.val.sample_ids
            self.known[sample] = self._checked(self.oracle(sample if ids is None else ids[sample]))
        return self.known[sample]

    def _checked(self, label: Any) -> Any:  # noqa: ANN401
        if self.val.has_logits:
            if isinstance(label, int | np.integer) and 0 <= label < self.val.num_classes:
                return int(label)
            wanted = f"the number of a class in 0..{self.val.num_classes - 1}"
        else:
            row = np.asarray(label)
            if row.shape == (self.val.num_exits,) and row.dtype == np.bool_:
                return row
            wanted = f"a truth value for each of {self.val.num_exits} stages: which are right"
        raise LedgerError(f"the oracle must give {wanted}; got {label!r}")


@dataclass(frozen=True)
class Walk:
    """How far a path was certified.

    Attributes:
        point: Number of the last point that was; None where none was.
        loss: Mean loss there, on the samples that were looked at.
        samples: How many these were.
    """

    point: int | None
    loss: float
    samples: int


def walk(
    replay: Replay, kept: Sequence[int], labels: Labels, kind: str, epsilon: float, delta: float
) -> Walk:
    """Certify operating points from the most costly one on, until one fails.

    Args:
        replay: Of a tuned policy on the samples; it needs no labels.
        kept: Which exits of the samples' ledger these are.
        labels: To ask for.
        kind: `accuracy` or `regret`.
        epsilon: What the mean loss is to be at most.
        delta: Probability with which the guarantee may fail.
    """
    if kind not in KINDS:
        raise ConfigError(
            f"labels on demand serve the losses {' and '.join(KINDS)}, which are zero wherever an "
            f"early answer is that of the full network; got loss={kind!r}"
        )
    if replay.groups is not None:
        raise ConfigError("labels on demand need samples without groups: label all of val instead")
    (order,) = cut(len(replay), 1, seed=0)
    early, full, differs = _answers(replay, kept, labels.val)
    found = Walk(None, float("nan"), 0)
    for point in reversed(range(len(replay.exits_by_point))):
        exits = replay.exits_by_point[point]

        def loss_of(sample: int, exits: Array = exits) -> float | None:
            if not differs[sample, exits[sample]]:
                return 0.0
            label = labels.of(sample)
            if label is None:
                return None
            right = (label == np.arange(labels.val.num_classes)) if np.ndim(label) == 0 else label
            net = float(right[full[sample]]) - float(right[early[sample, exits[sample]]])
            return max(net, 0.0) if kind == "regret" else net

        tried = _bet(order, loss_of, epsilon, delta)
        if tried is None:
            break
        found = Walk(point, *tried)
    return found


def _answers(replay: Replay, kept: Sequence[int], val: Ledger) -> tuple[Array, Array, Array]:
    """What is answered at each exit `[N, M]`, and by the full network `[N]`; where they differ.

    Classes, or, of answers without logits, numbers of stages.
    """
    if val.has_logits:
        last = val.keep_exits([val.num_exits - 1])
        full = np.concatenate([logits[:, 0].argmax(axis=1) for _, logits in last.chunks()])
        return replay.predictions, full, replay.predictions != full[:, None]
    early = np.asarray(kept)[replay.predictions]
    full = np.full(len(val), val.num_exits - 1)
    # The first stage that gave the same answer; each is its own, where nobody knows the answers.
    first = val.outputs[..., 1]
    differs = np.take_along_axis(first, early, axis=1) != first[:, -1:]
    return early, full, differs


def _bet(
    order: Array,
    loss_of: Callable[[int], float | None],
    epsilon: float,
    delta: float,
) -> tuple[float, int] | None:
    """Bet on a mean loss below epsilon: the mean so far and the number of samples, once won."""
    wealth, total, squares, asked = 0.0, 0.0, 0.0, 0
    for number, sample in enumerate(order.tolist()):
        # Growth is largest for the edge by its variance; both are guessed from what was seen.
        mean = (total + epsilon / 2) / (number + 1)
        variance = (squares + epsilon / 2) / (number + 1) - mean**2
        edge = epsilon - mean
        stake = min(max(edge, 0.0) / (variance + edge**2), BOLD / (1 - epsilon))
        loss = loss_of(sample)
        if loss is None:
            return None
        wealth += log(1 + stake * (epsilon - loss))
        total, squares, asked = total + loss, squares + loss**2, asked + (loss != 0)
        if wealth >= log(1 / delta):
            return total / (number + 1), number + 1
        seen = number + 1
        spread = max(squares / seen - (total / seen) ** 2, 0.0) ** 0.5
        if asked >= HOPELESS and total / seen - spread / seen**0.5 > epsilon:
            return None
    return None
