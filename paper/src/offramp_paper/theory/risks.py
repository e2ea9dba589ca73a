"""Risks, information and stopping probabilities of finite worlds; logarithms are natural."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from offramp_paper.theory.calibration import as_predictor, calibrated
from offramp_paper.theory.worlds import (
    Array,
    Grouping,
    World,
    WorldError,
    as_floats,
    as_numbers,
    check_choice,
    group_mean,
    modal_class,
)

Floats = npt.NDArray[np.float64]
Loss = Literal["log", "zero-one"]
LOSSES: tuple[Loss, ...] = get_args(Loss)
Reading = Literal["product", "sampled", "argmax"]
READINGS: tuple[Reading, ...] = get_args(Reading)


def conditional_risk(world: World, predictor: Array, loss: Loss = "log") -> Array:
    """The expected loss of a predictor at every point, `[..., N]`.

    Args:
        world: N points, K classes.
        predictor: `[..., N, K]`.
        loss: `log`: minus the logarithm of the label's probability (infinite where a class that
            occurs has probability zero). `zero-one`: whether the most probable class is wrong.

    Raises:
        ConfigError: An unknown loss.
        WorldError: The predictor does not fit the world.

    Example:
        >>> world = World([1.0], [[0.75, 0.25]])
        >>> conditional_risk(world, np.array([[0.6, 0.4]]), "zero-one")
        array([0.25])
    """
    check_choice("loss", loss, LOSSES)
    predictor = as_predictor(world, predictor)
    if loss == "log":
        logs = _times_log(as_floats(world.p_y_given_x), as_floats(predictor))
        return np.asarray(-logs.sum(-1))
    chosen = modal_class(predictor)[..., None] == np.arange(world.num_classes)
    risk: Array = 1 - (world.p_y_given_x * chosen).sum(-1)
    return risk


def bayes_risk(world: World, loss: Loss = "log") -> Array:
    """The lowest risk of any predictor at every point, `[..., N]`: H[y|x] for `log`.

    Example:
        >>> bayes_risk(World([1.0], [[0.75, 0.25]]), "zero-one")
        array([0.25])
    """
    return conditional_risk(world, world.p_y_given_x, loss)


def excess_risk(world: World, predictor: Array, loss: Loss = "log") -> Array:
    """Risk above the Bayes risk at every point, `[..., N]`: the paper's Delta(f, x).

    Example:
        >>> excess_risk(World([1.0], [[1.0, 0.0]]), np.array([[0.5, 0.5]])).round(3)
        array([0.693])
    """
    result: Array = conditional_risk(world, predictor, loss) - bayes_risk(world, loss)
    return result


def entropy(probs: Array) -> Floats:
    """Entropy of the last dimension, `[...]`.

    Example:
        >>> float(entropy(np.array([0.5, 0.5])).round(4))
        0.6931
    """
    values = as_floats(probs)
    result: Floats = -_times_log(values, values).sum(-1)
    return result


def mutual_information(world: World, given: Grouping, about: Grouping | None = None) -> Floats:
    """I[y, about | given] of each point's group of `given`, `[..., N]`.

    Args:
        world: N points, K classes.
        given: The grouping that is already known.
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


def stopping_probability(world: World, predictors: Array, reading: Reading = "argmax") -> Array:
    """P(stop | x) at every exit: right here, or wrong at every exit from here on.

    Args:
        world: N points, K classes.
        predictors: `[..., M, N, K]`, one per exit.
        reading: `product`: as the paper writes it, with the product of the exits' probabilities
            of being wrong. `sampled`: every exit draws its prediction from its own probabilities,
            independently of the others, and all are compared with one label. `argmax`: every exit
            predicts its most probable class, as in the paper's Eq. (ee_target).

    Returns:
        `[..., M, N]`; 1 at the last exit.

    Raises:
        ConfigError: An unknown reading.
        WorldError: The predictors do not fit the world.

    Example:
        Two exits that always predict the same class: both wrong is as likely as one wrong, 1/2.
        The product says 1/4.

        >>> world = World([1.0], [[0.5, 0.5]])
        >>> same = np.array([[[1.0, 0.0]], [[1.0, 0.0]]])
        >>> stopping_probability(world, same, "product")[:, 0]
        array([0.75, 1.  ])
        >>> stopping_probability(world, same, "sampled")[:, 0]
        array([1., 1.])
    """
    check_choice("reading", reading, READINGS)
    predictors = as_numbers(predictors)
    if predictors.ndim < 3 or predictors.shape[-2:] != world.p_y_given_x.shape[-2:]:
        raise WorldError(
            f"`predictors` must have shape [M, {world.num_points}, {world.num_classes}], got "
            f"{list(predictors.shape)}"
        )
    if reading == "argmax":
        chosen = modal_class(predictors)[..., None] == np.arange(world.num_classes)
        predictors = chosen.astype(int).astype(predictors.dtype)
    probs = world.p_y_given_x[..., None, :, :]  # [..., 1, N, K]
    right = (probs * predictors).sum(-1)  # [..., M, N]
    if reading == "product":
        hopeless = _from_here_on(1 - right, axis=-2)
    else:
        # All exits are compared with one label: they are independent only given that label.
        hopeless = (probs * _from_here_on(1 - predictors, axis=-3)).sum(-1)
    result: Array = right + hopeless
    return result


def _from_here_on(values: Array, axis: int) -> Array:
    """The product over this exit and all later ones."""
    result: Array = np.flip(np.multiply.accumulate(np.flip(values, axis), axis=axis), axis)
    return result


def _times_log(weights: Floats, values: Floats) -> Floats:
    """Weights x log(values), with 0 x log 0 = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Floats = np.where(weights > 0, weights * np.log(values), 0)
    return result
