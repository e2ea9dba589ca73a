"""Signs of mistakes that no type and no shape shows."""

import math
import warnings
from collections import Counter
from collections.abc import Iterable

import numpy as np

from offramp.arrays import Array
from offramp.errors import LedgerWarning
from offramp.ledger.ledger import Ledger

FEW = 50  # samples, below which figures are noise
MOST_READ = 20_000  # samples at most
SIGMAS = 3.0  # above chance, at which an exit is no guess
COPIES = 0.01  # share of samples that may look alike by chance


def warn_of_oddities(ledgers: Iterable[Ledger]) -> None:
    """Warn of what `oddities` finds.

    Warns:
        LedgerWarning: One for each.
    """
    for ledger in ledgers:
        for text in oddities(ledger):
            warnings.warn(f"{ledger.split}: {text}", LedgerWarning, stacklevel=3)


def oddities(ledger: Ledger) -> list[str]:
    """What looks like a mistake, in sentences; empty for most ledgers.

    Few samples, copies of samples, labels that have nothing to do with the answers, exits that
    guess. Of large ledgers, the first 20,000 samples are read.

    Example:
        >>> from offramp import synthetic
        >>> val = synthetic.ledgers(seed=0)["val"]
        >>> oddities(val)
        []
        >>> oddities(val.take([0, 1, 2, 3]))
        ['there are only 4 samples, and figures from fewer than 50 are noise']
    """
    found = []
    if len(ledger) < FEW:
        few = f"there are only {len(ledger)} samples, and figures from fewer than"
        return [f"{few} {FEW} are noise"]
    if not ledger.has_logits:  # answers may be alike, and what is right is given
        return []
    part = ledger if len(ledger) <= MOST_READ else ledger.take(np.arange(MOST_READ))
    if ledger.groups is None:
        found += _copies(part)
    if ledger.has_labels:
        found += _guesses(part)
    return found


def _copies(ledger: Ledger) -> list[str]:
    rows = (row for _, logits in ledger.chunks() for row in logits)
    prints = Counter(hash(row.tobytes()) for row in rows)
    alike = sum(count for count in prints.values() if count > 1)
    if alike <= COPIES * len(ledger):
        return []
    return [
        f"{alike:,} of {len(ledger):,} samples have the same logits as another one; copies in "
        "several splits make figures too good: leave them out, or name what belongs together in "
        "`groups`"
    ]


def _guesses(ledger: Ledger) -> list[str]:
    predictions = np.concatenate([logits.argmax(axis=2) for _, logits in ledger.chunks()])
    guessing = [m for m in range(ledger.num_exits) if _is_guess(predictions[:, m], ledger)]
    if not guessing:
        return []
    if len(guessing) == ledger.num_exits:
        return [
            "no exit is better than chance: are labels and logits in the same order, and do "
            "classes count alike?"
        ]
    which = f"exit {guessing[0]} is" if len(guessing) == 1 else f"the exits {guessing} are"
    return [f"{which} no better than chance; ledger.keep_exits leaves exits out"]


def _is_guess(predictions: Array, ledger: Ledger) -> bool:
    """Whether answers and labels agree no more often than independent ones would."""
    samples = len(predictions)
    answered, true = (
        np.bincount(each, minlength=ledger.num_classes) / samples
        for each in (predictions, ledger.labels)
    )
    chance = float((answered * true).sum())
    right = float((predictions == ledger.labels).mean())
    # An exit that always answers the same class is right as often as chance has it.
    return right <= chance + SIGMAS * math.sqrt(chance * (1 - chance) / samples)
