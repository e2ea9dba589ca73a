"""How seconds per stage are measured: a runner sends batches along chosen paths."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from offramp.arrays import Array, Floats, as_numpy
from offramp.decide import Decider
from offramp.errors import NetworkError
from offramp.machine import device_of
from offramp.networks import EarlyExitNetwork
from offramp.networks.state import batch_size as rows_of
from offramp.networks.state import evaluating, take
from offramp.policy import Policy
from offramp.runtime.engine import StagedRunner
from offramp.runtime.runner import network_of
from offramp.stopwatch import Stopwatch, Timed, take_turns
from offramp.timing.runners import (
    NEVER,
    answered,
    at_thresholds,
    batch_of,
    plain_policy,
    policy_with_history,
    without_exits,
)
from offramp.training.batches import moved

WARM = 8  # samples, before a path is timed
LARGE = 64  # batches from this size on need no warm caches: the first of their turns is enough
CENTRAL = ("full", "open")  # paths whose seconds all shares rest on
AGAIN = 3  # times that batches of one and two are timed again where they do not fit
MISFIT = 0.05  # how much longer one sample may take than two in one batch
DRAWS = 16  # samples per turn, as several batches where these are smaller


class StageTimes:
    """The seconds of stages and exits in batches of several sizes, from runs on several paths.

    Most paths are operating points of the policy's runner. At `open` no sample stops before the
    last exit, though all exits are evaluated; at `closed` none is evaluated; at `first` all
    samples stop at the first exit; at `shrinking` one sample of the batch stops at every exit.
    `full` is the network without exits in the same runner. `alone` is a runner with the last exit
    only, and `history` one whose decisions read earlier exits.

    Attributes:
        policies: What to make runners of: `own`, and `alone` and `history` where these exist.
    """

    def __init__(
        self,
        network: EarlyExitNetwork,
        policy: Policy,
        inputs: Any,  # noqa: ANN401 - a batch as the network takes it
        sizes: list[int],
    ) -> None:
        self.sizes = sizes
        samples = rows_of(inputs)

        def rows(start: int, size: int) -> Any:  # noqa: ANN401
            return batch_of(inputs, np.arange(start, start + size) % samples)

        self._batches = {
            size: [rows(start, size) for start in range(0, max(size, DRAWS), size)]
            for size in sizes
        }
        never = np.full(len(policy.exits), NEVER)
        # Raises if the policy is another network's.
        kept = network_of(at_thresholds(policy, [never]), network)
        self.starts, self._last_start = kept.starts, kept.last_start
        scores = _scores(network, policy, rows(0, sizes[-1]))
        shrinking = [_one_by_one(scores[:size]) for size in sizes]
        own = at_thresholds(policy, [never, never + np.inf, -never, *shrinking])
        self.policies = {"own": own, **_alone(network, policy), **_with_history(network, policy)}
        # Texts differ in length, and batches of anything else are alike on any path.
        self._alike = not isinstance(inputs, Mapping)
        self._answer_reads_history = policy.answer.reads_history
        self._timed: dict[int, dict[str, Timed]] = {}

    def run(
        self,
        runners: Mapping[str, StagedRunner],
        watch: Stopwatch,
        seconds: float,
        advance: Callable[[int], None],
    ) -> None:
        """Time all paths at every batch size by turns; `runners` run the `policies`."""
        for number, size in enumerate(self.sizes):
            self._timed[size] = self._paths(runners, size, 3 + number)
        groups = [list(paths.values()) for paths in self._timed.values()]
        take_turns(groups, watch, seconds=seconds, advance=advance)
        for _ in range(AGAIN):
            if not self.misfit:
                break
            take_turns(groups[:2], watch)

    @property
    def misfit(self) -> float:
        """How much longer a single sample took than two in one batch, as a share; 0 if not."""
        if self.sizes[:2] != [1, 2]:
            return 0.0
        ratios = (
            self._timed[1][path].best.sum() / self._timed[2][path].best.sum() for path in CENTRAL
        )
        longer = float(max(ratios)) - 1
        return longer if longer > MISFIT else 0.0

    def _paths(
        self, runners: Mapping[str, StagedRunner], size: int, shrinking: int
    ) -> dict[str, Timed]:
        """What to time at one batch size; `shrinking` is the number of its operating point."""
        own, batches, alike = runners["own"], self._batches[size], self._alike
        warm = max(WARM // size, int(size < LARGE))
        paths = {"full": Timed(partial(without_exits, own), batches, warm, alike=alike)}
        for name in ("alone", "history"):
            if name in runners:
                paths[name] = Timed(partial(answered, runners[name]), batches, warm, alike=alike)
        points = {"closed": 1, "open": 0, "first": 2, "shrinking": shrinking}
        for name, point in points.items():
            paths[name] = Timed(
                partial(answered, own),
                batches[:1] if name == "shrinking" else batches,
                warm,
                partial(own.operation.start, point),
                alike,
            )
        return paths

    def _best(self, path: str) -> Floats:
        """`[S, stages]`: the seconds of each stage at every batch size."""
        return np.array([self._timed[size][path].best for size in self.sizes])

    def figures(self) -> dict[str, Any]:
        """The figures of a profile, by the names of its attributes."""
        paths = self._timed[self.sizes[0]]
        needed = self._last_start  # the first stage that the network without exits runs
        opened, full = self._best("open"), self._best("full")[:, 0]
        # What comes after the exit of the last sample is a cost of samples that stop early, too.
        call = (self._best("first")[:, 0] - opened[:, 0]).clip(0, 0.9 * opened[:, -1])
        overheads = opened - self._best("closed")
        if self._answer_reads_history:
            # Then all heads run, whether exits are open or not, and only their sum is known.
            extra = opened[:, needed:].sum(1) - full - call
            overheads[:] = (extra / max(1, opened.shape[1] - 1 - needed))[:, None]
        overheads = overheads.clip(0, 0.9 * opened)
        overheads[:, -1] = 0  # the last head is part of the last stage: it runs without exits, too
        stages = opened - overheads
        found: dict[str, Any] = {}
        if "alone" in paths:
            whole, pieces = self._best("alone")[:, 0], slice(needed, -1)
            longer = (stages[:, needed:].sum(1) - whole).clip(0)[:, None]
            cuts = (longer / max(1, stages[:, pieces].shape[1])).clip(0, 0.9 * stages[:, pieces])
            overheads[:, pieces] += cuts
            stages[:, pieces] -= cuts
        stages[:, 0] += call
        stages[:, -1] -= call
        if needed and "alone" in paths:
            found["entry"] = (whole - stages[:, needed:].sum(1)).clip(0).tolist()
        overheads += self._seconds_of_shrinking(opened)
        more = np.zeros_like(opened)
        if "history" in paths:
            more = (self._best("history") - opened).clip(0)
        return {
            "full": full.tolist(),
            "stages": stages.tolist(),
            "overheads": overheads.tolist(),
            "overheads_reading_back": (overheads + more).tolist(),
            "call": call.tolist(),
            "spread": [
                max(timed[path].spread for path in CENTRAL) for timed in self._timed.values()
            ],
            **found,
        }

    def _seconds_of_shrinking(self, opened: Floats) -> Floats:
        """`[S, M]`: seconds to take a sample out of a batch, where one stops at every exit."""
        result = np.zeros_like(opened)
        exits = opened.shape[1]
        for row, size in enumerate(self.sizes):
            left = size - np.arange(exits)  # rows before each exit
            shrinks = (left > 1) & (np.arange(exits) < exits - 1)
            if not shrinks.any():
                continue
            whole = [np.interp(n, self.sizes, opened[:, m]) for m, n in enumerate(left)]
            more = (self._timed[size]["shrinking"].best - whole).clip(0)
            result[row] = np.where(shrinks, more, more[shrinks].mean())
            result[row, -1] = 0
        return result


def _alone(network: EarlyExitNetwork, policy: Policy) -> dict[str, Policy]:
    last = [policy.exits[-1]]
    try:
        network.keep_exits(last)
    except NetworkError:  # its heads read the logits of those before, and none can be dropped
        return {}
    return {"alone": plain_policy(network, last)}


def _with_history(network: EarlyExitNetwork, policy: Policy) -> dict[str, Policy]:
    reads_history = policy.scorer.reads_history or policy.answer.reads_history
    if reads_history or len(policy.exits) == 1:  # with a single exit nothing is decided
        return {}
    return {"history": policy_with_history(network, policy.exits)}


def _scores(network: EarlyExitNetwork, policy: Policy, inputs: Any) -> Array:  # noqa: ANN401
    """Stop scores `[n, M]` of all exits that the policy decides at."""
    device, decider = device_of(network), Decider(policy.answer, policy.scorer)
    parts = []
    with torch.inference_mode(), evaluating(network):
        samples = rows_of(inputs)
        for start in range(0, samples, 32):
            rows = np.arange(start, min(start + 32, samples))
            logits = network(moved(take(inputs, rows), device))[:, list(policy.exits)]
            parts.append(decider.scores(decider.so_far(as_numpy(logits.float()))))
    return np.concatenate(parts)


def _one_by_one(scores: Array) -> Array:
    """Thresholds `[M]` at which one sample stops at every exit, as long as two are left."""
    thresholds = np.full(scores.shape[1], NEVER)
    for exit_index in range(scores.shape[1] - 1):
        if len(scores) < 2:
            break
        second, leaves = scores[:, exit_index].argsort(kind="stable")[-2:]
        # Between the two, since another runtime rounds otherwise.
        thresholds[exit_index] = scores[[second, leaves], exit_index].mean(dtype=np.float64)
        scores = np.delete(scores, leaves, axis=0)
    return thresholds
