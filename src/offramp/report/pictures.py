"""Pictures of test samples for a page, such as those that no exit gets right."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from offramp import check
from offramp.arrays import as_numpy, as_tensor
from offramp.errors import ConfigError
from offramp.imports import require
from offramp.ledger import Ledger
from offramp.targets import hopeless

Images = npt.NDArray[np.uint8]
PICTURES = 12  # of hopeless samples


@dataclass(frozen=True)
class SampleStrip:
    """Pictures of samples with a caption each.

    Attributes:
        images: uint8 `[n, H, W, C]` with one, three or four channels.
        captions: One per image, such as the label and the prediction.
        note: What these samples are.

    Example:
        >>> strip = SampleStrip(np.zeros((2, 8, 8, 3), np.uint8), ["cat, predicted dog", "owl"])
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
        check.same_length("captions", self.captions, images, per="image")


def image_url(image: Images) -> str:
    """A PNG of one image `[H, W, C]`, as a data URL."""
    pillow: Any = require("PIL.Image", extra="report")
    file = BytesIO()
    pillow.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).save(file, "PNG")
    return data_url("image/png", file.getvalue())


def data_url(kind: str, content: bytes) -> str:
    """A file as the address of an image inside of the page."""
    return f"data:{kind};base64,{b64encode(content).decode('ascii')}"


def hopeless_strip(test: Ledger, images: object) -> SampleStrip | None:
    """Pictures of some test samples that no exit gets right, taken evenly over the test set.

    Args:
        test: The ledger.
        images: The data that were recorded.

    Returns:
        None where there are no such samples, or the data are not the images of the ledger.

    Example:
        >>> from offramp import synthetic
        >>> from offramp.data import cluttered_digits
        >>> others = cluttered_digits(sizes={"test": 10}).test
        >>> print(hopeless_strip(synthetic.ledgers()["test"], others))
        None
    """
    rows = np.flatnonzero(hopeless(test.heads_correct))
    if not len(rows):
        return None
    places = np.linspace(0, len(rows) - 1, min(PICTURES, len(rows))).round().astype(np.int64)
    note = f"{len(places)} of the {len(rows):,}, taken evenly over the test set."
    return sample_strip(test, images, rows[places].tolist(), note)


def sample_strip(
    test: Ledger, images: object, rows: Sequence[int], note: str = ""
) -> SampleStrip | None:
    """Pictures of some samples of a ledger, with their classes and what the last exit predicts.

    Args:
        test: The ledger.
        images: The data that were recorded, or a part of them with all these rows.
        rows: Which samples.
        note: What these samples are.

    Returns:
        None where the data are not the images of the ledger.
    """
    from offramp.data import ImageData  # which needs torch

    if not isinstance(images, ImageData) or test.sample_ids is None:
        return None
    place = {sample: number for number, sample in enumerate(images.sample_ids)}
    wanted = [place.get(str(test.sample_ids[row])) for row in rows]
    known = [number for number in wanted if number is not None]
    if len(known) < len(rows):
        return None  # a ledger of other data
    pixels = as_numpy(images.pixels[as_tensor(np.array(known))]).transpose(0, 2, 3, 1)
    names = test.class_names or images.class_names or range(test.num_classes)
    logits = np.concatenate([logits for _, logits in test.take(list(rows)).chunks()])
    captions = [
        f"{names[int(test.labels[row])]}, predicted {names[int(prediction)]}"
        for row, prediction in zip(rows, logits[:, -1].argmax(axis=1), strict=True)
    ]
    return SampleStrip(np.ascontiguousarray(pixels, dtype=np.uint8), captions, note)
