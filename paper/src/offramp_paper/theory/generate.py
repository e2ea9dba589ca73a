"""Random worlds and exits: free numbers first, then exits calibrated by construction."""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from offramp.errors import ConfigError
from offramp_paper.theory.calibration import (
    DEFINITIONS,
    Definition,
    Exits,
    calibrated,
    calibration_violation,
    confidence_calibrated,
    mean_calibrated,
)
from offramp_paper.theory.statements import TOLERANCE
from offramp_paper.theory.worlds import (
    Array,
    Grouping,
    World,
    as_numbers,
    check_choice,
    is_rational,
)

Structure = Literal["any", "chain", "strict chain", "one", "points", "swap", "uneven swap"]
STRUCTURES: tuple[Structure, ...] = get_args(Structure)


class Size(NamedTuple):
    """How many points, classes and exits."""

    points: int
    classes: int
    exits: int


@dataclass(frozen=True, eq=False)
class Draw:
    """The free numbers that a world and its exits are built from.

    Small integers give small rational worlds, which a search can shrink; leading dimensions hold
    several draws.
    """

    points: Array  # `[..., N]`, positive weights of the points
    classes: Array  # `[..., N, K]`, weights of the classes at each point; all zero means uniform
    groups: npt.NDArray[np.int64]  # `[..., M, N]`, the group of each point at each exit
    # `[..., M, N]`, the class that each exit predicts, for `confidence`
    picks: npt.NDArray[np.int64]
    noise: Array  # `[..., M, N, K]`, weights of the classes, for `mean` and `confidence`

    @classmethod
    def random(
        cls, rng: np.random.Generator, count: int, size: Size, largest: int | None = None
    ) -> "Draw":
        """Several random draws, of integers up to `largest` (mostly small), or of floats."""
        N, K, M = size

        def weights(least: int, *shape: int) -> Array:
            if largest is None:
                return rng.exponential(size=(count, *shape))
            drawn = rng.geometric(0.4, size=(count, *shape)) - 1
            return np.minimum(least + drawn, largest).astype(np.float64)

        return cls(
            points=weights(1, N),
            classes=weights(0, N, K),
            # Few groups as often as many: otherwise most chains reach single points at once.
            groups=rng.integers(0, rng.integers(1, N + 1, size=(count, M, 1)), size=(count, M, N)),
            picks=rng.integers(0, K, size=(count, M, N)),
            noise=weights(0, M, N, K),
        )

    @property
    def size(self) -> Size:
        """Points, classes and exits."""
        exits, points, classes = self.noise.shape[-3:]
        return Size(points, classes, exits)

    def take(self, index: Any) -> "Draw":  # noqa: ANN401 - any numpy index
        """Some of several draws."""
        return Draw(**{name: array[index] for name, array in vars(self).items()})

    def rational(self) -> "Draw":
        """The same integers as Fractions."""
        exact = {
            name: as_numbers(getattr(self, name).astype(int).astype(object))
            for name in ("points", "classes", "noise")
        }
        return replace(self, **exact)

    @property
    def total(self) -> Any:  # noqa: ANN401 - a number, or an array of them
        """Sum of all numbers, `[...]`: of two draws of the same size, the lower one is simpler."""
        worlds = self.points.shape[:-1]
        return sum(array.reshape(*worlds, -1).sum(-1) for array in vars(self).values())


@dataclass(frozen=True)
class Setting:
    """What is assumed of the exits.

    Args:
        definition: Of calibration.
        structure: Of their groupings. `any`: unrelated. `chain`: each refines the one before.
            `strict chain`: and differs from it. `one`: the same at all exits. `points`: every
            point in a group of its own. `swap`: one grouping in which exit 1 confuses two equally
            probable points of a group. `uneven swap`: those points need not be equally probable.

    Example:
        >>> Setting("exact", "net")
        Traceback (most recent call last):
        offramp.errors.ConfigError: `structure` must be one of any, chain, strict chain, one,
        points, swap, uneven swap, got 'net'
    """

    definition: Definition = "exact"
    structure: Structure = "any"

    def __post_init__(self) -> None:
        check_choice("definition", self.definition, DEFINITIONS)
        check_choice("structure", self.structure, STRUCTURES)


def exits_from(free: Draw, setting: Setting) -> tuple[Exits, npt.NDArray[np.bool_]]:
    """Build the exits of a setting from free numbers, and say whether they fit it: bool `[...]`.

    Not every draw can be made to fit; where it does not, ignore the exits.
    """
    valid = np.asarray((free.points > 0).all(-1))
    points = np.where(valid[..., None], free.points, 1)  # placeholders where not valid
    if setting.structure == "swap":
        points[..., 1] = points[..., 0]
    world = World(_shares(points), _shares(free.classes))
    grouping = Grouping(_labels(free.groups, setting.structure))
    predictors = _predictors(world, grouping, free, setting)
    if setting.definition == "confidence":
        # What counts is the grouping by confidence; groups may share a confidence by accident.
        grouping = Grouping.levels(predictors)
    if "swap" in setting.structure:
        predictors = _swapped(predictors)
    exits = Exits(world, grouping, predictors)
    return exits, valid & _fits(exits, setting)


def check_seed(seed: int) -> None:
    """Raise unless numpy accepts the seed."""
    if seed < 0:
        raise ConfigError(f"`seed` must be an integer of at least 0, got {seed}")


