"""`train`: from a network and data to a trained network, resumable at any moment."""

import hashlib
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from offramp.errors import FileFormatError, SplitError, WeakExitWarning
from offramp.files import sweep
from offramp.machine import describe_device, device_for, device_of, to_precision
from offramp.networks.network import EarlyExitNetwork
from offramp.progress import Progress, showing
from offramp.training.batches import Samples
from offramp.training.checkpoint import (
    Place,
    RunFiles,
    TrainHistory,
    fill,
    kept_randomness,
)
from offramp.training.config import TrainConfig, default_learning_rate
from offramp.training.frozen import only_heads, training_only
from offramp.training.loop import AugmentFunction, PhaseRun, Run
from offramp.training.objectives import LossFunction, Objective, Phase, find_objective
from offramp.training.processes import Processes
from offramp.training.teacher import Teacher
from offramp.training.weak_exits import weak_exits


def train(  # noqa: PLR0913 - all but the first four by name
    network: EarlyExitNetwork,
    data: Any,  # noqa: ANN401 - any data set or loader, checked
    objective: str | Objective | LossFunction = "joint",
    config: TrainConfig | None = None,
    *,
    augment: AugmentFunction | None = None,
    folder: str | Path | None = None,
    freeze_backbone: bool = False,
    allow_split: str | None = None,
    teacher: Teacher | None = None,
    progress: bool | Progress = True,
) -> TrainHistory:
    """Train a network in place.

    With a `folder`, checkpoints are written there, and the same call resumes an interrupted run,
    to bitwise the same weights on the same machine. Under `torchrun` or `accelerate launch`, the
    processes share the work.

    Args:
        network: Trained in place, on the device that `config` says; it stays there.
        data: A data set of `(inputs, label)`, inputs a tensor or a dict of tensors; or a
            `DataLoader` of one. Early stopping holds a slice of it back, and needs nothing else.
        objective: `joint`, `gradient-equilibrium`, `distillation`, `zero-time-waste`, an
            `Objective` with settings, or your own function of `(logits, targets)`.
        config: How to train.
        augment: A function of `(inputs [n, ...], labels [n], num_classes, generator)` that returns
            inputs and targets `[n, K]` (or `[n]`). With a teacher, it gets targets `[n, K]`. It is
            applied to training batches only, on the device that is trained on; the generator is
            on the CPU.
        folder: Where the checkpoint, `history.jsonl`, `train.json` and TensorBoard's files go.
        freeze_backbone: Train the heads only, with the backbone in eval mode. The backbone's own
            classifier, as the last exit, is frozen too. Without augmentation, the features that
            the heads read are computed once (if they take no more than 2 GB). An exit that ends
            far below a linear regression on its features is named in a `WeakExitWarning`.
        allow_split: Name of the data's split, to train on another one than `train`.
        teacher: A stronger network, whose answers become part of the targets. Early stopping
            goes by the labels all the same.
        progress: Whether progress is shown, on stderr; or an `offramp.progress.Progress`.

    Returns:
        The metrics of each epoch.

    Raises:
        ConfigError: Settings, data and network do not go together; or the folder holds a run with
            other settings.
        SplitError: The data say that they are not for training.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> from offramp.networks import build
        >>> network = build("convnet", num_classes=2, image_size=8)
        >>> images = torch.rand(40, 3, 8, 8)
        >>> data = TensorDataset(images, (images[:, 0].mean((1, 2)) > 0.5).long())
        >>> history = train(network, data, config=TrainConfig(epochs=2), progress=False)
        >>> [len(record["accuracy"]) for record in history]
        [4, 4]
    """
    config = config or TrainConfig()
    samples = Samples(data, config.workers)
    _check_split(samples.known("split"), allow_split)
    chosen = find_objective(objective)
    phases = only_heads(network, chosen) if freeze_backbone else chosen.phases(network)
    processes = Processes.here(device_for(network, config.device))
    precision = to_precision(config.precision, processes.device)
    rate = config.learning_rate
    if rate is None:
        rate = default_learning_rate(network, config, freeze_backbone)
    config = replace(config, precision=precision, learning_rate=rate)
    command = _command(network, samples, chosen, config)
    command |= {"augment": _name(augment), "freeze_backbone": freeze_backbone}
    command["processes"] = processes.world
    if teacher is not None:
        teacher.check(len(samples), network.num_classes)
        command["teacher"] = teacher.describe()
    where = None if folder is None else Path(folder)
    with (
        kept_randomness(),
        showing(processes.is_main and progress) as shown,
    ):
        moves = "" if device_of(network) == processes.device else "; the network is moved there"
        shown.say(f"training on {describe_device(processes.device)}, {precision}{moves}")
        if getattr(network.inputs, "assumed", False):
            network.settle(samples.example()[0])
        network.to(processes.device)
        if config.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        files = RunFiles(where, command, processes.is_main, config.tensorboard)
        run = Run(network, samples, config, processes, files, shown)
        run.augment, run.teacher = augment, teacher
        try:
            _run_phases(run, phases)
            if freeze_backbone:
                _warn_of_weak_exits(run)
        finally:
            samples.close()
            files.close()
    return run.history


