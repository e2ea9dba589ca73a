"""How a profile is measured: batches that a real runner sends where they are to be timed."""

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offramp.answers import GeometricEnsemble
from offramp.costs import Costs
from offramp.errors import (
    FewSamplesWarning,
    NetworkError,
)
from offramp.ledger import Ledger
from offramp.machine import device_of, synchronize
from offramp.networks import EarlyExitNetwork
from offramp.networks.state import batch_size as rows_of
from offramp.networks.state import evaluating, take
from offramp.onnx import OnnxRunner, export
from offramp.policy import Policy
from offramp.progress import Progress
from offramp.replay import exit_scores
from offramp.runtime import Runner
from offramp.runtime.output import RunOutput
from offramp.runtime.runner import network_of
from offramp.scorers import BreakEven, History, MaxProbability
from offramp.thresholds.points import OperatingPoints
from offramp.training.batches import moved

Floats = npt.NDArray[np.float64]

NEVER = 1e30  # a threshold that no score reaches; the exit stays open, so its head and scorer run
LONG = 1e9  # a deadline that never comes: with one, a runner reads its clock before every stage
LEAST = 2  # turns of every probe: the first one, in new memory, can take half as long again
TURNS = 3  # of every probe before any has more
WARM = 8  # samples, before a probe is timed
SHORT = 0.1  # of the time to spend: what one more turn may take when it has run out
CENTRAL = ("full", "open")  # probes whose seconds all shares rest on
NOISE = 64  # samples to fit decisions to that are only timed
DRAWS = 4  # samples per turn, as several batches where these are smaller
TEXTS = 16  # the same of texts, which differ in length


class Ticks:
    """A clock that keeps what it showed: runners read theirs before every stage."""

    def __init__(self, clock: Callable[[], float], device: torch.device) -> None:
        self.clock = clock
        self.device = device
        self.read: list[float] = []

    def now(self) -> float:
        """The time at which the device has done everything so far."""
        synchronize(self.device)
        return self.clock()

    def __call__(self) -> float:
        """The same, kept."""
        self.read.append(self.now())
        return self.read[-1]


class Timed(Protocol):
    """A runner, as far as it is measured."""

    def __call__(self, x: Any, deadline: float | None = None) -> RunOutput: ...  # noqa: ANN401, D102

    def full(self, x: Any) -> Tensor: ...  # noqa: ANN401, D102

    def set_budget(self, budget: float) -> None: ...  # noqa: D102


def plain_policy(network: EarlyExitNetwork, exits: Sequence[int] | None = None) -> Policy:
    """Max probability, fitted to no more than the shape of the network's logits.

    With a single exit it is for the network that is cut there, and has no others.
    """
    logits = torch.zeros(4, network.num_exits, network.num_classes)
    exits = range(network.num_exits) if exits is None else exits
    return _fitted(Policy(MaxProbability()), network, logits, exits)


