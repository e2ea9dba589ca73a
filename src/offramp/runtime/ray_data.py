"""Batch inference on a cluster: a policy at work on the batches of `ray.data`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from offramp.errors import ConfigError
from offramp.extras import require
from offramp.runtime.columns import Array, ColumnReader, Columns, answer_columns
from offramp.runtime.images import images_of_run
from offramp.runtime.model import Model, network_folder
from offramp.runtime.ray_paths import for_workers

__all__ = ["PolicyPredictor", "predict_dataset"]


class PolicyPredictor:
    """Answers batches of columns; a worker makes one, and with it loads the network once.

    For `dataset.map_batches(PolicyPredictor, fn_constructor_args=(model, reader), ...)`;
    `predict_dataset` does it in one call. It needs no cluster itself.

    Args:
        model: Folders of the network and the policy, on every machine.
        reader: Where the inputs are in a batch.
        precision: `float32` or `bfloat16`.

    Raises:
        FileFormatError, ConfigError, NetworkError, OriginError: As `Model.runner`.

    Example:
        >>> import tempfile, numpy as np, torch, offramp
        >>> from torch.utils.data import TensorDataset
        >>> network = offramp.build("convnet", num_classes=4, image_size=8)
        >>> data = TensorDataset(torch.rand(60, 3, 8, 8), torch.arange(60) % 4)
        >>> ledger = offramp.record(network, data, split="all", progress=False)
        >>> held_out, val, _ = ledger.partition()
        >>> policy = offramp.Policy.for_budget(offramp.MaxProbability(), held_out, val, budget=0.6)
        >>> folder = Path(tempfile.mkdtemp())
        >>> model = Model(network.save(folder / "network"), policy.save(folder / "policy"))
        >>> predict = PolicyPredictor(model, ColumnReader(network.inputs))
        >>> batch = {"image": np.zeros((2, 3, 8, 8), dtype=np.float32), "id": np.arange(2)}
        >>> list(predict(batch))[1:]
        ['id', 'prediction', 'confidence', 'likely_wrong', 'exit', 'cost', 'failed']
    """

    def __init__(self, model: Model, reader: ColumnReader, precision: str = "float32") -> None:
        self._reader = reader
        self._runner = model.runner(precision)

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Answer a batch.

        Args:
            batch: Columns `[n, ...]`.

        Returns:
            The columns, and `prediction` (int64, -1 if it failed), `confidence`, `likely_wrong`,
            `exit`, `cost` and `failed`, each `[n]` and as in `RunOutput`.

        Raises:
            DataError: The columns cannot be read, or one has the name of a new one.
            NetworkError: The inputs are not what the network takes.
        """
        output = self._runner(self._reader(batch))
        kept = {name: batch[name] for name in self._reader.kept(batch)}
        return {**kept, **answer_columns(output, self._reader.columns.prefix)}


def predict_dataset(
    dataset: Any,  # noqa: ANN401 - a ray.data.Dataset
    network: str | Path,
    policy: str | Path,
    *,
    budget: float | None = None,
    data: str | None = None,
    columns: Columns | None = None,
    workers: int | tuple[int, int] = 1,
    batch_size: int = 256,
    **options: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Answer a data set of Ray, with a network in each of several workers.

    Args:
        dataset: A `ray.data.Dataset`; see `ColumnReader` for what it may hold.
        network: Folder of a run or of a saved network, which every machine has at that place.
        policy: Folder of its policy, likewise.
        budget: Of the operating point; None for the policy's own.
        data: Data set of the training, whose normalisation is used. Default: the run's.
        columns: Which of them are read, and what becomes of them.
        workers: How many, or the least and the most between which Ray chooses.
        batch_size: Samples that a worker answers together.
        options: Of Ray's `map_batches`, such as `num_cpus` for each worker.

    Returns:
        A `ray.data.Dataset` with the columns that `PolicyPredictor` adds; as all of them, it is
        computed when it is read.

    Raises:
        FileFormatError, ConfigError, NetworkError, OriginError: The parts do not fit.
        DataError: Columns are missing or have names of new ones. Where Ray does not know their
            names yet, a worker says so later.
        MissingExtraError: The extra `ray` is not installed.
    """
    ray_data = require("ray.data", extra="ray")
    _check_amounts(workers, batch_size)
    model = Model(for_workers(network_folder(network)), for_workers(policy), budget)
    inputs = model.runner().network.inputs  # mistakes show here, before a cluster works
    reader = ColumnReader(inputs, columns=columns or Columns())
    known = dataset.columns(fetch_if_missing=False)
    if known is not None:
        reader.check(known)
    images, _ = images_of_run(inputs, Path(network), data)
    size = {"size": workers}
    if isinstance(workers, tuple):
        size = {"min_size": workers[0], "max_size": workers[1]}
    return dataset.map_batches(
        PolicyPredictor,
        fn_constructor_args=(model, replace(reader, images=images)),
        compute=ray_data.ActorPoolStrategy(**size),
        batch_size=batch_size,
        batch_format="numpy",
        **options,
    )


def _check_amounts(workers: int | tuple[int, int], batch_size: int) -> None:
    least, most = workers if isinstance(workers, tuple) else (workers, workers)
    if not 1 <= least <= most:
        raise ConfigError(f"`workers` must be at least 1, or (least, most), got {workers}")
    if batch_size < 1:
        raise ConfigError(f"`batch_size` must be at least 1, got {batch_size}")
