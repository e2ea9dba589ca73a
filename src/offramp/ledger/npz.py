"""Reading a plain `.npz` of per-exit logits, whatever wrote it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
import numpy.typing as npt

from offramp.costs import Costs, SampleCosts
from offramp.errors import FileFormatError
from offramp.hints import close_names
from offramp.ledger.tables import has_answers

OPTIONAL = ("labels", "reference_cost", "unit", "sample_ids", "network", "groups", "lengths")
KNOWN = ("logits", "costs", "stage_costs", "head_costs", *OPTIONAL)


def read_npz(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of an `.npz`, never unpickled."""
    if path.is_file() and not is_zipfile(path):
        raise FileFormatError(
            f"{path} is not a complete .npz file: it is truncated, or no .npz at all; write it "
            "with numpy.savez(path, logits=..., labels=..., costs=...)"
        )
    try:
        # Never with pickle: an object array in a file can run code when it is read.
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (BadZipFile, ValueError, OSError, EOFError, AttributeError, TypeError) as error:
        if "pickle" in str(error).lower():
            raise FileFormatError(
                f"{path} holds arrays of Python objects, which are never read, since they can run "
                "code; write arrays of numbers, all rows of one length"
            ) from None
        raise FileFormatError(f"{path} cannot be read as an .npz: {error}") from None
    if has_answers(arrays):
        return arrays
    missing = [key for key in ("logits", "labels") if key not in arrays]
    if "logits" in missing or ("labels" in missing and _like_labels(arrays)):
        raise FileFormatError(
            f"{path} has no {' and no '.join(missing)}; it has {', '.join(arrays) or 'nothing'}"
            f"{_near(missing, arrays) or _like_labels(arrays)}"
        )
    misspelt = _near([name for name in OPTIONAL if name not in arrays], arrays)
    if misspelt:
        raise FileFormatError(f"{path} has arrays that look misspelt{misspelt}")
    return arrays


def npz_costs(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> Costs | SampleCosts:
    """The costs in the arrays: stage and head costs apart, or plain cumulative ones."""
    apart = [key for key in ("stage_costs", "head_costs") if key in arrays]
    if "costs" in arrays and apart:
        raise FileFormatError(f"{path} has both `costs` and `{apart[0]}`; leave one of them out")
    if "costs" not in arrays and len(apart) < 2:
        raise FileFormatError(
            f"{path} has no `costs` (cumulative, one per exit), and no `stage_costs` with "
            f"`head_costs`; it has {', '.join(arrays)}{_near(['costs'], arrays)}"
        )
    reference = _scalar(path, arrays, "reference_cost", 0.0)
    if apart:
        unit = _scalar(path, arrays, "unit", "macs")
        return Costs(arrays["stage_costs"], arrays["head_costs"], reference, unit)  # type: ignore[arg-type]
    unit = _scalar(path, arrays, "unit", "relative")
    if arrays["costs"].ndim == 2:
        return SampleCosts.from_cumulative(arrays["costs"], unit)
    return Costs.from_cumulative(arrays["costs"], unit, reference)


def npz_network(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> str | None:
    """Which network made the logits: any text that is the same for all its files; or None."""
    return _scalar(path, arrays, "network", "") or None


def _near(missing: Iterable[str], arrays: Iterable[str]) -> str:
    """The end of a sentence that guesses which arrays have a wrong name."""
    foreign = {name.lower(): name for name in arrays if name not in KNOWN}
    guesses = []
    for name in missing:
        near = close_names(name, foreign)
        guesses += [f"`{foreign[each]}` to `{name}`" for each in near]
    return f"; rename {' and '.join(guesses)}?" if guesses else ""


def _like_labels(arrays: dict[str, npt.NDArray[np.generic]]) -> str:
    """The end of a sentence on an unknown array that may be the labels: an integer per sample."""
    samples = arrays["logits"].shape[:1] if "logits" in arrays else None
    for name, values in arrays.items():
        if name not in KNOWN and values.shape == samples and values.dtype.kind in "iu":
            return f"; rename `{name}` to `labels`, or leave it out where there are none?"
    return ""


def _scalar(path: Path, arrays: dict[str, npt.NDArray[np.generic]], key: str, default: Any) -> Any:  # noqa: ANN401
    """One number or word, of the type of the default."""
    value = arrays.get(key, np.array(default))
    if value.size != 1:
        raise FileFormatError(f"{path}: `{key}` must be a single value, got {list(value.shape)}")
    try:
        return type(default)(value.item())
    except ValueError:
        raise FileFormatError(f"{path}: `{key}` must be a number, got {value.item()!r}") from None