def _looking_back(network: EarlyExitNetwork, exits: Sequence[int]) -> Policy:
    """Break-even prices on an ensemble, fitted to noise: as quick as if it were to samples."""
    shape = NOISE, network.num_exits, network.num_classes
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    policy = Policy(BreakEven(), GeometricEnsemble(shrinkage=1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSamplesWarning)
        return _fitted(policy, network, logits, exits)


def _fitted(
    policy: Policy, network: EarlyExitNetwork, logits: Tensor, exits: Sequence[int]
) -> Policy:
    """A policy for a network that stops nobody, fitted to made-up logits."""
    costs = Costs((1.0,) * network.num_exits, (0.0,) * network.num_exits, unit="relative")
    labels, name = torch.arange(len(logits)) % 2, network.fingerprint()
    ledger = Ledger(logits, labels, costs, split="held_out", network=name).keep_exits(exits)
    (fitted,) = policy.fit_seeds(ledger, [0])
    never = torch.full((ledger.num_exits,), NEVER, dtype=torch.float64)
    return fitted.with_points(_points([never])).at_point(0)


class Probes:
    """Batches of every size, and operating points that send them where they are to be timed.

    At `open` no sample stops before the last exit, though all are looked at; at `closed` none is
    looked at; at `first` all stop at the first exit. At the point named after a size one sample of
    its first batch stops at every exit, so that the batch shrinks each time.
    """

    def __init__(
        self,
        network: EarlyExitNetwork,
        policy: Policy,
        inputs: Any,  # noqa: ANN401 - a batch as the network takes it
        sizes: list[int],
    ) -> None:
        self.network, self.sizes = network, sizes
        never = torch.full((len(policy.exits),), NEVER, dtype=torch.float64)
        # Raises if the policy is another's.
        kept = network_of(policy.with_points(_points([never])).at_point(0), network)
        self.starts, self.last_start = kept.starts, kept.last_start
        samples = rows_of(inputs)

        def rows(start: int, size: int) -> Any:  # noqa: ANN401
            return batch_of(inputs, torch.arange(start, start + size) % samples)

        drawn = TEXTS if isinstance(inputs, Mapping) else DRAWS
        self.batches = {
            size: [rows(start, size) for start in range(0, max(size, drawn), size)]
            for size in sizes
        }
        scores = _scores(network, policy, rows(0, sizes[-1]))
        paths = {str(size): _leaving(scores[:size]) for size in sizes}
        thresholds = {"open": never, "closed": never + torch.inf, "first": -never, **paths}
        self.names = list(thresholds)
        self.last_alone: Policy | None = plain_policy(network, [policy.exits[-1]])
        try:
            network_of(self.last_alone, network)
        except NetworkError:  # its heads read the logits of those before, and none can be dropped
            self.last_alone = None
        self.policy = policy.with_points(_points(list(thresholds.values()))).at_point(0)
        looks_back = policy.scorer.reads_history or policy.answer.reads_history
        alone = len(policy.exits) == 1  # then nobody looks at anything
        self.looking_back = None if looks_back or alone else _looking_back(network, policy.exits)

    def budget(self, name: str) -> float:
        """The budget that selects an operating point."""
        return (self.names.index(name) + 1) / len(self.names)


def batch_of(inputs: Any, index: Tensor) -> Any:  # noqa: ANN401
    """Some samples as they would have come alone: without columns that only pad longer texts."""
    part = take(inputs, index)
    if not isinstance(part, Mapping) or "attention_mask" not in part:
        return part
    length = int(part["attention_mask"].any(0).nonzero().max()) + 1
    return {name: column[:, :length] for name, column in part.items()}


def _scores(network: EarlyExitNetwork, policy: Policy, inputs: Any) -> Tensor:  # noqa: ANN401
    """Stop scores `[n, M]` of all exits that the policy decides at."""
    device = device_of(network)
    parts = []
    with torch.inference_mode(), evaluating(network):
        for index in torch.arange(rows_of(inputs)).split(32):
            logits = network(moved(take(inputs, index), device))[:, list(policy.exits)]
            logits = logits.float().cpu()
            parts.append(
                exit_scores(policy.scorer, History(logits, policy.answer.answers(logits)))
            )
    return torch.cat(parts)


def _leaving(scores: Tensor) -> Tensor:
    """Thresholds `[M]` at which one sample stops at every exit, as long as two are left."""
    thresholds = torch.full(scores.shape[1:], NEVER, dtype=torch.float64)
    for exit_index in range(scores.shape[1] - 1):
        if len(scores) < 2:
            break
        (first, second), (leaves, _) = scores[:, exit_index].double().topk(2)
        # Between the two, since another runtime rounds otherwise.
        thresholds[exit_index] = (first + second) / 2
        scores = torch.cat([scores[:leaves], scores[leaves + 1 :]])
    return thresholds


def _points(thresholds: Sequence[Tensor]) -> OperatingPoints:
    """Operating points that are told apart by their budgets alone."""
    count, exits = len(thresholds), len(thresholds[0])
    budgets = torch.arange(1, count + 1, dtype=torch.float64) / count
    nothing = torch.zeros(count, dtype=torch.float64)
    return OperatingPoints(
        torch.stack(list(thresholds)), budgets, nothing, torch.zeros(count, exits).double(), 0.0
    )


@contextmanager
def runner_of(
    network: EarlyExitNetwork,
    policy: Policy,
    runtime: str = "torch",
    threads: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Timed]:
    """A runner of either runtime; PyTorch has its number of threads, and its own back later."""
    if runtime == "onnx":
        with tempfile.TemporaryDirectory() as folder:
            yield OnnxRunner(export(network, policy, folder, progress=False), threads, clock=clock)
        return
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or before)
        yield Runner(network, policy, clock=clock)
    finally:
        torch.set_num_threads(before)


