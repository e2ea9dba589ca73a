"""What was probably meant by a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


def close_names(
    name: object, known: Iterable[str], count: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Known names that look like this one, the closest first.

    Args:
        name: As the user wrote it.
        known: Names that would have been right.
        count: At most so many.
        cutoff: How alike they must be, from 0 to 1.

    Example:
        >>> close_names("epoch", ["epochs", "seed"])
        ['epochs']
    """
    candidates = list(known)
    begun = [each for each in candidates if str(name) and each.startswith(str(name))]
    return get_close_matches(str(name), candidates, count, cutoff) or begun[:count]


def did_you_mean(name: object, known: Iterable[str], prefix: str = "", cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: the closest known one, or nothing.

    Args:
        name: As the user wrote it.
        known: Names that would have been right.
        prefix: Put before the suggestion, where the name is only a part of what was written.
        cutoff: How alike they must be, from 0 to 1.

    Example:
        >>> did_you_mean("epoch", ["epochs", "seed"]), did_you_mean("x", ["epochs", "seed"])
        ('; did you mean `epochs`?', '')
    """
    close = close_names(name, known, cutoff=cutoff)
    return f"; did you mean `{prefix}{close[0]}`?" if close else ""


def or_known(name: object, known: Iterable[str]) -> str:
    """The same, with the list of all known names where none is close.

    Example:
        >>> or_known("x", ["seed", "epochs"])
        '; known are epochs, seed'
    """
    candidates = list(known)
    return did_you_mean(name, candidates) or f"; known are {', '.join(sorted(candidates))}"
