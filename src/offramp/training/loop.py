"""The loop: one phase of training, epoch by epoch."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from offramp.errors import ConfigError
from offramp.machine import describe_device, to_precision
from offramp.networks.network import EarlyExitNetwork
from offramp.progress import Progress
from offramp.training.batches import (
    check_targets,
    grouped_by_length,
    moved,
    resized,
    sent,
    smoothed,
)
from offramp.training.checkpoint import (
    Checkpoints,
    Place,
    fill,
    generator_at,
    optimizer_tensors,
    restore_optimizer,
    restore_scaler,
    scaler_tensors,
    seed_at,
    seed_everything,
    weights,
)
from offramp.training.config import TrainConfig
from offramp.training.frozen import cache_features, can_split, training_mode
from offramp.training.history import HistoryWriter, TrainHistory
from offramp.training.objectives import Objective, Phase, exit_losses
from offramp.training.optimizer import WeightAverage, make_optimizer
from offramp.training.precision import training_autocast
from offramp.training.processes import Processes
from offramp.training.samples import Batch, Samples
from offramp.training.teacher import Teacher

AugmentFunction: TypeAlias = Callable[[Any, Tensor, int, torch.Generator], tuple[Any, Tensor]]


@dataclass
class Run:
    """What all phases of a run share."""

    network: EarlyExitNetwork
    samples: Samples
    config: TrainConfig
    processes: Processes
    checkpoints: Checkpoints
    writer: HistoryWriter
    progress: Progress
    augment: AugmentFunction | None = None
    teacher: Teacher | None = None
    history: TrainHistory = field(default_factory=TrainHistory)
    saved_at: float = field(default_factory=time.monotonic)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision in which the network runs."""
        device = self.processes.device
        return training_autocast(device, to_precision(self.config.precision, device))

    def slices(self) -> tuple[Tensor, Tensor]:
        """Positions of the samples to train on, and of those that decide on stopping.

        Raises:
            ConfigError: There are too few samples for both.
        """
        order = torch.randperm(
            len(self.samples), generator=generator_at(self.config.seed, "slice")
        )
        if self.config.patience is None:
            return order, order[:0]
        kept = max(1, round(len(order) * self.config.stopping_share))
        if kept >= len(order):
            raise ConfigError(
                f"{len(order)} samples are too few to hold some back for early stopping; say "
                "patience=None"
            )
        return order[kept:], order[:kept].sort().values

    def save(self, place: Place, objective: Objective, tensors: dict[str, Tensor]) -> None:
        """Write a checkpoint with the weights, and whatever else the phase needs to go on."""
        history = {
            "records": self.history.records,
            "stopped": self.history.stopped,
            "objective": objective.state(),
        }
        self.checkpoints.save(place, history, {**weights(self.network, "network."), **tensors})
        self.saved_at = time.monotonic()


class _Pass(nn.Module):
    """The forward pass of an objective as a module, to average gradients over processes."""

    def __init__(self, network: EarlyExitNetwork, objective: Objective) -> None:
        super().__init__()
        self.network = network
        self.objective = objective

    def forward(self, inputs: Any) -> Tensor:  # noqa: ANN401
        return self.objective.logits(self.network, inputs)


