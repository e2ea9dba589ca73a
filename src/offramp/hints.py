"""What was probably meant by a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


def close_names(
    name: object, known: Iterable[str], count: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Known names that look like this one, the closest first; `cutoff` from 0 to 1."""
    candidates = list(known)
    begun = [each for each in candidates if str(name) and each.startswith(str(name))]
    return get_close_matches(str(name), candidates, count, cutoff) or begun[:count]


def did_you_mean(name: object, known: Iterable[str], prefix: str = "", cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: the closest known one, or nothing.

    The prefix is put before the suggestion, where the name is only a part of what was written.

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


def near_path(path: Path) -> str:
    """The end of a message about a path that is not there: what lies beside it, or nothing."""
    missing = next((each for each in (*reversed(path.parents), path) if not each.exists()), path)
    beside = missing.parent.iterdir() if missing.parent.is_dir() else ()
    close = close_names(missing.name, sorted(each.name for each in beside))
    return f"; did you mean {missing.with_name(close[0])}?" if close else ""
