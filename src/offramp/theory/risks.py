"""Risks, entropies and mutual information of a finite world, in nats."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from offramp.errors import ConfigError
from offramp.theory.predictors import as_predictor, calibrated
from offramp.theory.worlds import Array, Grouping, World, as_floats, group_mean, modal_class

Floats = npt.NDArray[np.float64]
Loss = Literal["log", "zero-one"]
LOSSES: tuple[Loss, ...] = get_args(Loss)


def conditional_risk(world: World, predictor: Array, loss: Loss = "log") -> Array:
    """The expected loss of a predictor at every point, `[..., N]`.

    Args:
        world: N points, K classes.
        predictor: `[..., N, K]`.
        loss: `log`: minus the logarithm of the label's probability (infinite where a class that
            occurs has none). `zero-one`: whether the most probable class is wrong.

    Raises:
        ConfigError: An unknown loss.
        WorldError: The predictor is not one for this world.

    Example:
        >>> world = World([1.0], [[0.75, 0.25]])
        >>> conditional_risk(world, np.array([[0.6, 0.4]]), "zero-one")
        array([0.25])
    """
    if loss not in LOSSES:
        raise ConfigError(f"`loss` must be one of {', '.join(LOSSES)}, got {loss!r}")
    predictor = as_predictor(world, predictor)
    if loss == "log":
        logs = _times_log(as_floats(world.p_y_given_x), as_floats(predictor))
        return np.asarray(-logs.sum(-1))
    chosen = modal_class(predictor)[..., None] == np.arange(world.num_classes)
    risk: Array = 1 - (world.p_y_given_x * chosen).sum(-1)
    return risk


def bayes_risk(world: World, loss: Loss = "log") -> Array:
    """The lowest risk that any predictor has at every point, `[..., N]`: H[y|x] for `log`.

    Example:
        >>> bayes_risk(World([1.0], [[0.75, 0.25]]), "zero-one")
        array([0.25])
    """
    return conditional_risk(world, world.p_y_given_x, loss)


def excess_risk(world: World, predictor: Array, loss: Loss = "log") -> Array:
    """Risk above the lowest possible one at every point, `[..., N]`: the paper's Delta(f, x).

    Example:
        >>> excess_risk(World([1.0], [[1.0, 0.0]]), np.array([[0.5, 0.5]])).round(3)
        array([0.693])
    """
    result: Array = conditional_risk(world, predictor, loss) - bayes_risk(world, loss)
    return result


def group_excess_risk(
    world: World, predictor: Array, grouping: Grouping, loss: Loss = "log"
) -> Array:
    """Excess risk on average over each point's group, `[..., N]`.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]])
        >>> group_excess_risk(world, np.full((2, 2), 0.5), Grouping([0, 0])).round(3)
        array([0.693, 0.693])
    """
    return group_mean(world.p_x, grouping, excess_risk(world, predictor, loss))


def entropy(probs: Array) -> Floats:
    """Entropy of the last dimension, `[...]`.

    Example:
        >>> float(entropy(np.array([0.5, 0.5])).round(4))
        0.6931
    """
    values = as_floats(probs)
    result: Floats = -_times_log(values, values).sum(-1)
    return result


def group_entropy(world: World, grouping: Grouping) -> Floats:
    """H[y | group] of each point's group, `[..., N]`.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]])
        >>> group_entropy(world, Grouping([0, 0])).round(4)
        array([0.6931, 0.6931])
    """
    return entropy(calibrated(world, grouping))


def mutual_information(world: World, given: Grouping, about: Grouping | None = None) -> Floats:
    """I[y, about | given] of each point's group of `given`, `[..., N]`.

    Args:
        world: N points, K classes.
        given: The grouping that is known already.
        about: What is learned in addition: another grouping, or x itself by default.

    Example:
        >>> world = World([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]])
        >>> mutual_information(world, given=Grouping([0, 0])).round(4)
        array([0.6931, 0.6931])
        >>> mutual_information(world, given=Grouping([0, 0]), about=Grouping([0, 0]))
        array([0., 0.])
    """
    before = as_floats(calibrated(world, given))
    fine = world.p_y_given_x if about is None else calibrated(world, given.join(about))
    after = as_floats(fine)
    gain = (_times_log(after, after) - _times_log(after, before)).sum(-1)
    return group_mean(world.p_x, given, np.maximum(gain, 0))


def _times_log(weights: Floats, values: Floats) -> Floats:
    """Weights x log(values), with 0 x log 0 = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Floats = np.where(weights > 0, weights * np.log(values), 0)
    return result
