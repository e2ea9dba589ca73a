"""Exits that are less accurate than an exit before them, and where to cut a network."""

import numpy as np

from offramp.arrays import Array
from offramp.evaluation.bootstrap import Interval, for_all, unseen_variance
from offramp.ledger import Ledger


def worse_exits(ledger: Ledger) -> dict[int, tuple[int, Interval]]:
    """Exits that are clearly less accurate than one before them: that one, and the difference.

    Example:
        >>> right = np.array([[0, 1, 0], [1, 1, 0], [1, 1, 1]])[np.arange(300) % 3]
        >>> logits = np.stack([-1.0 * right, right], axis=2)
        >>> ledger = Ledger(logits, np.ones(300, int), [1, 2, 3], split="val")
        >>> [(index, before) for index, (before, gap) in worse_exits(ledger).items()]
        [(2, 1)]
    """
    right = ledger.heads_correct.astype(np.float64)
    found = {}
    for index in range(1, ledger.num_exits):
        before = int(right[:, :index].mean(axis=0).argmax())
        gap = _mean_of(right[:, index] - right[:, before], ledger)
        gap = for_all(gap, ledger.num_exits - 1)
        if gap.is_clear and gap.high < 0:
            found[index] = before, gap
    return found


def worse_exits_in_words(ledger: Ledger) -> list[str]:
    """The same in sentences, with what to do; empty for most networks, and without labels."""
    if not ledger.has_labels:
        return []
    worse, last = worse_exits(ledger), ledger.num_exits - 1
    found = []
    cut = worse[last][0] if last in worse else last
    if cut < last:
        gap, alone = worse[last][1], ledger.cost_model.alone
        saved = 1 - alone[cut] / ledger.reference_cost
        found.append(
            f"On {ledger.split}, the last exit is less accurate than exit {cut} by "
            f"{points(gap)}: cut the network there (ledger.keep_exits(range({cut + 1}))), which "
            f"saves {saved:.0%} of it."
        )
    for index, (before, gap) in worse.items():
        if index < cut:
            found.append(
                f"On {ledger.split}, exit {index} is less accurate than exit {before} before it "
                f"by {points(gap)}: leave it out."
            )
    return found


def points(gap: Interval) -> str:
    """A difference of accuracies in words.

    Example:
        >>> points(Interval(0.0123, -0.001, 0.02, False))
        '+1.23 points [-0.10, +2.00]'
    """
    value, low, high = (round(100 * x, 2) + 0.0 for x in (gap.value, gap.low, gap.high))
    return f"{value:+.2f} points [{low:+.2f}, {high:+.2f}]"


def _mean_of(values: Array, ledger: Ledger) -> Interval:
    """The mean of values `[N]`, whose groups are independent."""
    mean, numbers = float(values.mean()), ledger.group_numbers
    apart: Array = values - mean
    if numbers is not None:
        apart = np.bincount(numbers, apart)
    variance = float((apart**2).sum()) / len(values) ** 2 + unseen_variance(ledger.num_units)
    return Interval.around(mean, variance**0.5)
