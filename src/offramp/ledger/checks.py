"""What a ledger's arrays must be; every complaint names the sample and the exit."""

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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

INF = float("inf")

SampleIds = Sequence[str] | Sequence[int] | Tensor | npt.NDArray[np.generic]


def checked_logits(logits: Any) -> Tensor:  # noqa: ANN401 - checked here
    """Finite floating-point logits `[N, M, K]` on the CPU, sharing memory where possible."""
    tensor = _as_tensor("logits", logits)
    if tensor.ndim != 3:
        raise LedgerError(f"`logits` must have the shape [N, M, K], got {list(tensor.shape)}")
    samples, exits, classes = tensor.shape
    if samples == 0:
        raise LedgerError("`logits` has no samples")
    if exits < 2 or classes < 2:
        raise LedgerError(
            f"at least two exits and two classes are needed, `logits` has {exits} and {classes}"
        )
    if not tensor.is_floating_point():
        raise LedgerError(f"`logits` must be floating-point numbers, got {tensor.dtype}")
    tensor = tensor.detach().cpu()
    for rows in row_slices(samples, exits * classes):
        good = tensor[rows].isfinite()
        if not good.all():
            sample, exit_index, class_index = (~good).nonzero()[0].tolist()
            value = tensor[rows][sample, exit_index, class_index].item()
            clip = "; clip them first: logits.clip(-1e4, 1e4)" if value in (INF, -INF) else ""
            raise LedgerError(
                f"`logits` must be finite, got {value} at sample {rows.start + sample}, exit "
                f"{exit_index}, class {class_index}{clip}"
            )
    _refuse_probabilities(tensor[:64].float())
    return tensor


def _refuse_probabilities(logits: Tensor) -> None:
    """Softmax outputs are finite numbers too, and would give plausible, wrong figures."""
    sums = logits.sum(2)  # [n, M]
    for total, what, cure in (
        (1, "probabilities", "their logarithm"),
        (100, "percentages", "the logarithm of a hundredth of them"),
    ):
        alike = (logits >= 0).all(2) & ((sums - total).abs() < 0.01 * total)
        exits = alike.all(0).nonzero().flatten().tolist()
        if exits:
            some = "" if len(exits) == logits.shape[1] else f" at the exits {exits}"
            raise LedgerError(f"`logits` look like {what}{some}; pass {cure} instead")


def checked_outputs(outputs: Any) -> Tensor:  # noqa: ANN401
    """Finite numbers `[N, M, 2+F]` of answers without logits, as `Ledger.from_answers` makes."""
    tensor = _as_tensor("outputs", outputs)
    if tensor.ndim != 3 or tensor.shape[1] < 2 or tensor.shape[2] < 2 or not len(tensor):
        raise LedgerError(
            "outputs of answers must have the shape [N, M, 2+F]: log-odds, answers and features "
            f"of at least two stages, got {list(tensor.shape)}; see Ledger.from_answers"
        )
    if not tensor.isfinite().all():
        raise LedgerError("outputs of answers must be finite; see Ledger.from_answers")
    return tensor.detach().cpu().float()


def checked_right(right: Any, shape: tuple[int, int]) -> Tensor:  # noqa: ANN401
    """Whether each stage is right: bool `[N, M]`."""
    tensor = _as_tensor("labels", right)
    if tensor.shape != shape or tensor.dtype != torch.bool:
        raise LedgerError(
            f"labels of answers must be bool {list(shape)}: whether each stage is right, got "
            f"{tensor.dtype} {list(tensor.shape)}"
        )
    return tensor


