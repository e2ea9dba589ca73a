"""Reading a plain `.npz` of per-exit logits, whatever wrote it."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from offramp.costs import Costs
from offramp.errors import FileFormatError

__all__ = ["npz_costs", "read_npz"]


def read_npz(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of an `.npz`, never unpickled.

    Raises:
        FileFormatError: The file is truncated, foreign, or has no logits or no labels.
    """
    try:
        # Never with pickle: an object array in a file can run code when it is read.
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (BadZipFile, ValueError, OSError, EOFError, AttributeError, TypeError) as error:
        raise FileFormatError(
            f"{path} is not a readable .npz of plain arrays; it is truncated, foreign, or holds "
            f"pickled objects, which are never read ({error})"
        ) from None
    missing = [key for key in ("logits", "labels") if key not in arrays]
    if missing:
        raise FileFormatError(
            f"{path} has no {' and no '.join(missing)}; it has {', '.join(arrays) or 'nothing'}"
        )
    return arrays


def npz_costs(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> Any:  # noqa: ANN401
    """The costs in the arrays: stage and head costs apart, or plain cumulative ones."""
    if "stage_costs" in arrays and "head_costs" in arrays:
        reference = float(arrays.get("reference_cost", np.array(0.0)))
        unit = str(arrays.get("unit", "macs"))
        return Costs(tuple(arrays["stage_costs"]), tuple(arrays["head_costs"]), reference, unit)
    if "costs" not in arrays:
        raise FileFormatError(
            f"{path} has no `costs` (cumulative, one per exit), and no `stage_costs` with "
            f"`head_costs`; it has {', '.join(arrays)}"
        )
    return arrays["costs"]
