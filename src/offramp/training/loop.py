"""The loop: one phase of training, epoch by epoch."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from offramp.data.augmentation import as_probabilities
from offramp.errors import ConfigError
from offramp.machine import describe_device
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import evaluating
from offramp.progress import Progress
from offramp.training.batches import (
    Batch,
    Samples,
    check_targets,
    compute_rows,
    grouped_by_length,
    moved,
    resized,
)
from offramp.training.checkpoint import (
    Place,
    RunFiles,
    TrainHistory,
    fill,
    generator_at,
    seed_at,
    seed_everything,
    weights,
)
from offramp.training.config import TrainConfig
from offramp.training.frozen import cache_features, can_split
from offramp.training.objectives import Objective, Phase, sample_losses
from offramp.training.processes import Processes
from offramp.training.step import Optimizer, training_autocast
from offramp.training.teacher import Teacher

AugmentFunction: TypeAlias = Callable[[Any, Tensor, int, torch.Generator], tuple[Any, Tensor]]


@dataclass
class Run:
    """What all phases of a run share."""

    network: EarlyExitNetwork
    samples: Samples
    config: TrainConfig
    processes: Processes
    files: RunFiles
    progress: Progress
    augment: AugmentFunction | None = None
    teacher: Teacher | None = None
    history: TrainHistory = field(default_factory=TrainHistory)
    saved_at: float = field(default_factory=time.monotonic)

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
        self.history.objective = objective.state()
        tensors = {**weights(self.network, "network."), **tensors}
        self.files.save(place, self.history, tensors)
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
        assert self.config.learning_rate is not None, "`train` chooses one"
        self.highest_rate = self.config.learning_rate
        self.optimizer = Optimizer(self.network, self.config, self.processes.device, tensors)
        self.uncounted: list[tuple[int, Tensor]] = []  # loss and right answers of steps
        self.best: dict[str, Tensor] = {}
        if tensors:
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
        if self.optimizer.average is not None:
            self.optimizer.average.put()
        self.processes.align(self.network)
        if self.best:
            fill(self.network, self.best, "best.")
        return reason

    def checkpoint(self) -> None:
        """Write a checkpoint, if the last one is old enough."""
        is_due = time.monotonic() - self.run.saved_at >= self.config.checkpoint_seconds
        if is_due and self.processes.is_main:
            self._count()
            tensors = {**self.optimizer.tensors, **self.best}
            self.run.save(self.place, self.phase.objective, tensors)

    def _epoch(self) -> None:
        place, started = self.place, time.monotonic() - self.place.seconds
        batches = self._batches(place.epoch)
        # Reading begins at the step: what was trained on before is not read again.
        left = batches[place.step :]
        steps = range(place.step, len(batches))
        seeds = [seed_at(*self._at("read", step), self.processes.rank) for step in steps]
        for index, batch in zip(left, self.samples.batches(left, seeds), strict=True):
            seed_everything(seed_at(*self._at("step", place.step), self.processes.rank))
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
        device = self.processes.device
        inputs, targets = moved(inputs, device), targets.to(device)
        inputs = resized(inputs, self.config.image_size(self.place.epoch))
        if self.run.augment is not None:
            generator = generator_at(*self._at("augment", self.place.step), self.processes.rank)
            inputs, targets = self.run.augment(
                inputs, targets, self.network.num_classes, generator
            )
            check_targets(targets, self.network.num_classes)
        targets = smoothed(targets, self.network.num_classes, self.config.label_smoothing)
        done = self.place.epoch * steps + self.place.step + 1
        try:
            logits = self._logits(self.wrapped, inputs)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ConfigError(
                "a batch norm cannot be trained on one sample: `batch_size` must be at least 2, "
                f"and there must be as many samples, got a batch of {len(targets)}"
            ) from error
        targets = targets.to(device)  # what an augmentation returned may be elsewhere
        loss = self.phase.objective(logits, targets)
        rate = self.highest_rate * self.config.rate_factor(done / steps)
        self.optimizer.step(loss, rate, number=done)
        loss = loss.detach()
        right = _are_right(logits.detach(), targets).sum(0).to(loss.dtype)
        self.uncounted.append((len(targets), torch.cat([loss.view(1), right])))

    def _logits(self, module: nn.Module, inputs: Any) -> Tensor:  # noqa: ANN401
        inputs = moved(inputs, self.processes.device, self.config.channels_last)
        with training_autocast(self.processes.device, self.config.precision):
            logits: Tensor = module(inputs)
        return logits.float()

    def _count(self) -> None:
        """Add the losses and the right answers of the last steps to the sums of the epoch.

        This waits for the device, so it is done where the sums are needed, and not at each step.
        """
        for samples, values in self.uncounted:
            loss, *right = values.tolist()
            if not isfinite(loss):
                raise ConfigError(
                    f"the loss became {loss} in epoch {self.place.epoch} of the phase "
                    f"{self.phase.name!r}: lower `learning_rate` or `clip_norm`, or look for NaN "
                    "inputs"
                )
            new = [samples, loss * samples, *right]
            old = self.place.sums or [0.0] * len(new)
            self.place.sums = [a + b for a, b in zip(old, new, strict=True)]
        self.uncounted.clear()

    def _end_epoch(self) -> None:
        samples, loss, *right = self._totals()
        record: dict[str, Any] = {
            "phase": self.phase.name,
            "epoch": self.place.epoch,
            "loss": loss / samples,
            "learning_rate": self.highest_rate * self.config.rate_factor(self.place.epoch + 1),
            "train_accuracy": [each / samples for each in right],
            "seconds": round(self.place.seconds, 3),
            "device": describe_device(self.processes.device),
            "precision": self.config.precision,
        }
        if len(self.stop_index):
            average = self.optimizer.average
            with average.in_place() if average is not None else nullcontext():
                record.update(self._evaluate())
                self._keep_if_best(sum(record["accuracy"]) / len(record["accuracy"]))
        self.run.history.records.append(record)
        self.run.files.epoch(self.run.history)
        self.run.progress.epoch(record, self.config.epochs)

    def _totals(self) -> list[float]:
        """The sums of the epoch over all processes."""
        if self.processes.world == 1:  # Apple's GPU, which is a single one, has no float64
            return self.place.sums
        mine = torch.tensor(self.place.sums, dtype=torch.float64, device=self.processes.device)
        totals: list[float] = torch.stack(self.processes.gather(mine)).sum(0).tolist()
        return totals

    def _keep_if_best(self, score: float) -> None:
        if not self.place.best or score > self.place.best[0]:
            self.place.best = [score, self.place.epoch]
            self.best = {k: v.clone() for k, v in weights(self.network, "best.").items()}

    def _is_out_of_patience(self) -> bool:
        if self.config.patience is None or not self.place.best:
            return False
        restarts = self.config.restarts()
        if restarts and self.place.epoch not in restarts:
            return False  # accuracy falls after a restart, and recovers as the cycle ends
        return self.place.epoch - 1 - self.place.best[1] >= self.config.patience

    @torch.no_grad()
    def _evaluate(self) -> dict[str, Any]:
        """Accuracy and loss per exit on the stopping slice."""
        self.processes.align(self.network)

        def compute(batch: Batch) -> list[Tensor]:
            # Not through the wrapper, which would average over processes.
            logits = self._logits(self.module, batch[0])
            targets = batch[1].to(logits.device)
            return [_are_right(logits, targets), sample_losses(logits, targets)]

        size = self.config.batch_size
        with evaluating(self.network):
            rows = compute_rows(self.samples, self.stop_index, size, self.processes, compute)
        accuracy, losses = (each.double().mean(0).tolist() for each in rows)
        return {"accuracy": accuracy, "exit_losses": losses}

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
        lengths = self.samples.known("lengths")
        if lengths is not None:
            order = grouped_by_length(order, lengths, size, generator)
        return [each[self.processes.rank :: world] for each in order.split(size)]

    def _at(self, purpose: str, step: int) -> tuple[int | str, ...]:
        """What the randomness of a step of this epoch follows from, see `seed_at`."""
        return (self.config.seed, purpose, self.place.phase, self.place.epoch, step)

    def _use_features(self) -> None:
        self.run.progress.start("features", total=len(self.samples))
        advance = self.run.progress.advance
        found = cache_features(
            self.network, self.phase, self.samples, self.config, self.processes, advance
        )
        if found is None:
            self.run.progress.say("the features are too large to cache: the backbone runs again")
            return
        self.module, self.samples = found[0], Samples(found[1])


def smoothed(targets: Tensor, num_classes: int, share: float) -> Tensor:
    """Targets, classes `[n]` or probabilities `[n, K]`, with a share spread over all classes."""
    if not share:
        return targets
    return as_probabilities(targets, num_classes) * (1 - share) + share / num_classes


def _are_right(logits: Tensor, targets: Tensor) -> Tensor:
    """Whether each answer `[N, M]` is the class, or the likeliest class, of its sample."""
    labels = targets.argmax(1) if targets.ndim == 2 else targets
    return logits.argmax(2) == labels.unsqueeze(1)
