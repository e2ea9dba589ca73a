"""Two worlds to look at: what calibration alone does not give."""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from offramp.errors import WorldError
from offramp.theory.exits import Exits
from offramp.theory.risks import entropy, excess_risk
from offramp.theory.statements import Sides
from offramp.theory.worlds import Array, World, as_floats, modal_class

TIE = 1e-12  # by so much, 1/(K-1) in floats may be missed
BOUND = 20.0  # nats: an excess risk that counts as arbitrarily large
RIVAL = 0.05  # a rarer class needs an epsilon that floats cannot hold


def above_the_floor(exits: Exits) -> npt.NDArray[np.bool_]:
    """Whether exit 0's confidence at point 0 is at least 1/(K-1): bool `[...]`.

    Below it, all classes but one cannot hold a probability of one together, since none may be
    above c: so each of them has at least 1 - (K-1) c, and the log loss is bounded.
    """
    return np.asarray(_confidence(exits) * (exits.world.num_classes - 1) >= 1 - TIE)


def worsened(exits: Exits, epsilon: Any) -> Array:  # noqa: ANN401 - a number, or an array
    """Exit 0 with as little as possible for a class that occurs at point 0, `[..., N, K]`.

    The proof of Proposition 3.8: that class (the most probable one but the modal one) is set to
    epsilon, and the other classes share what is left. None of them may be above the largest
    probability, so that below c = 1/(K-1) the class keeps what they cannot take.

    Args:
        exits: K >= 3, with a confidence-calibrated exit 0.
        epsilon: `[...]`, above 0.

    Raises:
        WorldError: Fewer than three classes.

    Example:
        >>> world = World([1.0], [[0.6, 0.3, 0.1]])
        >>> exits = Exits.calibrated(world, [[0]])
        >>> worsened(exits, epsilon=0.001)
        array([[0.6  , 0.001, 0.399]])
    """
    predictor = exits.predictors[..., 0, :, :].copy()
    others = exits.world.num_classes - 2
    if others < 1:
        raise WorldError("a class to worsen needs two others, so 3 classes at least, got 2")
    top = predictor[..., 0, :].max(-1)
    left_over = 1 - (others + 1) * top
    low = np.where(left_over < TIE, epsilon, left_over)
    index = np.arange(others + 2)
    row = np.where(
        index == _victim(exits)[..., None],
        np.asarray(low)[..., None],
        np.asarray((1 - top - low) / others)[..., None],
    )
    modal = np.asarray(modal_class(predictor)[..., 0])
    predictor[..., 0, :] = np.where(index == modal[..., None], np.asarray(top)[..., None], row)
    return predictor


def log_loss_is_unbounded(exits: Exits) -> Sides:
    """Confidence calibration allows a log-loss excess risk above any bound (Proposition 3.8).

    Tried with 20 nats at point 0, where another class has a probability of 1/20 at least, so that
    floats can hold epsilon. The largest probability and its class stay what they are, and
    with them the calibration.

    Returns:
        The bound, and the excess risk of the worst predictor.

    Example:
        >>> for top in (0.6, 0.4):
        ...     world = World([1.0], [[top, 0.3, 0.7 - top]])
        ...     print(log_loss_is_unbounded(Exits.calibrated(world, [[0]])).holds)
        True
        False
    """
    probs = as_floats(exits.world.p_y_given_x)[..., 0, :]
    share = _victims_share(exits)
    # Excess >= -share log(epsilon) - H, so that this epsilon is small enough.
    with np.errstate(divide="ignore"):
        epsilon = np.exp(-(BOUND + entropy(probs) + 1) / share)
    predictors = as_floats(exits.predictors)
    floats = World(as_floats(exits.world.p_x), as_floats(exits.world.p_y_given_x))
    worst = worsened(Exits(floats, exits.grouping, predictors), epsilon)
    excess = np.asarray(excess_risk(floats, worst)[..., 0])
    return Sides(np.full((*excess.shape, 1), BOUND), excess[..., None], "<=")


