"""The runner against what could be reached and what people do today, in one process.

Run: python benchmarks/runtime.py [--networks resnet34,msdnet,vit-tiny] [--profile] [--clock cpu]
     [--batches 1,32,256] [--rounds 3] [--threads 1] [--scorer corrector] [--quick]

For ResNet-34, MSDNet and ViT-Tiny at 32 px with all their exits, at batch 1, 32 and 256 and mean
costs near 30 % and 60 %, the runner's time is compared with

  a  ideal     sum over stages of (stage + head at the full batch) x share of samples still there
  b  no exits  all stages and the last head
  c  together  the whole batch runs until its last sample stops
  d  masks     the whole batch runs to the end, and answers are picked by masks

All of them run the same stages and heads, with batch norms folded and channels last.

Weights are random, since time does not depend on them, and thresholds are such that the shares
come out on the very images that are timed. All variants run by turns and the best of several
rounds counts. Aims: at most 1.05 x the ideal at batch 256 and 1.10 x at batch 1; at least 2 x
faster than c from batch 32 on. Printed besides: decisions that batch size 1 and bfloat16 change.

On a machine that other work shares, `--clock cpu --threads 1` counts the processor's seconds of
this process instead of those on the wall.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import offramp
from offramp.arrays import Array
from offramp.decide import Decider
from offramp.networks import EarlyExitNetwork
from offramp.replay import replay
from offramp.runtime import Runner, near_threshold
from offramp.runtime.shrinking_batch import ShrinkingBatch

NETWORKS = ("resnet34", "msdnet", "vit-tiny")
BUDGETS = (0.3, 0.6)
SCORERS: dict[str, offramp.Scorer] = {
    "corrector": offramp.Corrector(),
    "max": offramp.MaxProbability(),
    "corrector-now": offramp.Corrector(history=False),
    "logistic": offramp.scorers.LogisticCorrector(),
    "break-even": offramp.scorers.BreakEven(),
}


@dataclass(frozen=True)
class Setting:
    """How much is run."""

    image_size: int
    exits: str | int
    samples: int
    batches: tuple[int, ...]
    rounds: int


FULL = Setting(32, "every-block", 256, (1, 32, 256), 5)
QUICK = Setting(16, 4, 64, (1, 32), 2)
FEW = 32  # one by one, and in bfloat16, which is slow where the processor does not know it
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock: Callable[[], float] = time.perf_counter


def settled(network: EarlyExitNetwork, images: Tensor) -> EarlyExitNetwork:
    """Batch norms that have seen data: otherwise activations grow from block to block."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean over all batches, here one
    with torch.no_grad():
        network.train()(images[:64])
    return network.eval()