Turns = dict[tuple[int, str], list[list[Floats]]]
"""By size and probe, for every batch, the seconds of its pieces in every turn."""


def take_turns(probes: Probes, timer: "Timer", seconds: float, bar: Progress) -> Turns:
    """Time all probes again and again, a size at a time, so that every size gets its share.

    Every size has two turns, however long they take, and another one if it is short.
    """
    turns: Turns = {}
    spent = dict.fromkeys(probes.sizes, 0.0)
    taken = dict.fromkeys(probes.sizes, 0)

    def waiting() -> list[int]:
        """The sizes of which one has the next turn."""
        fewest = [size for size in probes.sizes if taken[size] < LEAST]
        few = [size for size in probes.sizes if taken[size] < TURNS]
        if fewest or sum(spent.values()) < seconds:
            return fewest or few or probes.sizes
        return [size for size in few if spent[size] / taken[size] <= SHORT * seconds]

    while sizes := waiting():
        size = min(sizes, key=lambda each: spent[each])
        start = time.perf_counter()
        for name, draw, pieces in timer.turn(probes, size):
            draws = turns.setdefault((size, name), [])
            draws.extend([] for _ in range(draw + 1 - len(draws)))
            draws[draw].append(pieces)
        before = sum(spent.values())
        spent[size] += time.perf_counter() - start
        taken[size] += 1
        bar.advance(int(sum(spent.values())) - int(before))
    return turns


