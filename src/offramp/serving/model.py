"""What is served: the folders of a network and its policy, or of an export."""

import hashlib
import json
import socket
import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from offramp.errors import ConfigError, FileFormatError, OriginWarning
from offramp.files import checksum, kind_of, near_path
from offramp.imports import missing_torch
from offramp.machine import (
    AutoPrecision,
    describe_device,
    find_device,
    keep_memory,
    to_precision,
)
from offramp.networks.inputs import Inputs
from offramp.onnx.manifest import Manifest
from offramp.onnx.runner import OnnxRunner
from offramp.run_folder import RunFolder
from offramp.runtime.engine import StagedRunner
from offramp.serving.images import Reading, takes_image_files


@dataclass(frozen=True)
class Asked:
    """Where a model's reading was found; a reload looks there again.

    Attributes:
        run: Folder of a run, of a saved network, or of an export.
        data: The data set, if the run does not know it.
        domain: Domain of the data set.
        class_names: Text file with one class name per line.
        tokenizer: Name or folder of a tokenizer.
    """

    run: Path
    data: str | None = None
    domain: str | None = None
    class_names: Path | None = None
    tokenizer: str | None = None

    def reading(self, run: Path, inputs: Inputs) -> Reading:
        """How samples are read and classes named; `run` is the folder itself or a copy of it."""
        is_export = kind_of(run) == "export"
        found = Reading.of_export(run) if is_export else Reading()
        if not is_export or self.data is not None:
            found = found.updated(Reading.of_run(inputs, self.run, self.data, self.domain))
        if takes_image_files(inputs):
            found = replace(found, image_reader=found.reader_for(inputs, self.run))
        names = None if self.class_names is None else _read_names(self.class_names)
        return found.updated(Reading(class_names=names, tokenizer=self.tokenizer))


@dataclass(frozen=True)
class Model:
    """What a worker loads: folders rather than objects, so it can be sent to other processes.

    Attributes:
        network: Folder of a network that a registered builder can make, or of an export.
        policy: Folder of its policy; None for an export, which has one.
        budget: Budget of the operating point; None for the policy's own.
        reading: How samples are read, and how classes are named.
        hold_budget: See `Runner`.
        false_alarm_rate: See `Runner`.
        asked: Where the reading was found; None if it was given.
    """

    network: Path
    policy: Path | None = None
    budget: float | None = None
    reading: Reading = field(default_factory=Reading)
    hold_budget: bool | int = False
    false_alarm_rate: float = 0.01
    asked: Asked | None = None

    @classmethod
    def of_run(
        cls,
        network: str | Path,
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
            network: Folder of a run, of a saved network, or of an export.
            policy: Folder of its policy; an export has its own.
            budget: Budget of the operating point; None for the policy's own.
            data: The data set of the training, if the run does not know it.
            domain: Domain of the data set.
            class_names: Text file with one class name per line, in place of the data set's.
            tokenizer: Name or folder of a tokenizer, in place of the run's.

        Raises:
            FileFormatError: A folder is missing, foreign or damaged.
            ConfigError: The class names cannot be read, or a policy is missing or one too many.
            MissingExtraError: torch is not installed, which networks need.

        Warns:
            OriginWarning: The data set is unknown; ImageNet's normalisation is used for images.
        """
        run, is_export = _existing(Path(network)), kind_of(network) == "export"
        if is_export and policy is not None:
            raise ConfigError(
                f"{run} is an export, which has its policy: leave {policy} out, or export "
                "again with it"
            )
        if not is_export and policy is None:
            raise ConfigError(
                f"{run} is no export, which would have a policy: give the folder of a policy, too"
            )
        place = run if is_export else _existing(RunFolder(run).network)
        names = None if class_names is None else Path(class_names)
        asked = Asked(run, data, domain, names, tokenizer)
        chosen = None if policy is None else Path(policy)
        reading = asked.reading(run, _inputs(place))
        return cls(place, chosen, budget, reading, asked=asked)

    def read_again(self, copy: Path | None = None) -> "Model":
        """The same with the reading that is found now; with that of a copy of an export."""
        if self.asked is None:
            return self
        place = copy or self.network
        run = place if self.policy is None else self.asked.run
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OriginWarning)  # it was said at the start
            return replace(self, reading=self.asked.reading(run, _inputs(place)))

    def content(self) -> str:
        """A hash of all files in the folders, and of how samples are read and classes named.

        Raises:
            FileFormatError: A folder or a file cannot be read.
        """
        digest = hashlib.sha256(json.dumps(asdict(self.reading)).encode())
        words = Path(self.reading.tokenizer or "")
        own = [self.network, self.policy, words if self.reading.tokenizer else None]
        try:
            for folder in own:
                if folder is None or not folder.is_dir():
                    continue
                for path in sorted(folder.rglob("*")):
                    if path.is_file() and not path.name.startswith("."):
                        name = path.relative_to(folder).as_posix()
                        digest.update(f"{name} {checksum(path)}\n".encode())
        except OSError as error:
            raise FileFormatError(f"{self.network} cannot be read: {error}") from None
        return digest.hexdigest()

    @missing_torch()
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
            MissingExtraError: torch or ONNX Runtime is not installed.
        """
        self.check_place(device, precision)
        watched: dict[str, Any] = {
            "hold_budget": self.hold_budget,
            "false_alarm_rate": self.false_alarm_rate,
        }
        runner: StagedRunner
        if self.policy is None:
            runner = OnnxRunner(_existing(self.network), threads, **watched)
            if self.budget is not None:
                runner.set_budget(self.budget)
        else:
            import torch

            from offramp.networks.network import EarlyExitNetwork
            from offramp.policy import Policy
            from offramp.runtime.runner import Runner

            if threads is not None:
                torch.set_num_threads(threads)
            policy = Policy.load(_existing(self.policy))
            policy = policy if self.budget is None else policy.at(budget=self.budget)
            network = EarlyExitNetwork.load(_existing(self.network))
            keep_memory()
            chosen = cast(AutoPrecision, precision)
            runner = Runner(network, policy, device=device, precision=chosen, **watched)
        names = self.reading.class_names
        if names is not None and len(names) != runner.num_classes:
            raise ConfigError(
                f"there must be a name for each of the {runner.num_classes} classes, got "
                f"{len(names)}"
            )
        return runner

    def check_place(self, device: str, precision: str) -> str:
        """Where this will run, in words; raises `ConfigError` where it cannot."""
        if self.policy is not None:
            place = find_device(device)
            return f"{describe_device(place)}, {to_precision(precision, place)}"
        if device not in ("auto", "cpu") or precision not in ("auto", "float32"):
            raise ConfigError(
                f"an export runs on the CPU in float32, got {device}, {precision}: leave them out"
            )
        return "ONNX Runtime"


@missing_torch()
def _inputs(folder: Path) -> Inputs:
    """What the network of an export or of a folder takes; only the latter needs torch."""
    if kind_of(folder) == "export":
        return Manifest.read(folder).inputs
    from offramp.networks.network import EarlyExitNetwork

    return EarlyExitNetwork.load(folder).inputs


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
