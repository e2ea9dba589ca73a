"""Columns of a table in, the same columns with answers out; on one machine or on many."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offramp import check
from offramp.errors import ConfigError, DataError
from offramp.networks.inputs import ImageInput, Inputs, TensorInput, TextInput
from offramp.runtime.output import OUTPUT_COLUMNS
from offramp.serving.images import ImageReader
from offramp.serving.model import Model
from offramp.serving.workers import padded

Array = npt.NDArray[Any]
TEXT = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Columns:
    """Which columns are read, and which are returned.

    Args:
        inputs: Name of the column with the inputs; None for `image` if the network takes images,
            and `inputs` otherwise. Texts are always in `input_ids`, `attention_mask` and
            `token_type_ids`.
        layout: Axes of an image: `CHW`, or `HWC` as `ray.data.read_images` returns it.
        prefix: Prefix of the names of the columns with answers.
        keep_inputs: Whether the result also has the columns with the inputs.

    Raises:
        ConfigError: The layout is unknown.

    Example:
        >>> Columns(layout="HCW")
        Traceback (most recent call last):
        offramp.errors.ConfigError: `layout` must be one of CHW, HWC, got 'HCW'; did you
        mean `HWC`?
    """

    inputs: str | None = None
    layout: Literal["CHW", "HWC"] = "CHW"
    prefix: str = ""
    keep_inputs: bool = True

    def __post_init__(self) -> None:
        check.one_of("layout", self.layout, ("CHW", "HWC"))


@dataclass(frozen=True)
class ColumnReader:
    """Turns the columns of a batch into what a network takes.

    Images may be pixels (uint8, normalised as in training), floats that are normalised already,
    or encoded files (bytes, as `ray.data.read_binary_files` returns them); a file that cannot be
    decoded fails alone.
    """

    inputs: Inputs  # what the network takes
    # how pixels are normalised and files decoded; None if the network takes no square RGB images
    images: ImageReader | None = None
    columns: Columns = field(default_factory=Columns)  # where the inputs are

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, ImageInput | TensorInput | TextInput):
            raise ConfigError(
                "a network that does not know its inputs cannot read columns: attach it with an "
                "example, or build it by name"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that are read; for texts only the first is required."""
        if isinstance(self.inputs, TextInput):
            return TEXT
        return (
            self.columns.inputs or ("image" if isinstance(self.inputs, ImageInput) else "inputs"),
        )

    def check(self, present: Collection[str]) -> None:
        """Check the names of columns before any of them is read."""
        if self.names[0] not in present:
            raise DataError(
                f"there is no column {self.names[0]!r} to predict from, only "
                f"{', '.join(sorted(present))}: name another one with `Columns(inputs=...)`"
            )
        new = {self.columns.prefix + name for name in OUTPUT_COLUMNS}
        taken = sorted(new & set(self.kept(present)))
        if taken:
            raise DataError(
                f"the data already have columns named {', '.join(taken)}: rename them, or give "
                "the new ones a prefix with `Columns(prefix=...)`"
            )

    def kept(self, present: Collection[str]) -> list[str]:
        """Names of the columns that are also in the result."""
        dropped = () if self.columns.keep_inputs else self.names
        return [name for name in present if name not in dropped]

    def __call__(self, batch: Mapping[str, Array]) -> Any:  # noqa: ANN401
        """The inputs in a batch of columns `[n, ...]`."""
        self.check(batch)
        if isinstance(self.inputs, TextInput):
            return _texts(batch)
        values = batch[self.names[0]]
        return self._images(values) if isinstance(self.inputs, ImageInput) else self._rows(values)

    def _images(self, values: Array) -> Tensor:
        if values.dtype == object and any(isinstance(value, bytes) for value in values):
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
                f"the column {self.names[0]!r} holds pixels, but only those of square RGB images "
                "are normalised here: give floats as the network takes them"
            )
        pixels = torch.tensor(
            values
        )  # a copy: Ray's arrays are read-only, which torch warns about
        # Any other shape is left to the network, whose message says what it takes.
        is_image = pixels.ndim == 4 and pixels.shape[1] == 3
        return self.images.normalization(pixels) if is_image else pixels

    def _decoded(self, values: Array) -> Tensor:
        if self.images is None:
            raise DataError(
                f"the column {self.names[0]!r} holds files, but this network takes no square RGB "
                "images: give numbers"
            )
        # a missing file fails as an empty one does.
        files = [self.images.inputs_from(value or b"") for value in values]
        return torch.from_numpy(np.stack(files))

    def _rows(self, values: Array) -> Tensor:
        wanted = np.dtype(getattr(self.inputs, "dtype", "float32"))
        values = self._stacked(values)
        if values.dtype.kind not in ("iuf" if wanted.kind == "f" else "iu"):
            raise DataError(f"the column {self.names[0]!r} must hold {wanted}, got {values.dtype}")
        return torch.tensor(values.astype(wanted))

    def _stacked(self, values: Array) -> Array:
        """Rows of one shape as one array."""
        if values.dtype != object:
            return values
        try:
            return np.stack([np.asarray(value) for value in values])
        except ValueError:
            raise DataError(
                f"the rows of the column {self.names[0]!r} differ in shape: make them alike"
            ) from None