def prepare(
    name: str, setting: Setting, scorer: offramp.Scorer
) -> tuple[EarlyExitNetwork, offramp.Policy, Tensor, offramp.Ledger]:
    """A network, a policy for it, the images that it was tuned on, and their ledger."""
    torch.manual_seed(0)
    shape = (setting.samples, 3, setting.image_size, setting.image_size)
    held_out, val = torch.randn(shape)[: setting.samples // 2], torch.randn(shape)
    network = offramp.build(name, 100, setting.image_size, at=setting.exits)
    settled(network, held_out)
    ledgers = [
        offramp.record(
            network,
            TensorDataset(images, torch.arange(len(images)) % 100),
            split,
            progress=False,
        )
        for images, split in ((held_out, "held_out"), (val, "val"))
    ]
    policy = offramp.Policy(scorer).fit(ledgers[0]).tune(ledgers[1], "geometric")
    return network, policy, val, ledgers[1]


def few(samples: Any) -> Any:  # noqa: ANN401 - images or scores
    """Some of the samples, from all over the range of scores."""
    return samples[:: max(1, len(samples) // FEW)]


def unshrunk(runner: Runner, x: Tensor, to_the_end: bool) -> Array:
    """Variants c and d: the same decisions, but no sample leaves the batch."""
    decider, classes = runner.operation.point.decider, runner.network.num_classes
    taken = np.full(len(x), -1)
    answers = np.empty((len(x), classes), np.float32)
    buffer = decider.begin(len(x), classes)
    with torch.inference_mode():
        state = runner._begin(x)
        for exit_index in range(runner.network.num_exits):
            state = runner._stages[exit_index](state)
            if not decider.needs_head[exit_index]:
                continue
            outputs = runner._heads[exit_index](state, None).float().numpy()
            answer, scores = decider.at_exit(exit_index, buffer, outputs)
            if decider.is_open[exit_index]:
                stop = taken < 0
                if scores is not None:
                    stop &= decider.stops(exit_index, scores)
                taken[stop], answers[stop] = exit_index, answer[stop]
            if not to_the_end and (taken >= 0).all():
                break
    return taken


def part_times(runner: Runner, x: Tensor) -> Array:
    """Seconds of every stage and of every head for the whole batch, `[2, M]`, as the runner's."""
    times = np.zeros((2, runner.network.num_exits))
    with torch.inference_mode():
        state = runner._begin(x)
        for exit_index, (stage, head) in enumerate(
            zip(runner._stages, runner._heads, strict=True)
        ):
            start = clock()
            state = stage(state)
            middle = clock()
            head(state, None)
            times[:, exit_index] = middle - start, clock() - middle
    return times


def timed(job: Callable[[Tensor], Any], batches: Sequence[Tensor]) -> tuple[float, list[Any]]:
    """How long all batches take, and what comes out."""
    start = clock()
    outputs = [job(batch) for batch in batches]
    return clock() - start, outputs


@dataclass
class Row:
    """Best seconds for all batches at one budget, and the mean cost."""

    cost: float
    runner: float
    ideal: float
    no_exits: float
    together: float
    masks: float

    def text(self) -> str:
        """Ratios: the runner against the ideal, and how many times faster than the others."""
        return (
            f"{self.cost:9.2f} {1e3 * self.runner:10.1f} {self.runner / self.ideal:10.2f} "
            f"{self.no_exits / self.runner:12.2f} {self.together / self.runner:12.2f} "
            f"{self.masks / self.runner:9.2f}"
        )


def measure(runners: Sequence[Runner], batches: Sequence[Tensor], rounds: int) -> list[Row]:
    """All variants by turns, best of the rounds; a row per runner, which differ by the budget."""
    network = runners[0].network
    # Without exits, and with masks, a budget changes nothing.
    jobs: dict[Any, Callable[[Tensor], Any]] = {
        "no_exits": runners[0].full,
        "masks": partial(unshrunk, runners[-1], to_the_end=True),
    }
    for number, runner in enumerate(runners):
        jobs["runner", number] = runner
        jobs["together", number] = partial(unshrunk, runner, to_the_end=False)
    best = dict.fromkeys(jobs, math.inf)
    outputs: dict[Any, list[Any]] = {}
    parts = np.full((2, network.num_exits), math.inf)
    for _ in range(rounds):
        for name, job in jobs.items():
            spent, outputs[name] = timed(job, batches)
            best[name] = min(best[name], spent)
        found = np.sum([part_times(runners[0], batch) for batch in batches], axis=0)
        parts = np.minimum(parts, found)
    rows = []
    for number, runner in enumerate(runners):
        ours = outputs["runner", number]
        exits = torch.cat([output.exits for output in ours]).numpy()
        other = np.concatenate(outputs["together", number])
        # Up to rounding, which the size of a batch changes.
        assert (exits != other).mean() < 0.02, "the variants must decide alike"
        reached = (exits[:, None] >= np.arange(network.num_exits)).mean(axis=0)
        ideal = (parts[0] + parts[1] * runner.operation.point.decider.needs_head) @ reached
        cost = torch.cat([output.costs for output in ours]).mean().item()
        times = best["runner", number], float(ideal), best["no_exits"]
        rows.append(Row(cost, *times, best["together", number], best["masks"]))
    return rows


@contextmanager
def profiled(runner: Runner) -> Iterator[dict[str, float]]:
    """Where a runner's time goes: stages, heads, decisions and shrinking."""
    spent = dict.fromkeys(("stages", "heads", "decisions", "shrinking"), 0.0)

    def watched(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            start = clock()
            try:
                return function(*arguments, **options)
            finally:
                spent[part] += clock() - start

        return run

    stages, heads = runner._stages, runner._heads
    runner._stages = [watched("stages", stage) for stage in stages]
    runner._heads = [watched("heads", head) for head in heads]
    methods = ((Decider, "at_exit"), (Decider, "stops"), (ShrinkingBatch, "take"))
    unwatched = [(owner, name, getattr(owner, name)) for owner, name in methods]
    for owner, name, method in unwatched:
        part = "shrinking" if owner is ShrinkingBatch else "decisions"
        setattr(owner, name, watched(part, method))
    try:
        yield spent
    finally:
        runner._stages, runner._heads = stages, heads
        for owner, name, method in unwatched:
            setattr(owner, name, method)


def print_profile(runner: Runner, batches: Sequence[Tensor], rounds: int) -> None:
    """Milliseconds of each part of the best round."""
    best: tuple[float, dict[str, float]] = (math.inf, {})
    for _ in range(rounds):
        with profiled(runner) as spent:
            total, _ = timed(runner, batches)
        best = min(best, (total, dict(spent)), key=lambda each: each[0])
    total, spent = best
    shown = "  ".join(f"{name} {1e3 * value:.1f}" for name, value in spent.items())
    print(f"    of {1e3 * total:.1f} ms: {shown}  rest {1e3 * (total - sum(spent.values())):.1f}")


def print_changes(runner: Runner, images: Tensor, ledger: offramp.Ledger) -> None:
    """Decisions that a batch size of 1, and bfloat16, change."""
    policy = runner.policy
    chosen = few(images)
    whole = runner(chosen).exits
    single = torch.cat([runner(one).exits for one in chosen.split(1)])
    half = Runner(runner.network, policy, precision="bfloat16")(chosen).exits
    scores = few(replay(policy.answer, policy.scorer, ledger).scores)
    near = near_threshold(scores, policy.thresholds)
    print(
        f"  of {len(chosen)} decisions: {int((whole != single).sum())} changed by batch size 1 "
        f"({int(near.sum())} scores are within 1e-4 of a threshold), "
        f"{float((whole != half).double().mean()):.1%} changed by bfloat16"
    )


def run(name: str, setting: Setting, scorer: offramp.Scorer, profile: bool) -> None:
    """One network at all batch sizes and budgets."""
    network, policy, images, ledger = prepare(name, setting, scorer)
    print(f"{name}, {setting.image_size} px, {network.num_exits} exits, {scorer}")
    heads = "batch  mean cost   runner ms   / ideal  x no exits   x together   x masks"
    print(f"  {heads}", flush=True)
    runners = [Runner(network, policy.at(budget=budget)) for budget in BUDGETS]
    for size in setting.batches:
        # Batches of 32 are all alike: a quarter of them is enough.
        chosen = few(images) if size == 1 else images[: max(size, len(images) // 4)]
        batches = chosen.split(size)
        rows = measure(runners, batches, setting.rounds)
        for runner, row in zip(runners, rows, strict=True):
            print(f"  {size:5d} {row.text()}", flush=True)
            if profile:
                print_profile(runner, batches, rounds=min(2, setting.rounds))
    if 1 in setting.batches:
        for runner in runners:
            print_changes(runner, images, ledger)


def main() -> None:
    """Print one table per network."""
    global clock
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small images, few exits: smoke test")
    parser.add_argument("--profile", action="store_true", help="say where the runner's time goes")
    parser.add_argument("--scorer", choices=SCORERS, default="corrector")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--threads", type=int, help="of torch; its own choice by default")
    parser.add_argument("--batches", help="sizes, comma-separated")
    parser.add_argument("--rounds", type=int, help="of which the best counts")
    options = parser.parse_args()
    setting = QUICK if options.quick else FULL
    setting = replace(setting, rounds=options.rounds or setting.rounds)
    if options.batches:
        setting = replace(setting, batches=tuple(map(int, options.batches.split(","))))
    clock = CLOCKS[options.clock]
    if options.threads:
        torch.set_num_threads(options.threads)
    print(
        f"{torch.get_num_threads()} threads, float32, best of {setting.rounds} rounds, "
        f"{options.clock} time"
    )
    for name in options.networks.split(","):
        run(name, setting, SCORERS[options.scorer], options.profile)


if __name__ == "__main__":
    main()
