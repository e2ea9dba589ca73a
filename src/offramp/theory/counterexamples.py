"""Two worlds to look at: what calibration alone does not give."""

from fractions import Fraction
from typing import NamedTuple

from offramp.theory.exits import Exits
from offramp.theory.worlds import World

__all__ = ["Pair", "calibrated_but_worse", "growing_excess_risk"]


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