def _texts(batch: Mapping[str, Array]) -> dict[str, Tensor]:
    present = [name for name in TEXT if name in batch]
    rows = zip(*(batch[name] for name in present), strict=True)
    texts = []
    for row in rows:
        text = {name: np.asarray(value) for name, value in zip(present, row, strict=True)}
        if any(array.dtype.kind not in "iu" or array.ndim != 1 for array in text.values()):
            raise DataError(f"the columns {', '.join(present)} must hold lists of integers")
        if len({len(array) for array in text.values()}) != 1:
            raise DataError(
                f"the columns {', '.join(present)} of a text must have the same length"
            )
        text.setdefault("attention_mask", np.ones_like(text["input_ids"]))
        texts.append({name: array.astype(np.int64) for name, array in text.items()})
    return {name: torch.from_numpy(column) for name, column in padded(texts).items()}


class PolicyPredictor:
    """Answers batches of columns; each worker makes one, which loads the network once.

    For `dataset.map_batches(PolicyPredictor, fn_constructor_args=(model, columns), ...)` of
    `ray.data`; `predict_dataset` does this in one call. It needs no cluster itself.

    Args:
        model: Folders of the network and the policy, which every machine has.
        columns: Which columns are read and returned.
        device: Where each worker runs, see `Runner`; Ray gives a worker the GPUs that it was
            started with (`num_gpus`).
        precision: `float32`, `bfloat16`, `float16`, or `auto` for what the device is fastest in.

    Raises:
        FileFormatError, ConfigError, NetworkError, OriginError: As `Model.runner`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import offramp
        >>> from torch.utils.data import TensorDataset
        >>> network = offramp.build("convnet", num_classes=4, image_size=8)
        >>> data = TensorDataset(torch.rand(60, 3, 8, 8), torch.arange(60) % 4)
        >>> ledger = offramp.record(network, data, split="all", progress=False)
        >>> held_out, val, _ = ledger.partition()
        >>> policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val)
        >>> policy = policy.at(budget=0.6)
        >>> folder = Path(tempfile.mkdtemp())
        >>> model = Model(network.save(folder / "network"), policy.save(folder / "policy"))
        >>> predict = PolicyPredictor(model)
        >>> batch = {"image": np.zeros((2, 3, 8, 8), dtype=np.float32), "id": np.arange(2)}
        >>> list(predict(batch))[1:]
        ['id', 'prediction', 'confidence', 'likely_wrong', 'exit', 'cost', 'failed']
    """

    def __init__(
        self,
        model: Model,
        columns: Columns | None = None,
        device: str = "auto",
        precision: str = "float32",
    ) -> None:
        self._runner = model.runner(device, precision)
        inputs = self._runner.inputs
        self._reader = ColumnReader(inputs, model.images, columns or Columns())

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Answer a batch of columns `[n, ...]`.

        Returns:
            The columns, and `prediction` (int64, -1 if it failed), `confidence`, `likely_wrong`,
            `exit`, `cost` and `failed`, each `[n]` and as in `RunOutput`.

        Raises:
            DataError: The columns cannot be read, or one has the name of a new one.
            NetworkError: The inputs are not what the network takes.
        """
        answers = self._runner(self._reader(batch)).columns()
        kept = {name: batch[name] for name in self._reader.kept(batch)}
        prefix = self._reader.columns.prefix
        return kept | {prefix + name: column.numpy() for name, column in answers.items()}
