"""Data sets by name, the four disjoint splits, augmentation."""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

if TYPE_CHECKING:
    from offramp.data.augmentation import Augmentation
    from offramp.data.decoding import Normalization
    from offramp.data.digits import Difficulty, DigitsData, cluttered_digits
    from offramp.data.images import ImageData
    from offramp.data.load import load
    from offramp.data.mixture import MixtureData, mixture
    from offramp.data.source import Source
    from offramp.data.splits import Data, Splits
    from offramp.data.text import TextData

__all__ = [
    "Augmentation",
    "Data",
    "Difficulty",
    "DigitsData",
    "ImageData",
    "MixtureData",
    "Normalization",
    "Source",
    "Splits",
    "TextData",
    "cluttered_digits",
    "load",
    "mixture",
]

import_when_asked(__name__)