def excess_stays_below_the_floor(exits: Exits) -> Sides:
    """Below c = 1/(K-1), excess risk at a point is at most -log(1 - (K-1) c).

    Example:
        >>> from offramp.theory.worlds import Grouping
        >>> exits = Exits(
        ...     World([1.0], [[0.4, 0.0, 0.6]]), Grouping([[0]]), np.array([[[0.4, 0.4, 0.2]]])
        ... )
        >>> excess_stays_below_the_floor(exits).holds
        array(True)
    """
    floor = 1 - (exits.world.num_classes - 1) * _confidence(exits)
    excess = excess_risk(exits.world, exits.predictors[..., 0, :, :])[..., :1]
    return Sides(excess, -np.log(floor)[..., None], "<=")


def has_a_rival(exits: Exits) -> npt.NDArray[np.bool_]:
    """Whether a class but the modal one has 1/20 at least at point 0: bool `[...]`."""
    return np.asarray(_victims_share(exits) >= RIVAL)


def _confidence(exits: Exits) -> npt.NDArray[np.float64]:
    return np.asarray(as_floats(exits.predictors[..., 0, 0, :]).max(-1))


def _victims_share(exits: Exits) -> npt.NDArray[np.float64]:
    probs = as_floats(exits.world.p_y_given_x)[..., 0, :]
    return np.asarray(np.take_along_axis(probs, _victim(exits)[..., None], -1)[..., 0])


def _victim(exits: Exits) -> npt.NDArray[np.intp]:
    """The class, other than the modal one of exit 0, that is most probable at point 0: `[...]`."""
    modal = modal_class(exits.predictors)[..., 0, 0]
    others = np.arange(exits.world.num_classes) != modal[..., None]
    probs = as_floats(exits.world.p_y_given_x)[..., 0, :]
    result: npt.NDArray[np.intp] = np.where(others, probs, -1).argmax(-1)
    return result


class Pair(NamedTuple):
    """Two early-exit networks with the same predictions, and the costs of their exits."""

    calibrated: Exits
    overconfident: Exits
    costs: tuple[int, ...]


def growing_excess_risk() -> Exits:
    """Exits that are calibrated, do not refine, and get worse with depth.

    The first exit tells point 2 from the others, which is all there is to know. The second one
    tells point 0 from the others, which is as fine a grouping, and useless.

    Example:
        >>> from offramp.theory.risks import excess_risk
        >>> exits = growing_excess_risk()
        >>> world = exits.world.per_exit()
        >>> world.mean(excess_risk(world, exits.predictors)).round(3)
        array([0.   , 0.462])
    """
    third = Fraction(1, 3)
    world = World([third] * 3, [[1, 0], [1, 0], [0, 1]])
    return Exits.calibrated(world, [[0, 0, 1], [0, 1, 1]])


def calibrated_but_worse() -> Pair:
    """A network calibrated at every exit, along a refinement chain, that is the worse one.

    At point 0 the label is a coin flip: no exit gets it right more often than the first. Points 1
    and 2 look alike to the first exit, and the second one tells them apart. Going on pays for
    them only. But the coin flip has the lower confidence, 1/2 against 2/3, so that any threshold
    on the confidence sends point 0 on before them. The other network predicts the same and says
    9/10 at the coin flip, which is wrong and stops it.

    Example:
        >>> pair = calibrated_but_worse()
        >>> bool(pair.calibrated.is_chain)
        True
    """
    two, half, nine = Fraction(2, 5), Fraction(1, 2), Fraction(9, 10)
    world = World([two, two, Fraction(1, 5)], [[half, half], [1, 0], [0, 1]])
    calibrated = Exits.calibrated(world, [[0, 1, 1], [0, 1, 2]])
    predictors = calibrated.predictors.copy()
    predictors[0, 0] = [nine, 1 - nine]
    return Pair(calibrated, Exits(world, calibrated.grouping, predictors), (1, 2))
