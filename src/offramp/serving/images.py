"""Image files as batches for a network; a file that cannot be decoded fails alone."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from offramp import check
from offramp.data.decoding import IMAGE_SUFFIXES, Decoder, Normalization
from offramp.data.source import Source
from offramp.errors import DataError, NetworkError, OfframpError, OriginWarning
from offramp.files import restore
from offramp.networks.inputs import ImageInput, Inputs
from offramp.onnx.manifest import Manifest
from offramp.registry import CATALOG

Floats = npt.NDArray[np.float32]


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The given files in their order, and all images in the given folders, sorted."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            below = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
            if not below:
                raise DataError(f"{path} has no images ({', '.join(sorted(IMAGE_SUFFIXES))})")
            found += below
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"there is no file or folder {path}")
    return found


@dataclass(frozen=True)
class ImageReader:
    """Reads image files as a network takes them."""

    size: int  # height and width S in pixels; other images are resized and cropped to the centre
    centre: float = 1.0  # share of the shorter side that is kept
    normalization: Normalization = field(default_factory=Normalization)  # the one used in training

    def __post_init__(self) -> None:
        check.whole("size", self.size, 1)
        check.within("centre", self.centre, 0, 1, ends="(]")

    def batches(self, files: Sequence[Path], batch_size: int) -> Iterator[Floats]:
        """Float32 `[n, 3, S, S]`; NaN for files that cannot be read or decoded."""
        for start in range(0, len(files), batch_size):
            yield np.stack([self._read(path) for path in files[start : start + batch_size]])

    def _read(self, path: Path) -> Floats:
        try:
            encoded = path.read_bytes()
        except OSError:
            encoded = b""
        return self.inputs_from(encoded)

    def inputs_from(self, encoded: bytes) -> Floats:
        """Float32 `[3, S, S]`, normalised; NaN if the image cannot be decoded."""
        try:
            pixels = Decoder(self.size, self.centre)(encoded)
        except OfframpError:
            raise  # Pillow is missing, which is not the file's fault
        except Exception:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, ...
            return np.full((3, self.size, self.size), np.nan, dtype=np.float32)
        normal: Floats = self.normalization(pixels)
        return normal


@dataclass(frozen=True)
class Reading:
    """How samples are read, and how classes are named: what an export takes along of a run.

    Attributes:
        image_reader: How images become numbers; None if the network takes no square RGB images.
        class_names: `[K]`, or None.
        tokenizer: Name or folder of the tokenizer for texts; None if only tokens are taken.
    """

    image_reader: ImageReader | None = None
    class_names: tuple[str, ...] | None = None
    tokenizer: str | None = None

    @classmethod
    def of_run(
        cls, inputs: Inputs, run: str | Path, data: str | None = None, domain: str | None = None
    ) -> "Reading":
        """As in the data set that a run knows, or in `data`; empty where there is none.

        `run` is the folder of the run, or of its network.
        """
        source = Source.find(Path(run), data, domain)
        if source is None:
            return cls()
        if not takes_image_files(inputs):
            return cls(tokenizer=source.tokenizer)
        entry = CATALOG.get(source.data)
        if source.normalization is None:  # a run of an older version, or other data
            source = source.of_samples(source.load()["test"])
        pixels, names = source.normalization or Normalization(), source.class_names
        reader = ImageReader(inputs.height, 1.0 if entry is None else entry.centre, pixels)
        return cls(reader, None if names is None else tuple(names))

    @classmethod
    def of_export(cls, folder: Path) -> "Reading":
        """What the notes of an export say, or `FileFormatError`."""
        found: Reading = restore(cls, Manifest.read(folder).notes, f"{folder}, notes")
        return found

    def updated(self, other: "Reading") -> "Reading":
        """The same, but for what another one knows."""
        return replace(
            self, **{name: value for name, value in vars(other).items() if value is not None}
        )

    def reader_for(self, inputs: Inputs, run: str | Path) -> ImageReader:
        """The image reader; if none is known, one that normalises as ImageNet is normalised.

        Raises:
            NetworkError: The network does not take square RGB images.

        Warns:
            OriginWarning: Nothing is known.
        """
        if not takes_image_files(inputs):
            raise NetworkError(
                "image files need a network that takes square RGB images, and this one takes "
                f"{inputs}"
            )
        if self.image_reader is not None:
            return self.image_reader
        warnings.warn(
            f"{run} does not say what it was trained on, so images are normalised as ImageNet's; "
            "name the data set of the training (`data`, or --data)",
            OriginWarning,
            stacklevel=3,
        )
        return ImageReader(inputs.height)


def takes_image_files(inputs: Inputs) -> TypeGuard[ImageInput]:
    """Whether a network takes square RGB images, which is what files are read as."""
    return isinstance(inputs, ImageInput) and (inputs.channels, inputs.width) == (3, inputs.height)
