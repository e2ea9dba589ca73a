"""What a server answers: a worker loads the model once and turns requests into answers."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offramp.errors import ConfigError, FileFormatError
from offramp.machine import find_device, to_precision
from offramp.networks.network import EarlyExitNetwork
from offramp.policy import Policy
from offramp.runtime.runner import Runner
from offramp.serving.images import ImageReader, images_of_run, takes_image_files
from offramp.serving.requests import Query


def network_folder(run: str | Path) -> Path:
    """The folder of the network: inside that of a run, or the given folder itself."""
    run = Path(run)
    return run / "network" if (run / "network").is_dir() else run


@dataclass(frozen=True)
class Model:
    """What a worker loads: folders rather than objects, so it can be sent to other processes.

    Attributes:
        network: Folder of a network that a registered builder can make.
        policy: Folder of its policy.
        budget: Budget of the operating point; None for the policy's own.
        class_names: `[K]`, or None.
        images: How image files and pixels are read; None if the network takes no square RGB
            images.
    """

    network: Path
    policy: Path
    budget: float | None = None
    class_names: tuple[str, ...] | None = None
    images: ImageReader | None = None

    @classmethod
    def of_run(
        cls,
        run: str | Path,
        policy: str | Path,
        budget: float | None = None,
        *,
        data: str | None = None,
        domain: str | None = None,
        class_names: str | Path | None = None,
    ) -> "Model":
        """The model of a run, which knows how its images are read and its classes are named.

        Args:
            run: Folder of a run or of a saved network.
            policy: Folder of its policy.
            budget: Budget of the operating point; None for the policy's own.
            data: The data set of the training, if the run does not know it.
            domain: Domain of the data set.
            class_names: Text file with one class name per line, in place of the data set's.

        Raises:
            FileFormatError: A folder is missing, foreign or damaged.
            ConfigError: The class names cannot be read.

        Warns:
            OriginWarning: The data set is unknown; ImageNet's normalisation is used for images.
        """
        model = cls(network_folder(run), Path(policy), budget)
        inputs = model._load_network().inputs
        images, names = None, None
        if takes_image_files(inputs):
            images, names = images_of_run(inputs, run, data, domain)
        if class_names is not None:
            names = _read_names(Path(class_names))
        return cls(model.network, model.policy, budget, names, images)

    def runner(self, device: str = "auto", precision: str = "float32") -> Runner:
        """Load the network and the policy, and check that they belong together.

        Args:
            device: Where to run, see `Runner`.
            precision: In which precision.

        Raises:
            FileFormatError: A folder is not on this machine, or is foreign or damaged.
            ConfigError, NetworkError, OriginError, BudgetError: They do not belong together.
        """
        network, policy = self._load_network(), Policy.load(_existing(self.policy))
        policy = policy if self.budget is None else policy.at(budget=self.budget)
        names = self.class_names
        if names is not None and len(names) != network.num_classes:
            raise ConfigError(
                f"there must be a name for each of the {network.num_classes} classes, got "
                f"{len(names)}"
            )
        place = find_device(device)
        return Runner(network, policy, device=place, precision=to_precision(precision, place))

    def _load_network(self) -> EarlyExitNetwork:
        return EarlyExitNetwork.load(_existing(self.network))


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise FileFormatError(
            f"there is no folder {folder} on {socket.gethostname()}; every machine that runs this "
            "model needs it at the same place"
        )
    return folder


def _read_names(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the class names cannot be read: {error}") from None


class Worker:
    """Answers batches of parsed requests with a model that is loaded once, here."""

    def __init__(self, model: Model, device: str = "auto", precision: str = "float32") -> None:
        self._model = model
        self._runner = model.runner(device, precision)

    def __call__(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Answer a batch: for each query its `id` and the fields of `RunOutput.records`."""
        output = self._runner(self._collated([query.arrays for query in queries]))
        records = output.records(self._model.class_names)
        pairs = zip(queries, records, strict=True)
        return [{"id": query.id, **record} for query, record in pairs]

    def _collated(self, samples: Sequence[dict[str, Any]]) -> Any:  # noqa: ANN401
        if "input_ids" in samples[0]:
            return padded(samples)
        return torch.stack([self._inputs(sample) for sample in samples])

    def _inputs(self, sample: Mapping[str, Any]) -> Tensor:
        if "pixels" not in sample:
            return torch.from_numpy(sample["inputs"])
        assert self._model.images is not None, "pixels are refused where images are not taken"
        return self._model.images.normalization(torch.from_numpy(sample["pixels"])[None])[0]


def padded(texts: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Texts of arrays `[length]` as one batch of tensors `[n, longest]`; padding is masked out."""
    length = max(len(text["input_ids"]) for text in texts)
    # Texts without segments lie entirely in the first one.
    names = {name for text in texts for name in text}

    def widened(text: dict[str, Any], name: str) -> Tensor:
        array = text.get(name, np.zeros(len(text["input_ids"]), dtype=np.int64))
        return torch.from_numpy(np.pad(array, (0, length - len(array))))

    return {name: torch.stack([widened(text, name) for text in texts]) for name in names}
