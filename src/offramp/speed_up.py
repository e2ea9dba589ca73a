"""`quick`: from a trained network to a measured speed-up, with one call or one command.

A script of public calls, to copy from. A second run does nothing, and one that was killed goes on
where it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from offramp.advice.auto import auto
from offramp.errors import ConfigError
from offramp.imports import installed_version
from offramp.ledger import Ledger
from offramp.made import once
from offramp.networks import EarlyExitNetwork, attach
from offramp.onnx import export
from offramp.plan import Plan
from offramp.policy import Policy
from offramp.record import record
from offramp.report.clock import read_bench, write_bench
from offramp.timing.bench import bench
from offramp.timing.config import CLOCKS, BenchConfig, Clock
from offramp.timing.profile import profile
from offramp.timing.results import WITHOUT, BenchRow, Profile
from offramp.training.batches import Samples
from offramp.training.config import TrainConfig
from offramp.training.train import train

SPLITS = ("train", "held_out", "val", "test")
SAMPLES = 1000  # of test, drawn at random, that bench answers
BUDGETS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
HEADS = TrainConfig(epochs=20, patience=None)


@dataclass(frozen=True)
class QuickConfig:
    """How `quick` attaches, trains and measures.

    Args:
        at: Place of the exits, as `attach` takes it.
        head: Head of each exit. Default: what fits the network.
        max_drop: Accuracy that may be lost on val, 0.01 for a point.
        runtime: Runtime, torch or onnx. Default: ONNX Runtime where it is installed.
        batch_size: Samples per batch in use.
        threads: Threads of the runtime.
        seconds: Approximate time to measure the profile, and each candidate.
        clock: Clock to time by; process counts the processor's seconds of this process.
        train: How the heads are trained.

    Example:
        >>> QuickConfig(runtime="torch", batch_size=32).max_drop
        0.005
    """

    at: str | int | Sequence[str] = "auto"
    head: str | None = None
    max_drop: float = 0.005
    runtime: str | None = None
    batch_size: int = 1
    threads: int = 1
    seconds: float = 10.0
    clock: Clock = "wall"
    train: TrainConfig = HEADS

    @property
    def chosen_runtime(self) -> str:
        """The runtime that is asked for, or the faster one that is there."""
        has_onnx = all(map(installed_version, ("onnx", "onnxscript", "onnxruntime")))
        return self.runtime or ("onnx" if has_onnx else "torch")


@dataclass(frozen=True)
class Quick:
    """What `quick` made: a network with exits, a plan for it, and what was measured.

    Attributes:
        network: With trained exits.
        plan: Policies for several budgets in seconds, and what is best.
        policy: The cheapest policy that loses no more accuracy on val than may be lost; without
            exits where none does.
        rows: What was timed on test.
        folder: With `policy/`, `bench/` and, of ONNX Runtime, `export/`.
    """

    network: EarlyExitNetwork
    plan: Plan
    policy: Policy
    rows: list[BenchRow]
    folder: Path

    def __str__(self) -> str:
        by_name = {row.name: row for row in self.rows}
        full, chosen = by_name[WITHOUT], self.rows[0]
        return (
            f"{chosen.runtime}, batch {chosen.batch_size}: {1 / chosen.share:.2f} times as fast "
            f"as without exits ({1e3 * chosen.seconds:.3f} ms of {1e3 * full.seconds:.3f}), "
            f"{_percent(chosen.accuracy)} right of {chosen.labelled:,} instead of "
            f"{_percent(full.accuracy)}\n{self.plan.best}"
        )


def quick(
    model: Any,  # noqa: ANN401 - as `attach` takes it
    data: Mapping[str, Any],
    folder: str | Path = "runs/quick",
    config: QuickConfig | None = None,
    progress: bool = True,
) -> Quick:
    """Put exits on a trained model, train their heads, and measure what that gains.

    The model's own weights stay as they are. Everything is written to the folder: the profile,
    the policy, the table of times, and an export for `OnnxRunner`.

    Args:
        model: A module, or a name, as `attach` takes it; or a network with exits that are trained.
        data: Data sets `train`, `held_out`, `val` and `test` of `(inputs, label)`; the model has
            seen `train` alone.
        folder: For everything that is made.
        config: Exits, heads, runtime, batch size.
        progress: Whether progress is shown, on stderr.

    Raises:
        ConfigError: A split is missing.
    """
    config, folder = config or QuickConfig(), Path(folder)
    if missing := [name for name in SPLITS if name not in data]:
        raise ConfigError(f"`data` must have train, held_out, val and test: {missing} is missing")

    # Exits and their heads: of the model, a copy is not made.
    network = model
    if not isinstance(model, EarlyExitNetwork):
        inputs, _ = Samples(data["train"]).example()
        network = attach(model, config.at, head=config.head, example=inputs)
        train(
            network,
            data["train"],
            config=config.train,
            freeze_backbone=True,
            folder=folder / "heads",
            progress=progress,
        )
    network.eval()
    name = network.fingerprint()

    # Ledgers: what every exit says about samples that the network was not trained on.
    def recorded(split: str) -> Ledger:
        def make(place: Path) -> None:
            record(network, data[split], split, progress=progress).save(place)

        known = getattr(data[split], "fingerprint", len(data[split]))
        return Ledger.load(once(folder / "ledgers" / split, [name, known], make), split)

    ledgers = {split: recorded(split) for split in SPLITS[1:]}
    runtime, size, clock = config.chosen_runtime, config.batch_size, CLOCKS[config.clock]
    about = [name, runtime, size, config.threads, config.seconds, config.clock]

    # Seconds of stages and exits on this machine, and the best policy for each budget of them.
    def measure(place: Path) -> None:
        some, _ = _some(data["val"], max(256, size))
        profile(
            network, None, runtime, size, config.threads, some, config.seconds, clock, progress
        ).save(place)

    known = Profile.load(once(folder / "profile", about, measure))
    held_out, val = (known.timed(ledgers[split], size) for split in ("held_out", "val"))

    def plan_it(place: Path) -> None:
        auto(held_out, val, BUDGETS).save(place / "plan")

    plan = Plan.load(once(folder / "auto", [folder / "profile", BUDGETS], plan_it) / "plan")
    policy = chosen_policy(plan, config.max_drop)

    # The clock decides: the policy, the network without exits and cut at each exit.
    def time_it(place: Path) -> None:
        policy.save(place / "policy")
        timed = BenchConfig([runtime], [size], (), config.threads, config.seconds)
        some, labels = _some(data["test"], SAMPLES)
        rows = bench(
            *(network, policy, some, labels, timed),
            profiles={runtime: known},
            clock=clock,
            progress=progress,
        )
        write_bench(rows, place / "bench")
        if runtime == "onnx":
            export(network, policy, place / "export", progress=progress)

    place = once(folder / "result", [folder / "auto", config.max_drop], time_it)
    rows = read_bench(place / "bench")
    return Quick(network, plan, policy, rows, place)


def chosen_policy(plan: Plan, max_drop: float) -> Policy:
    """The cheapest policy that loses no more than that on val; else that of the largest budget.

    The plan has the network without exits for budgets that no exit can keep: it is no cheap one.
    """
    points = [(policy, policy.points, policy.selected or 0) for policy in plan.values()]
    kept = [
        (float(each.budgets[index]), number)
        for number, (_, each, index) in enumerate(points)
        if each.accuracies[index] >= each.full_accuracy - max_drop
    ]
    return points[min(kept)[1]][0] if kept else plan[max(plan)]


def _some(data: Any, count: int) -> tuple[Any, torch.Tensor]:  # noqa: ANN401
    """Samples drawn at random, and their labels."""
    drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:count]
    inputs, labels = next(Samples(data).batches([drawn]))
    return inputs, labels


def _percent(accuracy: float | None) -> str:
    return "none" if accuracy is None else f"{accuracy:.2%}"
