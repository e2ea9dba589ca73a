"""What a ledger's arrays must be."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from offramp import check
from offramp.arrays import AnyArray, Array, as_numpy, is_array
from offramp.batch_times import BatchTimes
from offramp.costs import Costs, carried_on
from offramp.errors import LedgerError
from offramp.ledger.chunks import row_slices

WITHOUT_LABELS = (
    "which this step needs. Without labels, policies can answer with CurrentExit or "
    "ProductOfExperts, score with BreakEven, MaxProbability, Entropy, Margin or Patience, and "
    "take `shared`, `geometric` or `smooth` thresholds (by name: break-even-no-ensemble, "
    "baseline:smooth); accuracies remain unknown"
)
"""The end of a sentence on what has no labels."""

SampleIds: TypeAlias = Sequence[str] | Sequence[int] | AnyArray
Names: TypeAlias = list[str] | list[int]


def joined_exits(logits: Any, labels: Any) -> Any:  # noqa: ANN401
    """Logits `[N, M, K]`: as they are, or from M arrays `[N, K]`, one per exit.

    Args:
        logits: An array; or a list, tuple or dict of arrays or tensors in the order of the exits.
        labels: By their number, exits can be told from samples.

    Example:
        >>> joined_exits([np.zeros((5, 3)), np.ones((5, 3))], labels=None).shape
        (5, 2, 3)
    """
    named = isinstance(logits, Mapping)
    if named:
        _check_exit_names(logits)
        logits = list(logits.values())
    elif not isinstance(logits, list | tuple) or not all(map(is_array, logits)):
        return logits
    parts = [_numbers("logits", part) for part in logits]
    if not parts:
        raise LedgerError("`logits` has no exits")
    shapes = {part.shape for part in parts}
    if len(shapes) > 1 or any(len(shape) != 2 for shape in shapes):
        found = ", ".join(str(list(part.shape)) for part in parts[:4])
        raise LedgerError(
            "`logits` in parts must be arrays of one shape [N, K], one per exit, got "
            f"{found}{', ...' if len(parts) > 4 else ''}"
        )
    # A list may hold samples [M, K] instead, of which there are more than exits.
    samples = len(labels) if labels is not None else max(len(parts), len(parts[0]))
    return np.stack(parts, axis=0 if len(parts) == samples and not named else 1)


def _check_exit_names(logits: Mapping[Any, Any]) -> None:
    """Raise where the numbers in the names of the exits are not in order."""
    found = [re.search(r"(\d+)$", str(name)) for name in logits]
    numbers = [int(each[1]) for each in found if each is not None]
    if numbers != sorted(numbers):
        raise LedgerError(
            f"`logits` names the exits {', '.join(map(str, logits))}, in this order, and a dict "
            "must have the exits in their order: put the first exit first"
        )


def checked_logits(logits: AnyArray) -> Array:
    """Finite floating-point logits `[N, M, K]`, sharing memory where possible."""
    array = _numbers("logits", logits)
    if isinstance(logits, list | tuple) and array.dtype == np.float64:
        with np.errstate(over="ignore"):  # what is infinite then is named below
            array = array.astype(np.float32)  # lists have no precision of their own
    check.shape("logits", array, "N", "M", "K", error=LedgerError)
    samples, exits, classes = array.shape
    if samples == 0:
        raise LedgerError("`logits` has no samples")
    if exits < 2 or classes < 2:
        raise LedgerError(
            f"at least two exits and two classes are needed, `logits` has {exits} and {classes}"
        )
    if array.dtype.kind != "f":
        raise LedgerError(f"`logits` must be floating-point numbers, got {array.dtype}")
    for rows in row_slices(samples, exits * classes):
        good = np.isfinite(array[rows])
        if not good.all():
            sample, exit_index, class_index = np.argwhere(~good)[0]
            value = float(array[rows][sample, exit_index, class_index])
            clip = "; clip them first: logits.clip(-1e4, 1e4)" if math.isinf(value) else ""
            raise LedgerError(
                f"`logits` must be finite, got {value} at sample {rows.start + sample}, exit "
                f"{exit_index}, class {class_index}{clip}"
            )
    _refuse_probabilities(array[:64].astype(np.float32))
    return array


def _refuse_probabilities(logits: Array) -> None:
    """Softmax outputs are finite numbers too, and would give plausible, wrong figures."""
    sums = logits.sum(axis=2)  # [n, M]
    for total, what, cure in (
        (1, "probabilities", "their logarithm"),
        (100, "percentages", "the logarithm of a hundredth of them"),
    ):
        alike = (logits >= 0).all(axis=2) & (np.abs(sums - total) < 0.01 * total)
        exits = np.flatnonzero(alike.all(axis=0)).tolist()
        if exits:
            some = "" if len(exits) == logits.shape[1] else f" at the exits {exits}"
            raise LedgerError(f"`logits` look like {what}{some}; pass {cure} instead")


def checked_outputs(outputs: AnyArray) -> Array:
    """Finite numbers `[N, M, 2+F]` of answers without logits, as `Ledger.from_answers` makes."""
    array = _numbers("outputs", outputs)
    if array.ndim != 3 or array.shape[1] < 2 or array.shape[2] < 2 or not len(array):
        raise LedgerError(
            "outputs of answers must have the shape [N, M, 2+F]: log-odds, answers and features "
            f"of at least two stages, got {list(array.shape)}; see Ledger.from_answers"
        )
    if not np.isfinite(array).all():
        raise LedgerError("outputs of answers must be finite; see Ledger.from_answers")
    return array.astype(np.float32, copy=False)


def checked_right(right: AnyArray, shape: tuple[int, int]) -> Array:
    """Whether each stage is right: bool `[N, M]`."""
    array = _numbers("labels", right)
    if array.shape != shape or array.dtype != bool:
        raise LedgerError(
            f"labels of answers must be bool {list(shape)}: whether each stage is right, got "
            f"{array.dtype} {list(array.shape)}"
        )
    return array


def checked_labels(
    labels: AnyArray, samples: int, classes: int, class_names: Sequence[str] | None = None
) -> Array:
    """Integer labels `[N]` in `0..K-1`; of names, their places among the class names."""
    array = _numbers("labels", _class_numbers(labels, class_names))
    if array.shape == (samples, classes) and classes > 1:
        raise LedgerError(
            f"`labels` must be one class per sample, [{samples}], got {list(array.shape)}: if "
            "they are one-hot, give labels.argmax(1)"
        )
    if array.shape != (samples,):
        raise LedgerError(
            f"`labels` must have the shape [{samples}] to match `logits`, got "
            f"{list(array.shape)}; logits are [samples, exits, classes], in this order"
        )
    if array.dtype.kind not in "iu":
        raise LedgerError(f"`labels` must be integers, got {array.dtype}")
    _check_range("labels", array, 0, classes - 1, "; classes count from 0")
    return array.astype(np.int64, copy=False)


def _class_numbers(labels: Any, class_names: Sequence[str] | None) -> Any:  # noqa: ANN401
    """Labels as they are; names of classes, and objects, as numbers."""
    plain = as_numpy(labels) if is_array(labels) else labels
    if isinstance(plain, np.ndarray):
        if plain.dtype.kind not in "OUS":
            return plain
        plain = plain.tolist()
    known = [name.decode() if isinstance(name, bytes) else name for name in plain]
    named = next((name for name in known if isinstance(name, str)), None)
    if named is None:
        return plain
    if class_names is None:
        raise LedgerError(
            f"`labels` are names, such as {named!r}, and logits know classes by number: give "
            "class_names=[...] too, in the order of the logits"
        )
    places = {name: place for place, name in enumerate(class_names)}
    strange = next((name for name in known if name not in places), None)
    if strange is not None:
        raise LedgerError(
            f"the label {strange!r} is not among `class_names`: {', '.join(class_names[:5])}"
            f"{', ...' if len(class_names) > 5 else ''}"
        )
    return [places[name] for name in known]


def checked_ids(ids: SampleIds | None, samples: int) -> Names | None:
    """Distinct ids, all integers or all strings, or None."""
    plain = checked_names("sample_ids", ids, samples)
    if plain is not None and len(set(plain)) != samples:
        twice = Counter(plain).most_common(1)[0][0]
        raise LedgerError(
            f"`sample_ids` must be distinct, but {twice!r} stands there twice; if several samples "
            "belong to one thing, such as a question that is asked again, name it as their "
            "`groups` instead: a group is never cut apart"
        )
    return plain


def checked_names(name: str, values: SampleIds | None, samples: int) -> Names | None:
    """A name per sample, all integers or all strings, or None."""
    if values is None:
        return None
    plain: list[Any] = list(as_numpy(values).tolist() if is_array(values) else values)
    if len(plain) != samples:
        raise LedgerError(f"`{name}` must name the {samples} samples, got {len(plain)}")
    if not (all(type(i) is int for i in plain) or all(type(i) is str for i in plain)):
        raise LedgerError(f"`{name}` must be all integers or all strings")
    return plain


def checked_lengths(lengths: AnyArray | None, samples: int, exits: int) -> Array | None:
    """How many exits each sample has, int64 `[N]` in `1..M`; None where all have all."""
    if lengths is None:
        return None
    array = _numbers("lengths", lengths)
    if array.shape != (samples,) or array.dtype.kind not in "iu":
        raise LedgerError(
            f"`lengths` must be {samples} whole numbers, one per sample, got {array.dtype} of "
            f"the shape {list(array.shape)}"
        )
    _check_range("lengths", array, 1, exits)
    return None if (array == exits).all() else array.astype(np.int64, copy=False)


def _check_range(name: str, array: Array, low: int, high: int, hint: str = "") -> None:
    """Raise unless all of `[N]` lie in `low..high`."""
    outside = np.flatnonzero((array < low) | (array > high))
    if len(outside):
        sample = outside[0]
        raise LedgerError(
            f"`{name}` must lie in {low}..{high}, got {array[sample]} at sample {sample}{hint}"
        )


def _numbers(name: str, values: AnyArray) -> Array:
    """An array of numbers or truth values, sharing memory where possible."""
    try:
        array = as_numpy(values)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"`{name}` must be an array of numbers: {error}") from None
    if array.dtype.kind not in "biufc":
        raise LedgerError(f"`{name}` must be an array of numbers, got {array.dtype}")
    return array


def costs_of(given: Any, lengths: Array | None, samples: int, exits: int) -> Costs:  # noqa: ANN401
    """The costs of a ledger, from what it takes as such: nothing is paid after a sample's end."""
    known = given.costs if isinstance(given, BatchTimes) else given
    table = known.stages if isinstance(known, Costs) else _numbers("costs", known)
    if table.shape[-1:] != (exits,):
        raise LedgerError(
            f"there must be one cost per exit: there are {exits} exits, and "
            f"{table.shape[-1] if table.ndim else 1} costs were given"
        )
    if table.ndim == 2 and len(table) != samples:
        raise LedgerError(
            f"there must be costs for the {samples} samples, got them for {len(table)}"
        )
    if not isinstance(known, Costs):  # what stands after a sample's end may be anything
        known = Costs.from_cumulative(table if table.ndim == 1 else carried_on(table, lengths))
    return known if lengths is None else known.until(lengths)
