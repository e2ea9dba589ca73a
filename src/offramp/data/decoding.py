"""From stored images and texts to the numbers that a network takes, without torch."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from offramp.arrays import AnyArray, namespace
from offramp.errors import DataError
from offramp.imports import require

# Pillow tries its formats one after the other, and knows many that are never trained on
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".gif", ".tif", ".tiff")


@dataclass(frozen=True)
class Normalization:
    """The mean that is subtracted from pixels (0 to 1), and the deviation they are divided by."""

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __call__(self, pixels: AnyArray) -> AnyArray:
        """Float32 from uint8, both `[..., C, H, W]`, of either kind of array."""
        library = namespace(pixels)
        mean, std = (library.asarray(x, dtype=library.float32) for x in (self.mean, self.std))
        normal = library.asarray(pixels, dtype=library.float32)
        normal *= (1 / (255 * std))[:, None, None]
        normal -= (mean / std)[:, None, None]
        return normal


@dataclass(frozen=True)
class Decoder:
    """From an encoded image to `[3, S, S]` pixels."""

    # S: the shorter side is resized to `S / centre` and the middle is cropped. None takes images
    # as they are.
    image_size: int | None = None
    centre: float = 1.0  # share of the shorter side that is kept

    def __call__(self, encoded: bytes) -> npt.NDArray[np.uint8]:
        """Uint8 `[3, H, W]`; Pillow raises OSError, SyntaxError or ValueError at a broken one."""
        image_module = require("PIL.Image", extra="train")
        with image_module.open(io.BytesIO(encoded), formats=FORMATS) as image:
            picture = self._resized(image.convert("RGB"))
        return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))

    def _resized(self, picture: Any) -> Any:  # noqa: ANN401 - an image of Pillow
        size = self.image_size
        if size is None or picture.size == (size, size):
            return picture
        shorter = min(picture.size) * self.centre
        left, top = ((side - shorter) / 2 for side in picture.size)
        bilinear = require("PIL.Image", extra="train").Resampling.BILINEAR
        box = (left, top, left + shorter, top + shorter)
        return picture.resize((size, size), bilinear, box=box)


# Called as a tokenizer of `transformers` is: with a list of texts, padding, truncation, max_length
# and return_tensors="pt" or "np"
Tokenizer: TypeAlias = Callable[..., Mapping[str, Any]]


def find_tokenizer(tokenizer: Tokenizer | str) -> Tokenizer:
    """A tokenizer as it is, or one of `transformers` by name; code of the hub is never run."""
    if not isinstance(tokenizer, str):
        return tokenizer
    transformers = require("transformers", extra="train")
    try:
        found: Tokenizer = transformers.AutoTokenizer.from_pretrained(
            tokenizer, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"there is no tokenizer {tokenizer!r}: {str(error).splitlines()[0]} (name a folder "
            "with a tokenizer.json, or a model on the hub)"
        ) from None
    return found
