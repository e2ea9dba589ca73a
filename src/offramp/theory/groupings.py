"""Grouping: which points an exit cannot tell apart (the paper's grouping function Phi)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offramp.errors import WorldError
from offramp.theory.worlds import DIGITS, Array, as_floats, is_rational

__all__ = ["Grouping", "group_mean"]

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, init=False)
class Grouping:
    """A partition of the points into groups.

    Leading dimensions of `labels` belong to worlds or exits side by side.

    Args:
        labels: `[..., N]` whole numbers; points with the same number are in one group.

    Raises:
        WorldError: The labels are no whole numbers of at least 0.

    Example:
        >>> coarse, fine = Grouping([0, 0, 1]), Grouping([0, 1, 2])
        >>> fine.refines(coarse), coarse.refines(fine)
        (True, False)
        >>> print(coarse, "and", coarse.join(Grouping([0, 1, 1])), "and", fine.coarsen([0, 2]))
        {0,1}{2} and {0}{1}{2} and {0,2}{1}
    """

    labels: Labels

    def __init__(self, labels: Any) -> None:  # noqa: ANN401 - nested lists too
        array: npt.NDArray[Any] = np.asarray(labels)
        if array.ndim < 1 or array.dtype.kind not in "iu" or (array < 0).any():
            raise WorldError(
                "`labels` must be the number of each point's group, whole numbers of at least 0, "
                f"got {labels!r}"
            )
        object.__setattr__(self, "labels", array.astype(np.int64))

    @classmethod
    def points(cls, num_points: int) -> "Grouping":
        """Every point by itself: the grouping of canonical calibration."""
        return cls(np.arange(num_points))

    @classmethod
    def whole(cls, num_points: int) -> "Grouping":
        """All points in one group: the grouping of marginal calibration."""
        return cls(np.zeros(num_points, dtype=np.int64))

    @classmethod
    def levels(cls, predictor: Array) -> "Grouping":
        """Points with the same largest probability: the grouping of confidence calibration.

        Args:
            predictor: `[..., N, K]`; floats are equal if they agree to twelve decimals.
        """
        top = predictor.max(-1)
        top = top if is_rational(top) else top.round(DIGITS)
        same = top[..., :, None] == top[..., None, :]
        return cls(same.astype(bool).argmax(-1))  # the first point of the group gives the number

    @property
    def same(self) -> npt.NDArray[np.bool_]:
        """`[..., N, N]`: whether two points are in one group."""
        result: npt.NDArray[np.bool_] = self.labels[..., :, None] == self.labels[..., None, :]
        return result

    @property
    def groups(self) -> list[list[int]]:
        """The groups of a single partition, as lists of points in order of appearance."""
        found: dict[int, list[int]] = {}
        for point, label in enumerate(self.labels.tolist()):
            found.setdefault(label, []).append(point)
        return list(found.values())

    def refines(self, other: "Grouping") -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether points that this grouping puts together are together in the other one too.

        In the paper's words, other ⪯ self. A bool; with leading dimensions an array `[...]`.
        """
        self._check_partner(other)
        result = (~self.same | other.same).all((-2, -1))
        return bool(result) if result.ndim == 0 else result

    def join(self, other: "Grouping") -> "Grouping":
        """The coarsest grouping that refines both: what is known to who knows both groups."""
        self._check_partner(other)
        both = self.same & other.same
        return Grouping(both.argmax(-1))

    def coarsen(self, merged: Sequence[int]) -> "Grouping":
        """The grouping with the groups of these points made one.

        Raises:
            WorldError: There is no such point.
        """
        size = self.labels.shape[-1]
        if not merged or not all(0 <= point < size for point in merged):
            raise WorldError(f"`merged` must name points in 0..{size - 1}, got {list(merged)}")
        touched = np.isin(self.labels, self.labels[list(merged)])
        return Grouping(np.where(touched, self.labels[merged[0]], self.labels))

    def exit(self, exit_index: int) -> "Grouping":
        """One exit's grouping, out of labels `[..., M, N]`."""
        return Grouping(self.labels[..., exit_index, :])

    def __eq__(self, other: object) -> bool:
        """Whether the partitions are the same, whatever the numbers of the groups."""
        return isinstance(other, Grouping) and np.array_equal(self.same, other.same)

    def __hash__(self) -> int:
        return hash(self.same.tobytes())

    def __str__(self) -> str:
        return "".join("{" + ",".join(map(str, group)) + "}" for group in self.groups)

    def _check_partner(self, other: "Grouping") -> None:
        mine, theirs = self.labels.shape[-1], other.labels.shape[-1]
        if mine != theirs:
            raise WorldError(f"both groupings must be of the same points, got {mine} and {theirs}")


def group_mean(p_x: Array, grouping: Grouping, values: Array) -> Array:
    """The mean over each point's group, given at every point.

    Args:
        p_x: `[..., N]`.
        grouping: With labels `[..., N]`.
        values: `[..., N]`, or `[..., N, K]`.

    Returns:
        The shape of `values`, as far as they were not broadcast.

    Example:
        >>> group_mean(np.array([0.5, 0.25, 0.25]), Grouping([0, 1, 1]), np.array([1.0, 2.0, 4.0]))
        array([1., 3., 3.])
    """
    if not is_rational(values):
        p_x = as_floats(p_x)
    weights = grouping.same * p_x[..., None, :]  # [..., N, N]
    weights = weights / weights.sum(-1, keepdims=True)
    if values.ndim == p_x.ndim:
        return _weighted(weights, values[..., None])[..., 0]
    return _weighted(weights, values)


def _weighted(weights: Array, values: Array) -> Array:
    """A matrix product in which an infinite value counts for its own group only."""
    if is_rational(values) or np.isfinite(values).all():
        product: Array = np.matmul(weights, values)
        return product
    finite = np.matmul(weights, np.where(np.isinf(values), 0, values))
    touched = np.matmul((weights > 0).astype(float), np.isinf(values).astype(float)) > 0
    result: Array = np.where(touched, np.inf, finite)
    return result