def checked_labels(labels: Any, samples: int, classes: int) -> Tensor:  # noqa: ANN401
    """Integer labels `[N]` in `0..K-1`."""
    tensor = _as_tensor("labels", labels).detach().cpu()
    if tensor.shape == (samples, classes) and classes > 1:
        raise LedgerError(
            f"`labels` must be one class per sample, [{samples}], got {list(tensor.shape)}: if "
            "they are one-hot, give labels.argmax(1)"
        )
    if tensor.shape != (samples,):
        raise LedgerError(
            f"`labels` must have the shape [{samples}] to match `logits`, got "
            f"{list(tensor.shape)}; logits are [samples, exits, classes], in this order"
        )
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise LedgerError(f"`labels` must be integers, got {tensor.dtype}")
    tensor = tensor.long()
    outside = (tensor < 0) | (tensor >= classes)
    if outside.any():
        sample = int(outside.nonzero()[0])
        raise LedgerError(
            f"`labels` must lie in 0..{classes - 1}, got {int(tensor[sample])} at sample {sample}"
            "; classes count from 0"
        )
    return tensor


def checked_ids(ids: SampleIds | None, samples: int) -> list[str] | list[int] | None:
    """Distinct ids, all integers or all strings, or None."""
    plain = checked_names("sample_ids", ids, samples)
    if plain is not None and len(set(plain)) != samples:
        twice = Counter(plain).most_common(1)[0][0]
        raise LedgerError(f"`sample_ids` must be distinct, but {twice!r} stands there twice")
    return plain


def checked_names(
    name: str, values: SampleIds | None, samples: int
) -> list[str] | list[int] | None:
    """A name per sample, all integers or all strings, or None."""
    if values is None:
        return None
    plain: list[Any] = values.tolist() if isinstance(values, Tensor | np.ndarray) else list(values)
    if len(plain) != samples:
        raise LedgerError(f"`{name}` must name the {samples} samples, got {len(plain)}")
    if not (all(type(i) is int for i in plain) or all(type(i) is str for i in plain)):
        raise LedgerError(f"`{name}` must be all integers or all strings")
    return plain


def checked_lengths(lengths: Any, samples: int, exits: int) -> Tensor | None:  # noqa: ANN401
    """How many exits each sample has, int64 `[N]` in `1..M`; None where all have all."""
    if lengths is None:
        return None
    tensor = _as_tensor("lengths", lengths)
    if tensor.shape != (samples,) or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise LedgerError(
            f"`lengths` must be {samples} whole numbers, one per sample, got {tensor.dtype} of "
            f"the shape {list(tensor.shape)}"
        )
    outside = (tensor < 1) | (tensor > exits)
    if outside.any():
        sample = int(outside.nonzero()[0])
        raise LedgerError(
            f"`lengths` must lie in 1..{exits}, got {int(tensor[sample])} at sample {sample}"
        )
    return None if bool((tensor == exits).all()) else tensor.long()


def _as_tensor(name: str, values: Any) -> Tensor:  # noqa: ANN401
    with warnings.catch_warnings():
        # A read-only array (a memory map, say) is fine: a ledger never writes to its logits.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        try:
            return torch.as_tensor(values)
        except (TypeError, ValueError, RuntimeError) as error:
            raise LedgerError(f"`{name}` must be an array of numbers: {error}") from None


def costs_of(given: Any, lengths: Tensor | None, samples: int) -> Costs:  # noqa: ANN401
    """The costs of a ledger, from what it takes as such: nothing is paid after a sample's end."""
    if isinstance(given, Costs | BatchTimes):
        costs = given.costs if isinstance(given, BatchTimes) else given
    elif np.ndim(given) == 2:
        costs = Costs.from_cumulative(carried_on(torch.as_tensor(given), lengths))
    else:
        costs = Costs.from_cumulative(given)
    if lengths is not None:
        costs = costs.until(lengths)
    if costs.by_sample and len(costs.stages) != samples:
        raise LedgerError(
            f"there must be costs for the {samples} samples, got them for {len(costs.stages)}"
        )
    return costs


def check_stages(costs: Any, exits: int) -> None:  # noqa: ANN401 - as `Ledger` takes them
    """Raise unless there is one cost per exit; what is no table of numbers raises elsewhere."""
    known = costs.stages if isinstance(costs, Costs | BatchTimes) else costs
    shape = np.shape(known)[:1] if isinstance(costs, BatchTimes) else np.shape(known)
    if shape and shape[-1] != exits:
        raise LedgerError(
            f"there must be one cost per exit: there are {exits} exits, and {shape[-1]} costs "
            "were given"
        )