def random_exits(
    seed: int = 0, setting: Setting | None = None, size: Size | tuple[int, int, int] = (4, 3, 3)
) -> Exits:
    """One random world with exits, by default calibrated along a refinement chain.

    Args:
        seed: The same seed gives the same world.
        setting: What is assumed of the exits.
        size: Points, classes and exits.

    Raises:
        ConfigError: An invalid seed or size, or no draw of this size fits the setting.

    Example:
        >>> exits = random_exits(seed=1)
        >>> print([str(exits.grouping.exit(index)) for index in range(3)], exits.is_chain)
        ['{0,2}{1,3}', '{0,2}{1}{3}', '{0}{1}{2}{3}'] True
    """
    setting = setting or Setting("exact", "chain")
    check_seed(seed)
    if len(size) != 3 or any(have < least for have, least in zip(size, (1, 2, 1), strict=True)):
        raise ConfigError(
            f"`size` must be points, classes and exits, at least (1, 2, 1), got {tuple(size)}"
        )
    size = Size(*size)
    if "swap" in setting.structure and (size.points < 2 or size.exits < 2):
        raise ConfigError(f"a swap needs at least two points and two exits, got {size}")
    exits, valid = exits_from(Draw.random(np.random.default_rng(seed), 1000, size), setting)
    if not valid.any():
        raise ConfigError(f"found no world of {size} for {setting}: try a larger one")
    return exits.take(int(valid.argmax()))


def _shares(weights: Array) -> Array:
    """Weights as shares of their sum; uniform where all are zero."""
    empty = weights.sum(-1, keepdims=True) == 0
    weights = as_numbers(np.where(empty, 1, weights))
    result: Array = weights / weights.sum(-1, keepdims=True)
    return result


def _labels(groups: npt.NDArray[np.int64], structure: Structure) -> npt.NDArray[np.int64]:
    """`[..., M, N]`."""
    exits, points = groups.shape[-2:]
    if structure == "points":
        return np.broadcast_to(np.arange(points), groups.shape)
    if "chain" in structure:
        # The join of all groupings so far refines the join before.
        codes = [groups[..., 0, :]]
        for exit_index in range(1, exits):
            codes.append(codes[-1] * points + groups[..., exit_index, :])
        return np.stack(codes, axis=-2)
    if structure == "any":
        return groups
    shared = np.broadcast_to(groups[..., :1, :], groups.shape).copy()
    if "swap" in structure:
        shared[..., 1] = shared[..., 0]
    return shared


def _predictors(world: World, grouping: Grouping, free: Draw, setting: Setting) -> Array:
    world = world.per_exit()
    if setting.definition == "exact":
        return calibrated(world, grouping)
    if setting.definition == "mean":
        return mean_calibrated(world, grouping, _shares(free.noise))
    predictors = confidence_calibrated(world, grouping, free.picks, free.noise)
    if setting.structure not in ("one", "swap", "uneven swap"):
        return predictors
    # An exit with other predictions than exit 0 has the same confidences if it happens to be
    # as accurate. Otherwise it gets the predictions of exit 0.
    same = _share_confidences(predictors)[..., None]
    picks = np.where(same, free.picks, free.picks[..., :1, :])
    return confidence_calibrated(world, grouping, picks, free.noise)


def _share_confidences(predictors: Array) -> npt.NDArray[np.bool_]:
    """Whether an exit is as confident as exit 0 at every point, bool `[..., M]`."""
    top = predictors.max(-1)
    gap = abs(top - top[..., :1, :])
    return np.asarray((gap <= (0 if is_rational(gap) else TOLERANCE)).all(-1), dtype=bool)


def _swapped(predictors: Array) -> Array:
    """Copies of exit 0, except that exit 1 swaps points 0 and 1."""
    first = predictors[..., 0, :, :]
    result = np.repeat(first[..., None, :, :], predictors.shape[-3], axis=-3)
    result[..., 1, 0, :], result[..., 1, 1, :] = first[..., 1, :], first[..., 0, :]
    return result


def _fits(exits: Exits, setting: Setting) -> npt.NDArray[np.bool_]:
    """The conditions that construction alone does not ensure."""
    fits: npt.NDArray[np.bool_] = np.ones(exits.world.p_x.shape[:-1], dtype=bool)
    same = exits.grouping.same
    if setting.definition == "confidence":
        # In a swap, only the exit before it has to be calibrated.
        fits &= _confident_exits(exits, 1 if "swap" in setting.structure else exits.num_exits)
    if "chain" in setting.structure:
        fits &= exits.is_chain
    if setting.structure == "strict chain":
        fits &= (same[..., 1:, :, :] != same[..., :-1, :, :]).any((-2, -1)).all(-1)
    if setting.structure == "one":
        fits &= (same == same[..., :1, :, :]).all((-3, -2, -1))
    return fits


def _confident_exits(exits: Exits, count: int) -> npt.NDArray[np.bool_]:
    """Whether the first exits are confidence calibrated; ties may change a prediction."""
    first = exits.predictors[..., :count, :, :]
    gap = calibration_violation(exits.world.per_exit(), first, definition="confidence")
    result: Array = np.asarray(gap) <= (0 if is_rational(first) else TOLERANCE)
    return np.asarray(result.all(-1), dtype=bool)
