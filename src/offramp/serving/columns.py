"""Columns of a table in, the same columns with answers out; on one machine or on many."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from offramp.arrays import Array
from offramp.errors import ConfigError, DataError
from offramp.networks.inputs import ImageInput, Inputs, TensorInput, TextInput
from offramp.runtime.output import OUTPUT_COLUMNS
from offramp.serving.images import ImageReader
from offramp.serving.model import Model

TEXT = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class ColumnReader:
    """Turns the columns of a batch into what a network takes; the network itself checks the rest.

    Images may be pixels (uint8, normalised as in training), floats that are normalised already,
    or encoded files (bytes, as `ray.data.read_binary_files` returns them); a file that cannot be
    decoded fails alone. The channels may come first or last.
    """

    inputs: Inputs  # what the network takes
    # how pixels are normalised and files decoded; None if the network takes no square RGB images
    images: ImageReader | None = None
    column: str | None = None  # see `PolicyPredictor`

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
        return (self.column or ("image" if isinstance(self.inputs, ImageInput) else "inputs"),)

    def check(self, present: Collection[str]) -> None:
        """Check the names of columns before any of them is read."""
        if self.names[0] not in present:
            raise DataError(
                f"there is no column {self.names[0]!r} to predict from, only "
                f"{', '.join(sorted(present))}: name another one with `column`"
            )
        taken = sorted({*OUTPUT_COLUMNS} & {*present})
        if taken:
            raise DataError(
                f"the data already have columns named {', '.join(taken)}: rename them, with "
                "`dataset.rename_columns` in Ray"
            )

    def __call__(self, batch: Mapping[str, Array]) -> Array | dict[str, Array]:
        """The inputs in a batch of columns `[n, ...]`."""
        self.check(batch)
        if isinstance(self.inputs, TextInput):
            return _texts(batch)
        values = self._stacked(batch[self.names[0]])
        if isinstance(self.inputs, ImageInput):
            return self._images(self.inputs, values)
        wanted = getattr(self.inputs, "dtype", "float32")
        return values.astype(wanted) if np.can_cast(values.dtype, wanted, "same_kind") else values

    def _images(self, inputs: ImageInput, values: Array) -> Array:
        """Float32 with the channels first; what is no image here stays as it is."""
        shape = inputs.channels, inputs.height, inputs.width
        if values.shape[1:] == (*shape[1:], shape[0]) != shape:
            values = values.transpose(0, 3, 1, 2)
        if values.dtype.kind == "f":
            return values.astype(np.float32)
        is_pixels = values.dtype == np.uint8 and values.ndim == 4 and values.shape[1] == 3
        return self.images.normalization(values) if is_pixels and self.images else values

    def _stacked(self, values: Array) -> Array:
        """Rows that are objects as one array; encoded images are decoded and normalised."""
        if values.dtype != object:
            return values
        if self.images is not None and any(isinstance(value, bytes) for value in values):
            # a missing file fails as an empty one does.
            return np.stack([self.images.inputs_from(value or b"") for value in values])
        try:
            return np.stack([np.asarray(value) for value in values])
        except ValueError:
            raise DataError(
                f"the rows of the column {self.names[0]!r} differ in shape: make them alike"
            ) from None


def _texts(batch: Mapping[str, Array]) -> dict[str, Array]:
    present = [name for name in TEXT if name in batch]
    texts = []
    for row in zip(*(batch[name] for name in present), strict=True):
        text = {name: np.asarray(value) for name, value in zip(present, row, strict=True)}
        kinds, shapes = {x.dtype.kind for x in text.values()}, {x.shape for x in text.values()}
        if not kinds <= {*"iu"} or shapes != {(text["input_ids"].size,)}:
            raise DataError(
                f"the columns {', '.join(present)} must hold lists of integers, which have the "
                "same length for the same text"
            )
        texts.append({"attention_mask": np.ones_like(text["input_ids"]), **text})
    return padded(texts)


def padded(texts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Texts of arrays `[length]` as one batch of arrays `[n, longest]`; padding is masked out.

    Example:
        >>> short, long = ({"input_ids": np.arange(size)} for size in (1, 3))
        >>> padded([short, long])["input_ids"].tolist()
        [[0, 0, 0], [0, 1, 2]]
    """
    length = max(len(text["input_ids"]) for text in texts)
    # Texts without segments lie entirely in the first one.
    names = {name for text in texts for name in text}

    def widened(text: Mapping[str, Array], name: str) -> Array:
        array = text.get(name, np.zeros(len(text["input_ids"]), dtype=np.int64))
        return np.pad(array, (0, length - len(array)))

    return {name: np.stack([widened(text, name) for text in texts]) for name in names}


class PolicyPredictor:
    """Answers batches of columns; each worker makes one, which loads the network once.

    For `dataset.map_batches(PolicyPredictor, fn_constructor_args=(model,), ...)` of
    `ray.data`; `predict_dataset` does this in one call. It needs no cluster itself.

    Args:
        model: Folders of the network and the policy, which every machine has.
        column: Name of the column with the inputs; by default `image` if the network takes images,
            and `inputs` otherwise. Texts are always in `input_ids`, `attention_mask` and
            `token_type_ids`.
        keep_inputs: Whether the result also has the columns with the inputs.
        device: Where each worker runs, see `Runner`; Ray gives a worker the GPUs that it was
            started with (`num_gpus`).
        precision: `float32`, `bfloat16`, `float16`, or `auto` for what the device is fastest in.

    Raises:
        FileFormatError, ConfigError, NetworkError, OriginError: As `Model.runner`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import offramp, torch
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
        column: str | None = None,
        keep_inputs: bool = True,
        device: str = "auto",
        precision: str = "float32",
    ) -> None:
        self._runner = model.runner(device, precision)
        self._reader = ColumnReader(self._runner.inputs, model.reading.image_reader, column)
        self._dropped = () if keep_inputs else self._reader.names

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
        kept = {name: column for name, column in batch.items() if name not in self._dropped}
        return kept | {name: np.asarray(column) for name, column in answers.items()}