class PhaseRun:
    """One phase of a run, from its beginning or from a checkpoint.

    Args:
        run: What the phases share.
        phase: What is trained, and with which objective.
        place: Where to begin.
        tensors: The optimiser's, the averaged and the best weights and the scale of the losses, if
            the phase was begun before.
    """

    def __init__(
        self, run: Run, phase: Phase, place: Place, tensors: dict[str, Tensor] | None = None
    ) -> None:
        self.run, self.phase, self.place = run, phase, place
        self.network, self.config, self.processes = run.network, run.config, run.processes
        self.train_index, self.stop_index = run.slices()
        self.samples = run.samples
        self.module: nn.Module = _Pass(run.network, phase.objective)
        changing = run.augment is not None or run.config.image_sizes
        if not changing and can_split(run.network, phase):
            self._use_features()
        self.wrapped = self.processes.wrap(self.module)
        self.schedule = self.config.schedule
        assert self.config.learning_rate is not None, "`train` chooses one"
        self.highest_rate = self.config.learning_rate
        self.names = {id(p): name for name, p in self.network.named_parameters()}
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(self.network, self.config)
        self.average: WeightAverage | None = None
        if self.config.averaging:
            self.average = WeightAverage(self.network, self.config.averaging, tensors)
        # Small gradients would be zero in float16; the scaler finds a factor that prevents it.
        is_scaled = self.config.precision == "float16"
        self.scaler = torch.amp.GradScaler(self.processes.device.type, enabled=is_scaled)
        self.uncounted: tuple[int, Tensor] | None = None  # of the last step, see `_count`
        self.best: dict[str, Tensor] = {}
        if tensors:
            restore_optimizer(self.optimizer, self.names, tensors)
            restore_scaler(self.scaler, tensors)
            self.best = {k: v.clone() for k, v in tensors.items() if k.startswith("best.")}

    def train(self) -> str:
        """Train until the last epoch or until `patience` ends; returns which of the two."""
        steps = len(self._batches(0))
        total = self.config.epochs * steps
        done = self.place.epoch * steps + self.place.step
        self.run.progress.start(f"{self.phase.name}: starting", total, done)
        reason = "patience" if self._is_out_of_patience() else "epochs"
        while self.place.epoch < self.config.epochs and reason == "epochs":
            self._epoch()
            reason = "patience" if self._is_out_of_patience() else "epochs"
        if self.average is not None:
            self.average.put()
        self.processes.align(self.network)
        if self.best:
            fill(self.network, self.best, "best.")
        return reason

    def checkpoint(self, if_due: bool = True) -> None:
        """Write a checkpoint, if the last one is old enough or `if_due` is False."""
        due = time.monotonic() - self.run.saved_at >= self.config.checkpoint_seconds
        if not self.processes.is_main or (if_due and not due):
            return
        self._count()
        tensors = {
            **optimizer_tensors(self.optimizer, self.names),
            **scaler_tensors(self.scaler),
            **(self.average.tensors if self.average is not None else {}),
            **self.best,
        }
        self.run.save(self.place, self.phase.objective, tensors)

    def _epoch(self) -> None:
        place, started = self.place, time.monotonic() - self.place.seconds
        batches = self._batches(place.epoch)
        training_mode(self.network, self.phase.trains)
        # The sampler is set to the step: what was trained on before is not read again.
        left = batches[place.step :]
        for index, batch in zip(left, self._read("read", batches, place.step), strict=True):
            self._count()  # only now: the device has computed while this batch was read
            seed_everything(seed_at(*self._here("step"), self.processes.rank))
            if self.run.teacher is not None:
                batch = batch[0], self.run.teacher.targets(index, batch[1])
            self._step(batch, len(batches))
            place.step += 1
            place.seconds = time.monotonic() - started
            self.run.progress.advance()
            if self.processes.world == 1:  # others have sums of their own
                self.checkpoint()
        self._count()
        place.seconds = time.monotonic() - started
        self._end_epoch()
        place.epoch, place.step, place.sums, place.seconds = place.epoch + 1, 0, [], 0.0
        self.checkpoint()

    def _step(self, batch: Batch, steps: int) -> None:
        inputs, targets = batch
        check_targets(targets, self.network.num_classes)
        targets = targets.to(self.processes.device)
        inputs = resized(inputs, self.config.image_size(self.place.epoch))
        if self.run.augment is not None:
            generator = generator_at(*self._here("augment"), self.processes.rank)
            inputs, targets = self.run.augment(
                inputs, targets, self.network.num_classes, generator
            )
            check_targets(targets, self.network.num_classes)
        targets = smoothed(targets, self.network.num_classes, self.config.label_smoothing)
        done = self.place.epoch * steps + self.place.step + 1
        rate = self.highest_rate * self.schedule.factor(done / steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["times"]
        logits = self._forward(inputs)
        targets = targets.to(logits.device)  # what an augmentation returned may be elsewhere
        loss = self.phase.objective(logits, targets)
        self._update(loss)
        if self.average is not None:
            self.average.update(done)
        loss = loss.detach()
        correct = _num_correct(logits.detach(), targets).to(loss.dtype)
        self.uncounted = len(targets), torch.cat([loss.view(1), correct])

    def _update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        if self.config.clip_norm is not None:
            clip_grad_norm_(self.parameters, self.config.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _forward(self, inputs: Any) -> Tensor:  # noqa: ANN401
        inputs = moved(inputs, self.processes.device, self.config.channels_last)
        with self.run.autocast():
            logits: Tensor = self.wrapped(inputs)
        return logits.float()

    def _count(self) -> None:
        """Add the loss and the correct answers of the last step to the sums of the epoch.

        This waits for the device, so it is done as late as possible.
        """
        if self.uncounted is None:
            return
        samples, (loss, *correct) = self.uncounted[0], self.uncounted[1].tolist()
        self.uncounted = None
        if not isfinite(loss):
            raise ConfigError(
                f"the loss became {loss} in epoch {self.place.epoch} of the phase "
                f"{self.phase.name!r}: lower `learning_rate` or `clip_norm`, or look for NaN "
                "inputs"
            )
        new = [samples, loss * samples, *correct]
        old = self.place.sums or [0.0] * len(new)
        self.place.sums = [a + b for a, b in zip(old, new, strict=True)]

    def _end_epoch(self) -> None:
        samples, loss, *correct = self._totals(self.place.sums)
        record: dict[str, Any] = {
            "phase": self.phase.name,
            "epoch": self.place.epoch,
            "loss": loss / samples,
            "learning_rate": self.highest_rate * self.schedule.factor(self.place.epoch + 1),
            "train_accuracy": [each / samples for each in correct],
            "seconds": round(self.place.seconds, 3),
            "device": describe_device(self.processes.device),
            "precision": self.config.precision,
        }
        if len(self.stop_index):
            with self.average.in_place() if self.average is not None else nullcontext():
                record.update(self._evaluate())
                self._keep_if_best(sum(record["accuracy"]) / len(record["accuracy"]))
        self.run.history.records.append(record)
        if self.processes.is_main:
            self.run.writer.epoch(self.run.history)
        self.run.progress.epoch(record, self.config.epochs)

    def _keep_if_best(self, score: float) -> None:
        if not self.place.best or score > self.place.best[0]:
            self.place.best = [score, self.place.epoch]
            self.best = {k: v.clone() for k, v in weights(self.network, "best.").items()}

    def _is_out_of_patience(self) -> bool:
        if self.config.patience is None or not self.place.best:
            return False
        restarts = self.schedule.restarts()
        if restarts and self.place.epoch not in restarts:
            return False  # accuracy falls after a restart, and recovers as the cycle ends
        return self.place.epoch - 1 - self.place.best[1] >= self.config.patience

    @torch.no_grad()
    def _evaluate(self) -> dict[str, Any]:
        """Accuracy and loss per exit on the stopping slice."""
        self.network.eval()
        self.processes.align(self.network)
        batches = list(self.stop_index.split(self.config.batch_size))
        mine = batches[self.processes.rank :: self.processes.world]
        sums: list[float] = []
        for inputs, targets in self._read("evaluate", mine):
            # Not through the wrapper: processes may have different numbers of batches here.
            with self.run.autocast():
                logits = self.module(
                    moved(inputs, self.processes.device, self.config.channels_last)
                )
            targets = targets.to(logits.device)
            losses = exit_losses(logits, targets) * len(targets)
            new = [*_num_correct(logits, targets).tolist(), *losses.tolist()]
            sums = [a + b for a, b in zip(sums or [0.0] * len(new), new, strict=True)]
        sums = self._totals(sums)
        exits, samples = len(sums) // 2, len(self.stop_index)
        shares = [each / samples for each in sums]
        return {"accuracy": shares[:exits], "exit_losses": shares[exits:]}

    def _totals(self, sums: list[float]) -> list[float]:
        """Sums over all processes; one without any batch has no numbers of its own."""
        if self.processes.world == 1:
            return sums
        mine = torch.tensor(sums, dtype=torch.float64, device=self.processes.device)
        totals: list[float] = torch.stack(self.processes.gather(mine)).sum(0).tolist()
        return totals

    def _batches(self, epoch: int) -> list[Tensor]:
        """This process's share of every batch of an epoch; a last, smaller batch is left out."""
        generator = generator_at(self.config.seed, "order", self.place.phase, epoch)
        order = self.train_index[torch.randperm(len(self.train_index), generator=generator)]
        world = self.processes.world
        size = min(self.config.batch_size, len(order) // world * world)
        if size % world or not size:
            raise ConfigError(
                f"`batch_size` must be a multiple of the {world} processes, and no larger than "
                f"the data, got {self.config.batch_size} for {len(order)} samples"
            )
        order = order[: len(order) // size * size]
        if self.samples.lengths is not None:
            order = grouped_by_length(order, self.samples.lengths, size, generator)
        return [each[self.processes.rank :: world] for each in order.split(size)]

    def _read(self, purpose: str, batches: list[Tensor], begin: int = 0) -> Iterator[Batch]:
        """Batches of this epoch from number `begin` on, on the device; each has its own seed."""
        place = (self.config.seed, purpose, self.place.phase, self.place.epoch)
        seeds = [seed_at(*place, step, self.processes.rank) for step in range(begin, len(batches))]
        return sent(self.samples.batches(batches[begin:], seeds), self.processes.device)

    def _here(self, purpose: str) -> tuple[int | str, ...]:
        place = self.place
        return (self.config.seed, purpose, place.phase, place.epoch, place.step)

    def _use_features(self) -> None:
        self.run.progress.start("features", total=len(self.samples))
        found = cache_features(
            self.network,
            self.phase,
            self.samples,
            self.config,
            self.processes,
            self.run.autocast,
            self.run.progress.advance,
        )
        if found is None:
            self.run.progress.say("the features are too large to cache: the backbone runs again")
            return
        self.module, self.samples = found[0], Samples(found[1])


def _num_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """The number of correct answers at each of the M exits, int64 `[M]`."""
    labels = targets.argmax(1) if targets.ndim == 2 else targets
    return (logits.argmax(2) == labels.unsqueeze(1)).sum(0)