@dataclass(frozen=True)
class Timer:
    """The runners to time, and the clock that they read."""

    runner: Timed
    alone: Timed | None  # with the last exit only; None if exits cannot be dropped
    back: Timed | None  # with decisions that look back; None if those of `runner` do
    ticks: Ticks

    def turn(self, probes: Probes, size: int) -> Iterator[tuple[str, int, Floats]]:
        """Time every probe once on every batch of a size: its name, the batch, its pieces."""
        for name in ("full", "alone", "closed", "open", "back", "first", str(size)):
            run = self._run(probes, name)
            if run is None:
                continue
            batches = probes.batches[size][: 1 if name == str(size) else None]
            for _ in range(max(1, WARM // size)):
                run(batches[0])  # after another probe, or another size, caches are cold
            for draw, batch in enumerate(batches):
                yield name, draw, _pieces(run, batch, self.ticks)

    def _run(self, probes: Probes, name: str) -> Callable[[Any], Any] | None:
        if name == "full":
            return partial(plainly, self.runner)
        if name in ("alone", "back"):
            other = self.alone if name == "alone" else self.back
            return None if other is None else partial(answered, other, deadline=LONG)
        self.runner.set_budget(probes.budget(name))
        return partial(answered, self.runner, deadline=LONG)


def answered(runner: Timed, x: Any, deadline: float | None = None) -> RunOutput:  # noqa: ANN401
    """What a runner answers, with the predictions that anybody would read."""
    output = runner(x, deadline)
    output.predictions  # noqa: B018 - worked out when they are read
    return output


def plainly(runner: Timed, x: Any) -> Tensor:  # noqa: ANN401
    """What the network without exits predicts, `[n]`."""
    return runner.full(x).argmax(dim=1)


def _pieces(run: Callable[[Any], Any], batch: Any, ticks: Ticks) -> Floats:  # noqa: ANN401
    """Seconds between the start, the beginnings of later stages, and the end."""
    ticks.read.clear()
    start = ticks.now()
    run(batch)
    end = ticks.now()
    return np.diff([start, *ticks.read[1:], end])


def _best(draws: Sequence[Sequence[Floats]]) -> Floats:
    """Seconds of the pieces in the best turn, mean over batches.

    Pieces are short and easily undisturbed together with none of their neighbours, so they are
    scaled to the best of the whole calls.
    """
    rows = []
    for turns in draws:
        pieces = np.array(turns).min(axis=0)
        rows.append(pieces * np.array(turns).sum(axis=1).min() / pieces.sum())
    best: Floats = np.mean(rows, axis=0)
    return best


def summary(probes: Probes, turns: Turns) -> dict[str, Any]:
    """The figures of a profile, from what was timed."""
    sizes, found = probes.sizes, {}
    first_of_last = probes.last_start  # what is before it does not run without exits
    opened = np.array([_best(turns[size, "open"]) for size in sizes])  # [S, M]
    full = np.array([_best(turns[size, "full"])[0] for size in sizes])
    first = np.array([_best(turns[size, "first"])[0] for size in sizes])
    # What comes after the exit of the last sample is paid by those who leave early, too.
    call = (first - opened[:, 0]).clip(0, 0.9 * opened[:, -1])
    looks = opened - np.array([_best(turns[size, "closed"]) for size in sizes])
    if probes.policy.answer.reads_history:
        # Then all heads run, whether exits are open or not, and only their sum is known.
        extra = opened[:, first_of_last:].sum(1) - full - call
        looks[:] = (extra / max(1, opened.shape[1] - 1 - first_of_last))[:, None]
    looks = looks.clip(0, 0.9 * opened)
    looks[:, -1] = 0  # the last head is part of the last stage: it runs without exits, too
    stages = opened - looks
    if (sizes[0], "alone") in turns:
        whole = np.array([_best(turns[size, "alone"])[0] for size in sizes])
        pieces = slice(first_of_last, -1)
        longer = (stages[:, first_of_last:].sum(1) - whole).clip(0)[:, None]
        cuts = (longer / max(1, stages[:, pieces].shape[1])).clip(0, 0.9 * stages[:, pieces])
        looks[:, pieces] += cuts
        stages[:, pieces] -= cuts
    stages[:, 0] += call
    stages[:, -1] -= call
    if first_of_last and (sizes[0], "alone") in turns:
        found["entry"] = (whole - stages[:, first_of_last:].sum(1)).clip(0).tolist()
    leaving = {size: _best(turns[size, str(size)]) for size in sizes}
    looks += _shrinking(sizes, opened, leaving)
    more = np.zeros_like(looks)
    if (sizes[0], "back") in turns:
        more = (np.array([_best(turns[size, "back"]) for size in sizes]) - opened).clip(0)
    found["looks"], found["looks_back"] = looks.tolist(), (looks + more).tolist()
    found["spread"] = [max(_spread(turns[size, name][0]) for name in CENTRAL) for size in sizes]
    return {"full": full.tolist(), "stages": stages.tolist(), "call": call.tolist(), **found}


def _spread(turns: Sequence[Floats]) -> float:
    """How much longer than the best turn the median took, without the first, which is slower."""
    totals = np.array(turns[1:]).sum(axis=1)
    return float(np.median(totals) / totals.min() - 1)


def _shrinking(sizes: Sequence[int], opened: Floats, leaving: dict[int, Floats]) -> Floats:
    """`[S, M]`: seconds to take those who stop out of a batch, where one stops at every exit."""
    result = np.zeros_like(opened)
    exits = opened.shape[1]
    for row, size in enumerate(sizes):
        left = size - np.arange(exits)  # rows before each exit
        shrinks = (left > 1) & (np.arange(exits) < exits - 1)
        if not shrinks.any():
            continue
        whole = [np.interp(n, sizes, opened[:, m]) for m, n in enumerate(left)]
        more = (leaving[size] - whole).clip(0)
        result[row] = np.where(shrinks, more, more[shrinks].mean())
        result[row, -1] = 0
    return result
