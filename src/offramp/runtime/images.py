"""Image files as batches for a network; a file that is no image fails alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from offramp.data.images import Decoder, Normalization
from offramp.data.tables import SUFFIXES
from offramp.errors import DataError, NetworkError, OfframpError
from offramp.networks.inputs import ImageInput, Inputs

__all__ = ["ImageReader", "find_images"]


def find_images(places: Sequence[Path]) -> list[Path]:
    """Files as they are given, and all images below folders, sorted.

    Raises:
        DataError: A place does not exist, or a folder has no images.
    """
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            below = sorted(p for p in place.rglob("*") if p.suffix.lower() in SUFFIXES)
            if not below:
                raise DataError(f"{place} has no images ({', '.join(sorted(SUFFIXES))})")
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

    def batches(self, files: Sequence[Path], batch_size: int) -> Iterator[Tensor]:
        """Float32 `[n, 3, S, S]`, file by file; NaN where a file cannot be decoded."""
        for start in range(0, len(files), batch_size):
            yield torch.stack([self._read(path) for path in files[start : start + batch_size]])

    def _read(self, path: Path) -> Tensor:
        try:
            pixels = Decoder(self.size, self.centre)(path.read_bytes())
        except OfframpError:
            raise  # Pillow is missing: that is no fault of the file
        # Pillow raises OSError, SyntaxError, ValueError, struct.error ... for broken files
        except Exception:
            return torch.full((3, self.size, self.size), torch.nan)
        return self.normalization(pixels[None])[0]
