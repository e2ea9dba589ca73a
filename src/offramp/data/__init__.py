"""Data sets by name, the four disjoint splits, augmentation."""

from offramp.data.augmentation import Augmentation
from offramp.data.catalog import CATALOG, EMBEDDED
from offramp.data.corruptions import CORRUPTIONS, STRENGTHS, corrupted
from offramp.data.digits import Difficulty, DigitsData, cluttered_digits
from offramp.data.images import ImageData, Normalization
from offramp.data.load import load
from offramp.data.mixture import Mixture, MixtureData, mixture
from offramp.data.splits import Data, Splits
from offramp.data.text import TextData

__all__ = [
    "CATALOG",
    "CORRUPTIONS",
    "EMBEDDED",
    "STRENGTHS",
    "Augmentation",
    "Data",
    "Difficulty",
    "DigitsData",
    "ImageData",
    "Mixture",
    "MixtureData",
    "Normalization",
    "Splits",
    "TextData",
    "cluttered_digits",
    "corrupted",
    "load",
    "mixture",
]
