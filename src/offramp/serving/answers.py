"""What a server answers: a worker loads the model once and turns requests into answers."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from offramp.data.source import Source
from offramp.errors import ConfigError, FileFormatError
from offramp.hints import near_path
from offramp.networks.inputs import Inputs, TextInput
from offramp.onnx.graphs import Array
from offramp.onnx.manifest import Manifest
from offramp.onnx.runner import OnnxRunner
from offramp.runtime.engine import StagedRunner
from offramp.serving.images import ImageReader, images_of_run, takes_image_files
from offramp.serving.requests import Query
from offramp.storage import kind_of


def network_folder(run: str | Path) -> Path:
    """The folder of the network: inside that of a run, or the given folder itself."""
    run = Path(run)
    return run / "network" if (run / "network").is_dir() else run


@dataclass(frozen=True)
class Model:
    """What a worker loads: folders rather than objects, so it can be sent to other processes.

    Attributes:
        network: Folder of a network that a registered builder can make, or of an export.
        policy: Folder of its policy; None for an export, which has one.
        budget: Budget of the operating point; None for the policy's own.
        class_names: `[K]`, or None.
        images: How image files and pixels are read; None if the network takes no square RGB
            images.
        tokenizer: Name or folder of the tokenizer for texts; None if only tokens are taken.
        hold_budget: See `Runner`.
    """

    network: Path
    policy: Path | None = None
    budget: float | None = None
    class_names: tuple[str, ...] | None = None
    images: ImageReader | None = None
    tokenizer: str | None = None
    hold_budget: bool | int = False

    @classmethod
    def of_run(
        cls,
        run: str | Path,
        policy: str | Path | None = None,
        budget: float | None = None,
        *,
        data: str | None = None,
        domain: str | None = None,
        class_names: str | Path | None = None,
        tokenizer: str | None = None,
    ) -> "Model":
        """The model of a run, which knows how its images are read and its classes are named.

        Args:
            run: Folder of a run, of a saved network, or of an export.
            policy: Folder of its policy; an export has its own.
            budget: Budget of the operating point; None for the policy's own.
            data: The data set of the training, if the run does not know it.
            domain: Domain of the data set.
            class_names: Text file with one class name per line, in place of the data set's.
            tokenizer: Name or folder of a tokenizer, in place of the run's.

        Raises:
            FileFormatError: A folder is missing, foreign or damaged.
            ConfigError: The class names cannot be read, or a policy is missing or one too many.

        Warns:
            OriginWarning: The data set is unknown; ImageNet's normalisation is used for images.
        """
        run = _existing(Path(run))
        if kind_of(run) == "export":
            model = cls._of_export(run, policy, budget)
        elif policy is None:
            raise ConfigError(
                f"{run} is no export, which would have a policy: give the folder of a policy, too"
            )
        else:
            model = cls(network_folder(run), Path(policy), budget)
        inputs = model._inputs()
        if takes_image_files(inputs) and (model.images is None or data is not None):
            images, names = images_of_run(inputs, run, data, domain)
            model = replace(model, images=images, class_names=names)
        if isinstance(inputs, TextInput):
            source = Source.find(run)
            known = model.tokenizer or (None if source is None else source.tokenizer)
            model = replace(model, tokenizer=tokenizer or known)
        if class_names is not None:
            model = replace(model, class_names=_read_names(Path(class_names)))
        return model

    @classmethod
    def _of_export(cls, folder: Path, policy: str | Path | None, budget: float | None) -> "Model":
        if policy is not None:
            raise ConfigError(
                f"{folder} is an export, which has its policy: leave {policy} out, or export "
                "again with it"
            )
        notes = Manifest.read(folder).notes
        names, images = notes.get("class_names"), notes.get("images")
        tokenizer = notes.get("tokenizer")
        return cls(
            folder,
            budget=budget,
            class_names=tuple(map(str, names)) if isinstance(names, list) else None,
            images=ImageReader.from_notes(images) if isinstance(images, dict) else None,
            tokenizer=tokenizer if isinstance(tokenizer, str) else None,
        )

    def runner(
        self, device: str = "auto", precision: str = "float32", threads: int | None = None
    ) -> StagedRunner:
        """Load the network and the policy, and check that they belong together.

        Only networks need torch; an export is loaded without it.

        Args:
            device: Where to run, see `Runner`; exports run on the CPU.
            precision: In which precision; exports run in float32.
            threads: Of torch, in the whole process, or of ONNX Runtime.

        Raises:
            FileFormatError: A folder is not on this machine, or is foreign or damaged.
            ConfigError, NetworkError, OriginError, BudgetError: They do not belong together.
        """
        self.check_place(device, precision)
        runner: StagedRunner
        if self.policy is None:
            runner = OnnxRunner(_existing(self.network), threads, hold_budget=self.hold_budget)
            if self.budget is not None:
                runner.set_budget(self.budget)
        else:
            runner = self._torch_runner(self.policy, device, precision, threads)
        names = self.class_names
        if names is not None and len(names) != runner.num_classes:
            raise ConfigError(
                f"there must be a name for each of the {runner.num_classes} classes, got "
                f"{len(names)}"
            )
        return runner

    def check_place(self, device: str, precision: str) -> str:
        """Where this will run, in words; raises `ConfigError` where it cannot."""
        if self.policy is None:
            if device not in ("auto", "cpu") or precision not in ("auto", "float32"):
                raise ConfigError(
                    f"an export runs on the CPU in float32, got {device}, {precision}: leave them "
                    "out"
                )
            return "ONNX Runtime"
        from offramp.machine import describe_device, find_device, to_precision  # needs torch

        place = find_device(device)
        return f"{describe_device(place)}, {to_precision(precision, place)}"

    def _torch_runner(
        self, policy: Path, device: str, precision: str, threads: int | None
    ) -> StagedRunner:
        import torch

        from offramp.machine import find_device, keep_memory, to_precision
        from offramp.networks.network import EarlyExitNetwork
        from offramp.policy import Policy
        from offramp.runtime.runner import Runner

        if threads is not None:
            torch.set_num_threads(threads)
        found = Policy.load(_existing(policy))
        keep_memory()
        place = find_device(device)
        return Runner(
            EarlyExitNetwork.load(_existing(self.network)),
            found if self.budget is None else found.at(budget=self.budget),
            device=place,
            precision=to_precision(precision, place),
            hold_budget=self.hold_budget,
        )

    def _inputs(self) -> Inputs:
        if self.policy is None:
            return Manifest.read(_existing(self.network)).inputs
        from offramp.networks.network import EarlyExitNetwork  # needs torch

        return EarlyExitNetwork.load(_existing(self.network)).inputs


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise FileFormatError(
            f"there is no folder {folder} on {socket.gethostname()}{near_path(folder)}; every "
            "machine that runs this model needs it at the same place"
        )
    return folder


def _read_names(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the class names cannot be read: {error}") from None


class Worker:
    """Answers batches of parsed requests with a model that is loaded once, here, or a runner."""

    def __init__(
        self,
        model: Model | StagedRunner,
        device: str = "auto",
        precision: str = "float32",
        threads: int | None = None,
        *,
        class_names: Sequence[str] | None = None,
        images: ImageReader | None = None,
    ) -> None:
        self.runner: StagedRunner
        if isinstance(model, Model):
            self.runner = model.runner(device, precision, threads)
            self._class_names, self.images = model.class_names, model.images
        else:
            self.runner = model
            names = None if class_names is None else tuple(class_names)
            self._class_names, self.images = names, images

    @property
    def policy(self) -> str:
        """The fingerprint of the policy."""
        return str(self.runner.about["policy"])

    def __call__(self, queries: Sequence[Query], point: int | None = None) -> list[dict[str, Any]]:
        """Answer a batch: for each query its `id` and the fields of `RunOutput.records`.

        With a `point`, at the operating point with this number, and the runner counts nothing.
        """
        batch = self._collated([query.arrays for query in queries])
        output = self.runner(batch) if point is None else self.runner.run_at(point, batch)
        records = output.records(self._class_names)
        pairs = zip(queries, records, strict=True)
        return [{"id": query.id, **record} for query, record in pairs]

    def _collated(self, samples: Sequence[dict[str, Any]]) -> Any:  # noqa: ANN401
        if "input_ids" in samples[0]:
            return padded(samples)
        return np.stack([self._inputs(sample) for sample in samples])

    def _inputs(self, sample: Mapping[str, Any]) -> Array:
        found: Array
        if "pixels" in sample:
            assert self.images is not None, "pixels are refused where images are not taken"
            found = self.images.normalization(sample["pixels"])
        else:
            found = sample["inputs"]
        return found


def padded(texts: Sequence[dict[str, Any]]) -> dict[str, Array]:
    """Texts of arrays `[length]` as one batch of arrays `[n, longest]`; padding is masked out."""
    length = max(len(text["input_ids"]) for text in texts)
    # Texts without segments lie entirely in the first one.
    names = {name for text in texts for name in text}

    def widened(text: dict[str, Any], name: str) -> Array:
        array = text.get(name, np.zeros(len(text["input_ids"]), dtype=np.int64))
        return np.pad(array, (0, length - len(array)))

    return {name: np.stack([widened(text, name) for text in texts]) for name in names}
