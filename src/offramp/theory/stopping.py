"""The probability that it is right to stop (paper, Section 4), in three readings."""

from typing import Literal, get_args

import numpy as np

from offramp.errors import ConfigError, WorldError
from offramp.theory.worlds import Array, World, as_numbers, modal_class

__all__ = ["READINGS", "Reading", "stopping_probability"]

Reading = Literal["product", "sampled", "argmax"]
READINGS: tuple[Reading, ...] = get_args(Reading)


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
        WorldError: The predictors are not for this world.

    Example:
        Two exits that always answer the same class: both wrong is as likely as one wrong, 1/2.
        The product says 1/4.

        >>> world = World([1.0], [[0.5, 0.5]])
        >>> same = np.array([[[1.0, 0.0]], [[1.0, 0.0]]])
        >>> stopping_probability(world, same, "product")[:, 0]
        array([0.75, 1.  ])
        >>> stopping_probability(world, same, "sampled")[:, 0]
        array([1., 1.])
    """
    if reading not in READINGS:
        raise ConfigError(f"`reading` must be one of {', '.join(READINGS)}, got {reading!r}")
    predictors = as_numbers(predictors)
    if predictors.ndim < 3 or predictors.shape[-2:] != world.p_y_given_x.shape[-2:]:
        raise WorldError(
            f"`predictors` must have the shape [M, {world.num_points}, {world.num_classes}], got "
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
        # One label for all exits: they are independent given the label, not otherwise.
        hopeless = (probs * _from_here_on(1 - predictors, axis=-3)).sum(-1)
    result: Array = right + hopeless
    return result


def _from_here_on(values: Array, axis: int) -> Array:
    """The product over this exit and all later ones."""
    result: Array = np.flip(np.multiply.accumulate(np.flip(values, axis), axis=axis), axis)
    return result