def _run_phases(run: Run, phases: tuple[Phase, ...]) -> None:
    run.processes.wait()
    saved = run.files.load()
    run.processes.wait()
    if run.files.written is not None:
        sweep(run.files.written.path)
    place, tensors = Place(), None
    if saved is not None:
        place, run.history, tensors = saved
        run.history.resumed = True
        if not 0 <= place.phase < len(phases):
            raise FileFormatError(
                f"the checkpoint is of phase {place.phase}, and the objective has {len(phases)}"
            )
        fill(run.network, tensors, "network.")
        if not place.finished:
            phases[place.phase].objective.load_state(run.history.objective)
            run.progress.say(f"resuming {phases[place.phase].name}, epoch {place.epoch + 1}")
    else:
        run.files.begin(
            {
                "device": describe_device(run.processes.device),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
            }
        )
    while not place.finished:
        phase = phases[place.phase]
        with training_only(run.network, phase.trains):
            current = PhaseRun(run, phase, place, tensors)
            run.history.stopped[phase.name] = current.train()
        if place.phase == len(phases) - 1:
            place = Place(phase=place.phase, finished=True)
        else:
            place = Place(phase=place.phase + 1)
        tensors = None  # the next phase begins with a new optimiser
        run.save(place, phases[place.phase].objective, {})
        run.processes.wait()


def _warn_of_weak_exits(run: Run) -> None:
    found = weak_exits(run.network, run.samples, run.processes, run.config.batch_size)
    if found and run.processes.is_main:
        warnings.warn("; ".join(found), WeakExitWarning, stacklevel=3)


def _check_split(split: str | None, allow_split: str | None) -> None:
    if split not in (None, "train", allow_split):
        raise SplitError(
            f"training needs the split 'train', and the data are {split!r}; to train on them all "
            f"the same, say allow_split={split!r}"
        )


def _command(
    network: EarlyExitNetwork, samples: Samples, objective: Objective, config: TrainConfig
) -> dict[str, Any]:
    """What a run's result depends on, as far as JSON can describe it."""
    shapes = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    ids = samples.known("sample_ids")
    command = {
        **config.decisive(),
        "objective": objective.describe(),
        "samples": len(samples),
        "sample_ids": None if ids is None else _digest([str(each) for each in ids]),
        "network": _digest(shapes),
    }
    return dict(json.loads(json.dumps(command)))


def _digest(value: object) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


def _name(augment: AugmentFunction | None) -> str | None:
    if augment is None:
        return None
    text = repr(augment)
    # The default `repr` has an address, which differs from process to process.
    plain = getattr(augment, "__qualname__", type(augment).__qualname__)
    return str(plain) if " at 0x" in text else text
