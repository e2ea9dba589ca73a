"""What is served: the folders of a network and its policy, or of an export."""

import socket
from dataclasses import dataclass, replace
from pathlib import Path

from offramp.data.source import Source
from offramp.errors import ConfigError, FileFormatError
from offramp.files import kind_of, near_path
from offramp.networks.inputs import Inputs, TextInput
from offramp.onnx.manifest import Manifest
from offramp.onnx.runner import OnnxRunner
from offramp.run_folder import RunFolder
from offramp.runtime.engine import StagedRunner
from offramp.serving.images import ImageReader, Reading, images_of_run, takes_image_files


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
        false_alarm_rate: See `Runner`.
    """

    network: Path
    policy: Path | None = None
    budget: float | None = None
    class_names: tuple[str, ...] | None = None
    images: ImageReader | None = None
    tokenizer: str | None = None
    hold_budget: bool | int = False
    false_alarm_rate: float = 0.01

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

        Warns:
            OriginWarning: The data set is unknown; ImageNet's normalisation is used for images.
        """
        run = _existing(Path(network))
        if kind_of(run) == "export":
            model = cls._of_export(run, policy, budget)
        elif policy is None:
            raise ConfigError(
                f"{run} is no export, which would have a policy: give the folder of a policy, too"
            )
        else:
            model = cls(RunFolder(run).network, Path(policy), budget)
        inputs = model._inputs()
        if takes_image_files(inputs) and (model.images is None or data is not None):
            images, names = images_of_run(inputs, run, data, domain)
            model = replace(model, images=images, class_names=names or model.class_names)
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
        read = Reading.of_export(folder)
        return cls(
            folder,
            budget=budget,
            class_names=read.class_names,
            images=read.image_reader,
            tokenizer=read.tokenizer,
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
            runner = OnnxRunner(
                _existing(self.network),
                threads,
                hold_budget=self.hold_budget,
                false_alarm_rate=self.false_alarm_rate,
            )
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
            false_alarm_rate=self.false_alarm_rate,
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
