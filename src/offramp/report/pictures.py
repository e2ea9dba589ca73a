"""Pictures inside a page: arrays and SVG files as data URLs, so that nothing is fetched."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offramp.errors import ConfigError, FileFormatError
from offramp.extras import require

__all__ = ["SampleStrip", "image_url", "svg_url"]

Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class SampleStrip:
    """Pictures of samples with a line of text each.

    Attributes:
        images: uint8 `[n, H, W, C]` with one, three or four channels.
        captions: One per image, such as the label and what was predicted.
        note: What these samples are.

    Example:
        >>> strip = SampleStrip(np.zeros((2, 8, 8, 3), np.uint8), ["cat, said dog", "owl"])
        >>> len(strip.images)
        2
    """

    images: Images
    captions: Sequence[str]
    note: str = ""

    def __post_init__(self) -> None:
        images = np.asarray(self.images)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3, 4):
            raise ConfigError(
                "`images` of a SampleStrip must be uint8 [n, H, W, C] with 1, 3 or 4 channels, "
                f"got {images.dtype} {list(images.shape)}"
            )
        if len(images) != len(self.captions):
            raise ConfigError(
                f"a SampleStrip needs one caption per image, got {len(self.captions)} for "
                f"{len(images)} images"
            )


def image_url(image: Images) -> str:
    """A PNG of one image `[H, W, C]`, as a data URL.

    Raises:
        MissingExtraError: pillow, which comes with matplotlib, is not installed.

    Example:
        >>> image_url(np.zeros((2, 2, 1), np.uint8))[:22]
        'data:image/png;base64,'
    """
    pillow: Any = require("PIL.Image", extra="report")
    file = BytesIO()
    pillow.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).save(file, "PNG")
    return _url("image/png", file.getvalue())


def svg_url(path: str | Path) -> str:
    """An SVG file as a data URL; shown as an image, nothing inside it can run.

    Raises:
        FileFormatError: The file is missing or is no SVG.
    """
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"there is no figure at {path}")
    content = path.read_bytes()
    if b"<svg" not in content:
        raise FileFormatError(f"{path} is not an SVG file; a page shows SVG figures only")
    return _url("image/svg+xml", content)


def _url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{b64encode(content).decode('ascii')}"
