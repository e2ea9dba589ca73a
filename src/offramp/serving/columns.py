"""Columns of a table as what a network takes, and answers as columns."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offramp.errors import ConfigError, DataError
from offramp.networks.inputs import ImageInput, Inputs, TensorInput, TextInput
from offramp.runtime.output import RunOutput
from offramp.serving.answers import padded
from offramp.serving.images import ImageReader

Array = npt.NDArray[Any]
TEXT = ("input_ids", "attention_mask", "token_type_ids")
ANSWERS = {  # a column's name, and what it is in a RunOutput
    "prediction": "predictions",
    "confidence": "confidence",
    "likely_wrong": "likely_wrong",
    "exit": "exits",
    "cost": "costs",
    "failed": "failed",
}


@dataclass(frozen=True)
class Columns:
    """Which columns are read, and what becomes of them.

    Args:
        inputs: Name of the column with the inputs; None is `image` for images and `inputs` for
            others. Texts are always in `input_ids`, `attention_mask` and `token_type_ids`.
        layout: Of an image: `CHW`, or `HWC` as `ray.data.read_images` gives it.
        prefix: Of the names of the columns with answers.
        keep_inputs: Whether the columns that were read are in the result too.

    Raises:
        ConfigError: Another layout.

    Example:
        >>> Columns(layout="HCW")
        Traceback (most recent call last):
        offramp.errors.ConfigError: `layout` must be CHW or HWC, got 'HCW'
    """

    inputs: str | None = None
    layout: Literal["CHW", "HWC"] = "CHW"
    prefix: str = ""
    keep_inputs: bool = True

    def __post_init__(self) -> None:
        if self.layout not in ("CHW", "HWC"):
            raise ConfigError(f"`layout` must be CHW or HWC, got {self.layout!r}")


@dataclass(frozen=True)
class ColumnReader:
    """From the columns of a batch to what a network takes.

    Images may be pixels (uint8, normalised as in training), floats that are normalised already,
    or encoded files (bytes, as `ray.data.read_binary_files` gives them), of which one that cannot
    be decoded fails alone.

    Args:
        inputs: What the network takes.
        images: How pixels are normalised and files decoded; None if it takes no square colour
            images.
        columns: Where the inputs are.

    Raises:
        ConfigError: The network does not know its inputs.

    Example:
        >>> reader = ColumnReader(ImageInput(2, 2), ImageReader(2), Columns(layout="HWC"))
        >>> reader({"image": np.zeros((5, 2, 2, 3), dtype=np.uint8)}).shape
        torch.Size([5, 3, 2, 2])
    """

    inputs: Inputs
    images: ImageReader | None = None
    columns: Columns = field(default_factory=Columns)

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, ImageInput | TensorInput | TextInput):
            raise ConfigError(
                "a network that does not know its inputs cannot read columns: attach it with an "
                "example, or build it by name"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that are read; of a text's, only the first is needed."""
        if isinstance(self.inputs, TextInput):
            return TEXT
        return (
            self.columns.inputs or ("image" if isinstance(self.inputs, ImageInput) else "inputs"),
        )

    def check(self, present: Collection[str]) -> None:
        """Check the names of columns, before any of them is read.

        Raises:
            DataError: That of the inputs is missing, or one has the name of an answer's.
        """
        if self.names[0] not in present:
            raise DataError(
                f"there is no column {self.names[0]!r} to predict from, only "
                f"{', '.join(sorted(present))}: name another with `Columns(inputs=...)`"
            )
        taken = sorted({self.columns.prefix + name for name in ANSWERS} & set(self.kept(present)))
        if taken:
            raise DataError(
                f"the data have columns of the names {', '.join(taken)} already: rename them, or "
                "give the new ones a prefix with `Columns(prefix=...)`"
            )

    def kept(self, present: Collection[str]) -> list[str]:
        """The names of the columns that are in the result."""
        dropped = () if self.columns.keep_inputs else self.names
        return [name for name in present if name not in dropped]

    def __call__(self, batch: Mapping[str, Array]) -> Any:  # noqa: ANN401
        """The inputs of a batch.

        Args:
            batch: Columns `[n, ...]`.

        Raises:
            DataError: As `check`, or a column holds what cannot be read.
        """
        self.check(batch)
        if isinstance(self.inputs, TextInput):
            return _texts(batch)
        values = batch[self.names[0]]
        return self._images(values) if isinstance(self.inputs, ImageInput) else self._rows(values)

    def _images(self, values: Array) -> Tensor:
        if values.dtype == object and _first(values, (bytes,)) is not None:
            return self._decoded(values)
        values = self._stacked(values)
        if self.columns.layout == "HWC" and values.ndim == 4:
            values = values.transpose(0, 3, 1, 2)
        if values.dtype.kind == "f":
            return torch.tensor(values, dtype=torch.float32)
        if values.dtype != np.uint8:
            raise DataError(
                f"the column {self.names[0]!r} must hold pixels (uint8), floats as the network "
                f"takes them, or encoded images (bytes), got {values.dtype}"
            )
        if self.images is None:
            raise DataError(
                f"the column {self.names[0]!r} holds pixels, and only colour images of square "
                "networks are normalised here: give floats as the network takes them"
            )
        pixels = torch.tensor(values)  # a copy: Ray's arrays are read-only, which torch dislikes
        # What is not [n, 3, height, width] is left to the network, whose message says what is.
        is_image = pixels.ndim == 4 and pixels.shape[1] == 3
        return self.images.normalization(pixels) if is_image else pixels

    def _decoded(self, values: Array) -> Tensor:
        if self.images is None:
            raise DataError(
                f"the column {self.names[0]!r} holds files, and this network takes no square "
                "colour images: give numbers"
            )
        # Missing ones are as broken as empty ones
        return torch.stack([self.images.decoded(value or b"") for value in values])

    def _rows(self, values: Array) -> Tensor:
        wanted = np.dtype(getattr(self.inputs, "dtype", "float32"))
        values = self._stacked(values)
        if values.dtype.kind not in ("iuf" if wanted.kind == "f" else "iu"):
            raise DataError(f"the column {self.names[0]!r} must hold {wanted}, got {values.dtype}")
        return torch.tensor(values.astype(wanted))

    def _stacked(self, values: Array) -> Array:
        """Rows of one shape, also where each is an array of its own."""
        if values.dtype != object:
            return values
        try:
            return np.stack([np.asarray(value) for value in values])
        except ValueError:
            raise DataError(
                f"the rows of the column {self.names[0]!r} differ in shape: bring them to one"
            ) from None


def _first(values: Array, kinds: tuple[type, ...]) -> object | None:
    return next((value for value in values if isinstance(value, kinds)), None)


def _texts(batch: Mapping[str, Array]) -> dict[str, Tensor]:
    present = [name for name in TEXT if name in batch]
    rows = zip(*(batch[name] for name in present), strict=True)
    texts = []
    for row in rows:
        text = {name: np.asarray(part) for name, part in zip(present, row, strict=True)}
        if any(part.dtype.kind not in "iu" or part.ndim != 1 for part in text.values()):
            raise DataError(f"the columns {', '.join(present)} must hold lists of whole numbers")
        if len({len(part) for part in text.values()}) != 1:
            raise DataError(f"the columns {', '.join(present)} of a text must be equally long")
        text.setdefault("attention_mask", np.ones_like(text["input_ids"]))
        texts.append({name: part.astype(np.int64) for name, part in text.items()})
    return padded(texts)


def answer_columns(output: RunOutput, prefix: str = "") -> dict[str, Array]:
    """What a run answers, as columns `[N]`.

    Args:
        output: The answers to N samples.
        prefix: Of the columns' names.
    """
    return {prefix + name: getattr(output, part).numpy() for name, part in ANSWERS.items()}
