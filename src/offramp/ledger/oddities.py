"""Signs of mistakes that no type and no shape shows."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import pdtrc

from offramp.arrays import Array
from offramp.errors import LedgerWarning

if TYPE_CHECKING:
    from offramp.ledger.ledger import Ledger

FEW = 50  # samples, below which figures are noise
MOST_READ = 20_000  # samples at most
SIGMAS = 3.0  # above chance, at which an exit is no guess
COPIES = 0.01  # share of samples that may look alike by chance
BY_CHANCE = 1e-4  # that so many classes are missing in a split
DIMENSIONS = 32  # in which samples are compared
FAR = 20  # the neighbour up to which distances are looked at
TOO_NEAR = 1e-3  # as a chance, of which about nine times as many samples are honestly this near
NEAR_COPIES = 0.1  # share of samples that may be so near
MOST_ASKED = 500  # samples whose neighbours are looked for


def warn_of_oddities(ledgers: Iterable["Ledger"]) -> None:
    """Warn of what `oddities` finds.

    Warns:
        LedgerWarning: One for each.
    """
    for ledger in ledgers:
        for text in oddities(ledger):
            warnings.warn(f"{ledger.split}: {text}", LedgerWarning, stacklevel=3)


def warn_of_none_right(
    right: Array,
    pairs: Mapping[int, Sequence[tuple[Any, Any]]],
    names: Sequence[str] | None,
    form_of: Callable[[Any], Any],
) -> None:
    """Warn where no answer is right, of any stage or of one: labels may be written otherwise.

    A few wrong answers of the right type are no sign: the first of a chain may know nothing.

    Args:
        right: bool `[N, W]`.
        pairs: By stage that is never right, its answers and their labels; none where answers or
            labels are not known.
        names: `[W]`, of the stages.
        form_of: A label as it is compared.
    """
    if not right.any():
        hint = "is `correct` what it should be?"
        if pairs:
            hint = _both_forms(*next(iter(pairs.values()))[0])
        text = f"no answer of the {len(right):,} samples is ever right: {hint}"
        warnings.warn(text, LedgerWarning, stacklevel=4)
        return
    for stage, given in pairs.items():
        kinds = {type(form_of(truth)) for _, truth in given}
        strange = [pair for pair in given if pair[0] is not None and type(pair[0]) not in kinds]
        if strange or len(given) >= FEW:
            who = f"stage {stage}" if names is None else f"`{names[stage]}`"
            hint = _both_forms(*(strange or given)[0])
            text = f"no answer of {who} is ever right, of {len(given):,} samples: {hint}"
            warnings.warn(text, LedgerWarning, stacklevel=4)


def _both_forms(answer: Any, truth: Any) -> str:  # noqa: ANN401
    return (
        f"the first answer is {answer!r} ({type(answer).__name__}), and its label {truth!r} "
        f"({type(truth).__name__}); `normalise`, such as str, brings both into the form that is "
        "compared"
    )


def oddities(ledger: "Ledger") -> list[str]:
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


def warn_of_classes(*ledgers: "Ledger") -> None:
    """Warn where a split has samples of fewer classes than the others, by more than chance.

    Warns:
        LedgerWarning: Once for each split.
    """
    for text in missing_classes(*ledgers):
        warnings.warn(text, LedgerWarning, stacklevel=3)


def missing_classes(*ledgers: "Ledger") -> list[str]:
    """Which splits lack classes that the others have, in sentences; empty for most.

    Example:
        >>> from offramp import synthetic
        >>> splits = synthetic.ledgers(seed=0)
        >>> half = splits["test"].take(splits["test"].labels < 5)
        >>> missing_classes(splits["val"], half)
        ['test has no samples of 15 of the 20 classes that the other splits have, such as 5: ...']
    """
    labelled = [each for each in ledgers if each.has_labels and each.has_logits]
    counts = [np.bincount(each.labels, minlength=each.num_classes) for each in labelled]
    found = []
    for ledger, mine in zip(labelled, counts, strict=True):
        others = sum(counts) - mine
        shares = others / max(others.sum(), 1)
        gone = np.flatnonzero((mine == 0) & (others > 0))
        # By chance, N samples miss a class of share s with (1 - s)^N, and few classes at once.
        expected = float(((1 - shares[others > 0]) ** len(ledger)).sum())
        if len(gone) and pdtrc(len(gone) - 1, expected) < BY_CHANCE:
            names = ledger.class_names or range(ledger.num_classes)
            found.append(
                f"{ledger.split} has no samples of {len(gone)} of the {(others > 0).sum()} "
                f"classes that the other splits have, such as {names[gone[0]]}: policies are "
                "fitted and tuned on other data than they are measured on"
            )
    return found


def _near_copies(ledger: "Ledger") -> list[str]:
    """Whether many samples are much closer to one another than neighbours are elsewhere.

    Distances are those of the last exit's logits in a random projection. Among honest samples in D
    dimensions, `(d1/d10)^D`, of the nearest and the tenth neighbour, is below t with a chance of
    9t; D is estimated from the tenth and the twentieth, which copies of a sample hardly change.
    """
    rng, classes = np.random.default_rng(0), ledger.num_classes
    view = rng.standard_normal((classes, min(classes, DIMENSIONS)))
    seen = np.concatenate([logits[:, -1] @ view for _, logits in ledger.chunks()])
    asked = rng.permutation(len(seen))[:MOST_ASKED]
    if len(seen) <= 2 * FAR:
        return []
    distances = [
        np.sort(np.partition(((seen - seen[row]) ** 2).sum(axis=1), FAR)[: FAR + 1]) ** 0.5
        for row in asked
    ]
    nearest, near, far = np.array(distances).T[[1, FAR // 2, FAR]]
    spread = np.log(far / np.maximum(near, 1e-30))
    if not (near > 0).all() or spread.mean() <= 0:
        return []  # of a few values only, or copies, which are counted exactly
    dimensions = math.log(2) / spread.mean()
    alike = float(((nearest / near) ** dimensions < TOO_NEAR).mean())
    if alike <= NEAR_COPIES:
        return []
    return [
        f"about {alike:.0%} of the samples have nearly the same logits as another one; if they "
        "are versions of one thing, such as frames of a film or a question that is asked again, "
        "name it in `groups`, or intervals are too narrow and splits are not disjoint"
    ]


def _copies(ledger: "Ledger") -> list[str]:
    rows = (row for _, logits in ledger.chunks() for row in logits)
    prints = Counter(hash(row.tobytes()) for row in rows)
    alike = sum(count for count in prints.values() if count > 1)
    if alike <= COPIES * len(ledger):
        return _near_copies(ledger)
    return [
        f"{alike:,} of {len(ledger):,} samples have the same logits as another one; copies in "
        "several splits make figures too good: leave them out, or name what belongs together in "
        "`groups`"
    ]


def _guesses(ledger: "Ledger") -> list[str]:
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


def _is_guess(predictions: Array, ledger: "Ledger") -> bool:
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
