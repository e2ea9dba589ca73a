"""Images: decoded when they are first asked for, kept as bytes, normalised a batch at a time."""

import io
import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from offramp.data.reading import RawInputs
from offramp.data.splits import LabelledData
from offramp.errors import CorruptImageError, DataError, OfframpError
from offramp.extras import require

IN_MEMORY = 2 * 2**30  # bytes of pixels per split that are kept once decoded
# Pillow tries its formats one after the other, and knows many that are never trained on
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")
CHUNK = 1024  # images that are decoded together when all are checked
THREADS = 4  # Pillow releases the interpreter lock while it decodes


@dataclass(frozen=True)
class Normalization:
    """The mean that is subtracted from pixels (0 to 1), and the deviation they are divided by."""

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Float32 from uint8, both `[n, C, H, W]`."""
        std = torch.tensor(self.std)
        scale = (1 / (255 * std))[:, None, None]
        shift = (torch.tensor(self.mean) / std)[:, None, None]
        return pixels.to(torch.float32).mul_(scale).sub_(shift)


@dataclass(frozen=True)
class Decoder:
    """From an encoded image to `[3, S, S]` pixels."""

    # S: the shorter side is resized to `S / centre` and the middle is cropped. None takes images
    # as they are.
    image_size: int | None = None
    centre: float = 1.0  # share of the shorter side that is kept

    def __call__(self, encoded: bytes) -> Tensor:
        """Uint8 `[3, H, W]`; Pillow raises OSError, SyntaxError or ValueError at a broken one."""
        image_module = require("PIL.Image", extra="train")
        with image_module.open(io.BytesIO(encoded), formats=FORMATS) as image:
            picture = self._resized(image.convert("RGB"))
        # Pillow's arrays are read-only, which torch warns about
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()

    def _resized(self, picture: Any) -> Any:  # noqa: ANN401 - an image of Pillow
        size = self.image_size
        if size is None or picture.size == (size, size):
            return picture
        shorter = min(picture.size) * self.centre
        left, top = ((side - shorter) / 2 for side in picture.size)
        bilinear = require("PIL.Image", extra="train").Resampling.BILINEAR
        box = (left, top, left + shorter, top + shorter)
        return picture.resize((size, size), bilinear, box=box)


def _shared_zeros(*shape: int) -> Tensor:
    """Uint8 zeros in memory that processes forked later read and write together with this one.

    Not in `/dev/shm`, as `Tensor.share_memory_` would have it: it is small in many containers.
    """
    memory = mmap.mmap(-1, max(1, prod(shape)))
    return torch.frombuffer(memory, dtype=torch.uint8)[: prod(shape)].view(shape)


class Pixels:
    """The pixels of one split, `rows [N]` of `encoded`; kept where they fit into memory.

    What a worker of a loader has decoded is there for all of them, and for this process, if the
    first image was read before they were started.
    """

    def __init__(self, encoded: RawInputs, rows: list[int], decode: Decoder) -> None:
        self._encoded = encoded
        self._rows = rows
        self._decode = decode
        self._kept: Tensor | None = None
        self._is_kept = _shared_zeros(len(rows)).view(torch.bool)

    def __len__(self) -> int:
        return len(self._is_kept)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Uint8 `[n, 3, H, W]` of the samples in `index [n]`; broken images raise."""
        missing = index[~self._is_kept[index]].unique()
        if self._kept is not None and len(missing) == 0:
            return self._kept[index]
        decoded = self._stacked(missing.tolist())
        if len(self) * decoded[0].numel() > IN_MEMORY:
            return decoded[torch.searchsorted(missing, index)]
        if self._kept is None:
            self._kept = _shared_zeros(len(self), *decoded.shape[1:])
        self._check_size(decoded[0], self._kept.shape[1:], int(missing[0]))
        self._kept[missing] = decoded
        self._is_kept[missing] = True
        return self._kept[index]

    def broken(self) -> list[int]:
        """Positions of the images that cannot be decoded; goes through all of them once."""
        found = []
        for start in range(0, len(self), CHUNK):
            positions = list(range(start, min(start + CHUNK, len(self))))
            decoded = self._decoded(positions)
            found += [at for at, one in zip(positions, decoded, strict=True) if one is None]
        return found

    def _stacked(self, positions: list[int]) -> Tensor:
        decoded = self._decoded(positions)
        for position, one in zip(positions, decoded, strict=True):
            if one is None:
                raise CorruptImageError(
                    f"the image {self._name(position)} cannot be decoded; replace it, or load "
                    "with on_corrupt='skip' to leave such images out"
                )
            self._check_size(one, decoded[0].shape, position)
        return torch.stack(decoded)

    def _decoded(self, positions: list[int]) -> list[Any]:
        encoded = self._encoded.read([self._rows[position] for position in positions])
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(self._attempt, encoded))

    def _attempt(self, encoded: bytes) -> Tensor | None:
        try:
            return self._decode(encoded)
        except OfframpError:
            raise
        # Pillow raises OSError, SyntaxError, ValueError, struct.error ... for broken files
        except Exception:
            return None

    def _name(self, position: int) -> str:
        return self._encoded.name(self._rows[position])

    def _check_size(self, one: Tensor, shape: Sequence[int], position: int) -> None:
        if tuple(one.shape) != tuple(shape):
            raise DataError(
                f"the image {self._name(position)} has {one.shape[1]}x{one.shape[2]} pixels and "
                f"others have {shape[1]}x{shape[2]}; give `image_size=` to make them equal"
            )


class Indexed(Protocol):
    """Gives the pixels of some samples of a split."""

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """Uint8 `[n, C, H, W]` of the samples in `index [n]`."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageData(LabelledData):
    """One split of a data set of images.

    Args:
        pixels: Gives uint8 `[n, C, H, W]` for an index `[n]`: a tensor, for example.
        labels, split, sample_ids, num_classes, class_names: See `Data`.
        normalization: From uint8 to what the network sees.
        skipped: Ids of images that were left out because they are broken.

    Example:
        >>> data = ImageData(
        ...     pixels=torch.zeros(2, 3, 4, 4, dtype=torch.uint8), labels=torch.tensor([0, 1]),
        ...     split="val", sample_ids=["a", "b"], num_classes=2)
        >>> inputs, labels = data.batch(torch.tensor([1, 0]))
        >>> inputs.shape, labels
        (torch.Size([2, 3, 4, 4]), tensor([1, 0]))
    """

    pixels: "Indexed" = field(repr=False)
    normalization: Normalization = field(default_factory=Normalization)
    skipped: tuple[str, ...] = ()

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        if not -len(self) <= position < len(self):
            raise IndexError(f"there are {len(self)} samples, got position {position}")
        inputs, labels = self.batch(torch.tensor([position % len(self)]))
        return inputs[0], int(labels[0])

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs float32 `[n, C, H, W]`, normalised, and labels `[n]`."""
        return self.normalization(self.pixels[index]), self.labels[index]
