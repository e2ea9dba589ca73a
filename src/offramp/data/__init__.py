"""Data sets by name, the four disjoint splits, augmentation."""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

if TYPE_CHECKING:
    from offramp.data.augmentation import Augmentation
    from offramp.data.decoding import Normalization
    from offramp.data.embedded import (
        Difficulty,
        DigitsData,
        MixtureData,
        cluttered_digits,
        mixture,
    )
    from offramp.data.images_and_texts import ImageData, TextData
    from offramp.data.load import load
    from offramp.data.source import Source
    from offramp.data.splits import Data, Splits

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
