"""`bench`: measured and predicted times of a policy, and the times of what else could run."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from offramp.arrays import AnyArray, Array, as_numpy
from offramp.errors import ConfigError
from offramp.machine import device_of
from offramp.networks import EarlyExitNetwork, ImageInput, attach
from offramp.networks.inputs import as_batch
from offramp.networks.state import batch_size as rows_of
from offramp.networks.state import map_leaves
from offramp.onnx.runner import OnnxRunner
from offramp.plan import Plan
from offramp.policy import Policy
from offramp.progress import Progress, showing
from offramp.runtime.engine import StagedRunner
from offramp.runtime.output import RunOutput
from offramp.runtime.runner import Runner
from offramp.stopwatch import Stopwatch, Timed
from offramp.timing.config import BenchConfig
from offramp.timing.profile import measured
from offramp.timing.results import WITHOUT, BenchRow, Profile
from offramp.timing.runners import Opener, answered, batch_of, plain_policy, without_exits
from offramp.training.batches import resized

TURNS = 3  # of every candidate on every batch; the best counts
COUNTED = 128  # samples whose answers are counted at once
STRETCH = 64  # samples that a candidate answers before it is another one's turn


@dataclass(frozen=True)
class Candidate:
    """Something that answers batches."""

    name: str
    answer: Callable[[Any], RunOutput | AnyArray]  # a batch -> with exits, or predictions `[n]`
    predicted: Callable[..., float] | None = None  # batch size and exits -> share of the time
    image_size: int | None = None  # that it takes, where that is another one


def bench(  # noqa: PLR0913 - all but the first four by name
    network: EarlyExitNetwork,
    policy: Policy | Plan,
    inputs: Any,  # noqa: ANN401 - a batch as the network takes it
    labels: AnyArray | Sequence[int] | None = None,
    config: BenchConfig | None = None,
    rivals: Mapping[str, nn.Module | Runner | OnnxRunner] | None = None,
    profiles: Mapping[str, Profile] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    progress: bool | Progress = True,
) -> list[BenchRow]:
    """Time a policy, its network without exits and cut at one exit, and smaller networks.

    All take turns on the same batches, and the best of three turns on each batch counts, so that
    other work on the machine disturbs little.

    Args:
        network: The network.
        policy: At an operating point; or a plan of `auto`, with a policy for each of its budgets.
        inputs: Real samples, so that they leave where they leave in use.
        labels: `[N]`, for accuracies, of all samples: they are counted before anything is timed.
        config: Runtimes, batch sizes, budgets, threads, seconds.
        rivals: What else could run, by name: other networks with exits, timed without them, on
            images of their own size (resizing is not timed); your own model as it was before
            `attach`, which cut it into stages; or a `Runner` or an `OnnxRunner`, timed as it is
            and in its own runtime only.
        profiles: By runtime, for predictions; measured here if not given.
        clock: Seconds; `time.process_time` on a machine that others use, with one thread.
        progress: Whether progress is shown, on stderr; or an `offramp.progress.Progress`.

    Returns:
        One row per runtime, batch size and candidate. A batch size at which a single turn would
        take longer than the seconds per batch size is left out.

    Example:
        >>> from offramp.networks import build
        >>> network = build("convnet", num_classes=4, image_size=8)
        >>> policy = plain_policy(network)  # or your own, at an operating point
        >>> config = BenchConfig(["torch"], [8], seconds=0.1)
        >>> rows = bench(network, policy, network.example(8), config=config, progress=False)
        >>> [row.name for row in rows][:3]
        ['with exits', 'without exits', 'exit 0 alone']
    """
    config = BenchConfig() if config is None else config
    if not rows_of(inputs):
        raise ConfigError("there are no samples to time anything on")
    inputs = as_batch(inputs)
    classes = None if labels is None else as_numpy(labels)
    labelled = None if classes is None else len(classes)
    network.settle(inputs)
    policies = _named(policy, config.budgets)
    rows: list[BenchRow] = []
    watch = Stopwatch(clock, device_of(network))
    with showing(progress) as bar:
        for number, runtime in enumerate(config.runtimes):
            bar.step(number, len(config.runtimes), f"measuring in {runtime}")
            sizes = sorted(set(config.batch_sizes))
            known, opener = (profiles or {}).get(runtime), Opener(runtime, config.threads)
            if known is None:
                decided = policy if isinstance(policy, Policy) else None
                known = measured(
                    network, decided, opener, sizes, inputs, config.seconds, clock, bar
                )
                sizes = [size for size in sizes if size in known.sizes]
            with ExitStack() as stack:
                opened = partial(_opened, stack, opener)
                example = batch_of(inputs, np.arange(2))
                candidates = [
                    *_with_exits(network, policies, known, opened),
                    *(_cuts(network, opened) if config.cuts else ()),
                    *_rivals(rivals or {}, runtime, example, opened),
                ]
                bar.step(number, len(config.runtimes), f"counting right answers in {runtime}")
                right = _accuracies(candidates, inputs, classes)
                last: list[BenchRow] = []
                for size in sizes:
                    # One turn of all, by the seconds at the size before.
                    if sum(row.seconds for row in last) * size > 2 * max(config.seconds, 0.1):
                        bar.say(f"note: batch {size} takes too long in {runtime}: it is left out")
                        continue
                    tallies = _raced(candidates, _batches(inputs, size), config.seconds, watch)
                    last = [
                        replace(row, accuracy=right.get(row.name), labelled=labelled)
                        for row in _rows(tallies, runtime, size)
                    ]
                    rows += last
    return rows


Opened = Callable[[EarlyExitNetwork, Policy], StagedRunner]


def _opened(
    stack: ExitStack, opener: Opener, network: EarlyExitNetwork, policy: Policy
) -> StagedRunner:
    """A runner that is closed with the stack."""
    return stack.enter_context(opener.opened(network, policy))


def _named(policy: Policy | Plan, budgets: Sequence[float]) -> dict[str, Policy]:
    """What is timed with exits: the policies of a plan, or one policy at its budgets."""
    if isinstance(policy, Policy):
        if not budgets:
            return {"with exits": policy}
        return {f"at {budget:.0%}": policy.at(budget=budget) for budget in budgets}
    return {f"at {budget:.0%}": policy[budget] for budget in budgets or policy.policies}


def _with_exits(
    network: EarlyExitNetwork, policies: Mapping[str, Policy], known: Profile, opened: Opened
) -> list[Candidate]:
    """The policies, and the network without exits in the runner of the first of them."""
    runners = {name: opened(network, policy) for name, policy in policies.items()}
    candidates = [
        Candidate(name, partial(answered, runner), partial(known.predicted_share, policies[name]))
        for name, runner in runners.items()
    ]
    full = next(iter(runners.values()))
    return [*candidates, Candidate(WITHOUT, partial(without_exits, full))]


def _cuts(network: EarlyExitNetwork, opened: Opened) -> Iterator[Candidate]:
    for exit_index in range(network.num_exits - 1):
        cut = opened(network, plain_policy(network, [exit_index]))
        yield Candidate(f"exit {exit_index} alone", partial(without_exits, cut))


def _rivals(
    rivals: Mapping[str, nn.Module | Runner | OnnxRunner],
    runtime: str,
    example: Any,  # noqa: ANN401 - two samples
    opened: Opened,
) -> Iterator[Candidate]:
    for name, rival in rivals.items():
        exits = None
        if isinstance(rival, Runner | OnnxRunner):
            if isinstance(rival, OnnxRunner) == (runtime == "onnx"):
                yield Candidate(name, partial(answered, rival))
            continue
        if not isinstance(rival, EarlyExitNetwork):
            if runtime == "torch":
                yield Candidate(name, partial(_predicted, rival.eval()))
                continue
            rival = attach(rival, at=2, example=example)  # whose graph without exits is one piece
            exits = [1]  # an export has no graphs for others
        size = rival.inputs.height if isinstance(rival.inputs, ImageInput) else None
        runner = opened(rival, plain_policy(rival, exits))
        yield Candidate(name, partial(without_exits, runner), image_size=size)


def _predicted(model: nn.Module, x: Any) -> Array:  # noqa: ANN401 - a batch as the model takes it
    """What a model without exits predicts, `[n]`."""
    where = device_of(model)
    with torch.inference_mode():
        found = model(map_leaves(lambda leaf: leaf.to(where), x))
    logits = getattr(found, "logits", found)  # models of `transformers` return more
    return as_numpy(logits.argmax(dim=1))


def _accuracies(
    candidates: Sequence[Candidate],
    inputs: Any,  # noqa: ANN401
    labels: Array | None,
) -> dict[str, float]:
    """By name, the share of all samples that a candidate gets right."""
    if labels is None:
        return {}
    right = {each.name: 0 for each in candidates}
    for rows in np.array_split(np.arange(len(labels)), -(-len(labels) // COUNTED)):
        x = batch_of(inputs, rows)
        for each in candidates:
            answers = each.answer(resized(x, each.image_size))
            found = answers.predictions if isinstance(answers, RunOutput) else answers
            right[each.name] += int((as_numpy(found) == labels[rows]).sum())
    return {name: count / len(labels) for name, count in right.items()}


def _batches(inputs: Any, size: int) -> list[Any]:  # noqa: ANN401
    """All samples in batches of a size; samples are repeated to fill one."""
    samples = rows_of(inputs)
    index = np.arange(max(samples // size, 1) * size) % samples
    return [batch_of(inputs, rows) for rows in index.reshape(-1, size)]


@dataclass
class _Tally:
    """What one candidate took at one batch size, and where samples left it."""

    candidate: Candidate
    seconds: list[float] = field(default_factory=list)  # of every batch, in its best turn
    exits: list[Array] = field(default_factory=list)


def _raced(
    candidates: Sequence[Candidate], batches: Sequence[Any], seconds: float, watch: Stopwatch
) -> list[_Tally]:
    """The best seconds of every candidate on as many batches as there is time for."""
    tallies = [_Tally(each) for each in candidates]
    start, step = time.perf_counter(), max(1, STRETCH // rows_of(batches[0]))
    for first in range(0, len(batches), step):
        inputs = batches[first : first + step]
        timed = [
            Timed(each.answer, [resized(x, each.image_size) for x in inputs])
            for each in candidates
        ]
        for turn in range(TURNS):
            for tally, one in zip(tallies, timed, strict=True):
                for answers in one.turn(watch):
                    if not turn and isinstance(answers, RunOutput):
                        tally.exits.append(as_numpy(answers.exits))
        for tally, one in zip(tallies, timed, strict=True):
            tally.seconds += one.by_batch.sum(axis=1).tolist()
        if time.perf_counter() - start > seconds:
            break
    return tallies


def _rows(tallies: Sequence[_Tally], runtime: str, size: int) -> Iterator[BenchRow]:
    (full,) = (sum(each.seconds) for each in tallies if each.candidate.name == WITHOUT)
    for each in tallies:
        spent, predicted = sum(each.seconds), each.candidate.predicted
        yield BenchRow(
            runtime=runtime,
            batch_size=size,
            name=each.candidate.name,
            seconds=spent / (len(each.seconds) * size),
            share=spent / full,
            predicted=None if predicted is None else predicted(size),
            expected=None if predicted is None else predicted(size, np.concatenate(each.exits)),
            samples=len(each.seconds) * size,
        )
