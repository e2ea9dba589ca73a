"""Image files as batches for a network; a file that is no image fails alone."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from offramp.data.catalog import CATALOG
from offramp.data.images import Decoder, Normalization
from offramp.data.load import Source
from offramp.data.reading import IMAGE_SUFFIXES
from offramp.data.splits import Data
from offramp.errors import DataError, NetworkError, OfframpError, OriginWarning
from offramp.networks.inputs import ImageInput, Inputs


def find_images(places: Sequence[Path]) -> list[Path]:
    """Files as they are given, and all images below folders, sorted.

    Raises:
        DataError: A place does not exist, or a folder has no images.
    """
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            below = sorted(p for p in place.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
            if not below:
                raise DataError(f"{place} has no images ({', '.join(sorted(IMAGE_SUFFIXES))})")
            found += below
        elif place.is_file():
            found.append(place)
        else:
            raise DataError(f"there is no file or folder {place}")
    return found


@dataclass(frozen=True)
class ImageReader:
    """Reads images as a network takes them.

    Args:
        size: Height and width in pixels; other images are resized and cut to the middle.
        centre: Share of the shorter side that is kept.
        normalization: As in training.

    Example:
        >>> from offramp.networks import build
        >>> ImageReader.for_inputs(build("convnet", 10, 20).inputs).size
        20
    """

    size: int
    centre: float = 1.0
    normalization: Normalization = field(default_factory=Normalization)

    @classmethod
    def for_inputs(
        cls, inputs: Inputs, centre: float = 1.0, normalization: Normalization | None = None
    ) -> "ImageReader":
        """The reader for what a network takes.

        Raises:
            NetworkError: The network takes no square colour images.
        """
        if not isinstance(inputs, ImageInput) or inputs.height != inputs.width:
            raise NetworkError(
                f"image files need a network that takes square images, and this one takes {inputs}"
            )
        if inputs.channels != 3:
            raise NetworkError(
                f"image files are read in 3 colours, and this network takes {inputs.channels}"
            )
        return cls(inputs.height, centre, normalization or Normalization())

    @classmethod
    def as_trained(cls, inputs: Inputs, told: Source | None, loaded: Data | None) -> "ImageReader":
        """The reader for images like those that a network was trained on.

        Args:
            inputs: What the network takes.
            told: What it was trained on; None where that is not known.
            loaded: A split of it, which knows the normalisation; without one, ImageNet's is used.

        Raises:
            NetworkError: The network takes no square colour images.
        """
        entry = None if told is None else CATALOG.get(told.data)
        centre = 1.0 if entry is None else entry.centre
        return cls.for_inputs(inputs, centre, getattr(loaded, "normalization", None))

    def batches(self, files: Sequence[Path], batch_size: int) -> Iterator[Tensor]:
        """Float32 `[n, 3, S, S]`, file by file; NaN where a file cannot be decoded."""
        for start in range(0, len(files), batch_size):
            yield torch.stack([self._read(path) for path in files[start : start + batch_size]])

    def _read(self, path: Path) -> Tensor:
        try:
            encoded = path.read_bytes()
        except OSError:
            encoded = b""
        return self.decoded(encoded)

    def decoded(self, encoded: bytes) -> Tensor:
        """Float32 `[3, S, S]` of an encoded image; NaN where it cannot be decoded."""
        try:
            pixels = Decoder(self.size, self.centre)(encoded)
        except OfframpError:
            raise  # Pillow is missing: that is no fault of the file
        # Pillow raises OSError, SyntaxError, ValueError, struct.error ... for broken files
        except Exception:
            return torch.full((3, self.size, self.size), torch.nan)
        return self.normalization(pixels[None])[0]


def takes_files(inputs: Inputs) -> bool:
    """Whether a network takes square colour images, as files are read."""
    return isinstance(inputs, ImageInput) and (inputs.channels, inputs.width) == (3, inputs.height)


def images_as_trained(
    inputs: Inputs, told: Source | None
) -> tuple[ImageReader | None, tuple[str, ...] | None]:
    """How a network's images are read, and the names `[K]` of their classes.

    Args:
        inputs: What the network takes.
        told: What it was trained on; None where that is not known.

    Returns:
        None for both if the network takes other inputs; they are given as numbers.
    """
    if not takes_files(inputs):
        return None, None
    loaded = None if told is None else told.load()["test"]
    names = getattr(loaded, "class_names", None)
    return ImageReader.as_trained(inputs, told, loaded), None if names is None else tuple(names)


def images_of_run(
    inputs: Inputs, run: Path, data: str | None = None, domain: str | None = None
) -> tuple[ImageReader | None, tuple[str, ...] | None]:
    """How a run's images are read, and the names `[K]` of their classes.

    Args:
        inputs: What its network takes.
        run: Folder of the run, which knows its data, or of a network.
        data: Data set of the training, where the folder does not know it.
        domain: Of the data set.

    Returns:
        None for both if the network takes other inputs.

    Warns:
        OriginWarning: Nobody says what the data were; ImageNet's normalisation is used.
    """
    told = Source.find(run, data, domain)
    if told is None and takes_files(inputs):
        warnings.warn(
            f"{run} does not say what it was trained on, so pixels and image files are "
            "normalised as ImageNet's; name the data set with `data`",
            OriginWarning,
            stacklevel=3,
        )
    return images_as_trained(inputs, told)
