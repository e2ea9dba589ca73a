"""How a profile is measured: a real runner sends batches along chosen paths, and each is timed."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offramp.errors import NetworkError
from offramp.machine import device_of
from offramp.networks import EarlyExitNetwork
from offramp.networks.state import batch_size as rows_of
from offramp.networks.state import evaluating, take
from offramp.policy import Policy
from offramp.replay import exit_scores
from offramp.runtime.runner import network_of
from offramp.scorers import History
from offramp.timing.runners import (
    NEVER,
    TimedRunner,
    answered,
    batch_of,
    plain_policy,
    plainly,
    points_of,
    policy_with_history,
)
from offramp.timing.turns import Floats, Timed
from offramp.training.batches import moved

LONG = 1e9  # a deadline that never comes: with one, a runner reads its clock before every stage
WARM = 8  # samples, before a path is timed
CENTRAL = ("full", "open")  # paths whose seconds all shares rest on
DRAWS = 4  # samples per turn, as several batches where these are smaller
TEXTS = 16  # the same of texts, which differ in length


class Probes:
    """Batches of every size, and the paths on which they are timed.

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
            return batch_of(inputs, torch.arange(start, start + size) % samples)

        drawn = TEXTS if isinstance(inputs, Mapping) else DRAWS
        self._batches = {
            size: [rows(start, size) for start in range(0, max(size, drawn), size)]
            for size in sizes
        }
        never = torch.full((len(policy.exits),), NEVER, dtype=torch.float64)
        # Raises if the policy is another network's.
        kept = network_of(policy.with_points(points_of([never])).at_point(0), network)
        self.starts, self.last_start = kept.starts, kept.last_start
        scores = _scores(network, policy, rows(0, sizes[-1]))
        shrinking = {_shrinking(size): _one_by_one(scores[:size]) for size in sizes}
        points = {"open": never, "closed": never + torch.inf, "first": -never, **shrinking}
        self._points = list(points)
        own = policy.with_points(points_of(list(points.values()))).at_point(0)
        self.policies = {"own": own, **_alone(network, policy), **_with_history(network, policy)}
        self.answer_reads_history = policy.answer.reads_history

    def timed(self, runners: Mapping[str, TimedRunner]) -> dict[int, dict[str, Timed]]:
        """What to time at every batch size, by path; `runners` are those of `policies`."""
        return {size: self._paths(runners, size) for size in self.sizes}

    def _paths(self, runners: Mapping[str, TimedRunner], size: int) -> dict[str, Timed]:
        own, batches, warm = runners["own"], self._batches[size], max(1, WARM // size)
        paths = {"full": Timed(partial(plainly, own), batches, warm)}
        for name in ("alone", "history"):
            if name in runners:
                paths[name] = Timed(partial(answered, runners[name], deadline=LONG), batches, warm)
        for name in ("closed", "open", "first", "shrinking"):
            paths[name] = Timed(
                partial(answered, own, deadline=LONG),
                batches[:1] if name == "shrinking" else batches,
                warm,
                partial(own.set_budget, self._budget(name, size)),
            )
        return paths

    def _budget(self, name: str, size: int) -> float:
        """The budget that selects the operating point of a path."""
        point = _shrinking(size) if name == "shrinking" else name
        return (self._points.index(point) + 1) / len(self._points)


def _shrinking(size: int) -> str:
    """The name of the operating point at which a batch of this size shrinks."""
    return f"shrinking {size}"


def _alone(network: EarlyExitNetwork, policy: Policy) -> dict[str, Policy]:
    alone = plain_policy(network, [policy.exits[-1]])
    try:
        network_of(alone, network)
    except NetworkError:  # its heads read the logits of those before, and none can be dropped
        return {}
    return {"alone": alone}


def _with_history(network: EarlyExitNetwork, policy: Policy) -> dict[str, Policy]:
    reads_history = policy.scorer.reads_history or policy.answer.reads_history
    if reads_history or len(policy.exits) == 1:  # with a single exit nothing is decided
        return {}
    return {"history": policy_with_history(network, policy.exits)}


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


def _one_by_one(scores: Tensor) -> Tensor:
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


def figures_of(probes: Probes, timed: Mapping[int, Mapping[str, Timed]]) -> dict[str, Any]:
    """The figures of a profile, by the names of its attributes, from what was timed."""

    def best(path: str) -> Floats:
        return np.array([timed[size][path].best for size in probes.sizes])  # [S, stages]

    paths, sizes = timed[probes.sizes[0]], probes.sizes
    needed = probes.last_start  # the first stage that the network without exits runs
    opened, full = best("open"), best("full")[:, 0]
    # What comes after the exit of the last sample is a cost of samples that stop early, too.
    call = (best("first")[:, 0] - opened[:, 0]).clip(0, 0.9 * opened[:, -1])
    overheads = opened - best("closed")
    if probes.answer_reads_history:
        # Then all heads run, whether exits are open or not, and only their sum is known.
        extra = opened[:, needed:].sum(1) - full - call
        overheads[:] = (extra / max(1, opened.shape[1] - 1 - needed))[:, None]
    overheads = overheads.clip(0, 0.9 * opened)
    overheads[:, -1] = 0  # the last head is part of the last stage: it runs without exits, too
    stages = opened - overheads
    found: dict[str, Any] = {}
    if "alone" in paths:
        whole, pieces = best("alone")[:, 0], slice(needed, -1)
        longer = (stages[:, needed:].sum(1) - whole).clip(0)[:, None]
        cuts = (longer / max(1, stages[:, pieces].shape[1])).clip(0, 0.9 * stages[:, pieces])
        overheads[:, pieces] += cuts
        stages[:, pieces] -= cuts
    stages[:, 0] += call
    stages[:, -1] -= call
    if needed and "alone" in paths:
        found["entry"] = (whole - stages[:, needed:].sum(1)).clip(0).tolist()
    overheads += _seconds_of_shrinking(sizes, opened, [timed[n]["shrinking"].best for n in sizes])
    more = (best("history") - opened).clip(0) if "history" in paths else np.zeros_like(opened)
    return {
        "full": full.tolist(),
        "stages": stages.tolist(),
        "looks": overheads.tolist(),
        "looks_back": (overheads + more).tolist(),
        "call": call.tolist(),
        "spread": [max(timed[size][path].spread for path in CENTRAL) for size in sizes],
        **found,
    }


def _seconds_of_shrinking(
    sizes: Sequence[int], opened: Floats, shrinking: Sequence[Floats]
) -> Floats:
    """`[S, M]`: seconds to take a sample out of a batch, where one stops at every exit."""
    result = np.zeros_like(opened)
    exits = opened.shape[1]
    for row, size in enumerate(sizes):
        left = size - np.arange(exits)  # rows before each exit
        shrinks = (left > 1) & (np.arange(exits) < exits - 1)
        if not shrinks.any():
            continue
        whole = [np.interp(n, sizes, opened[:, m]) for m, n in enumerate(left)]
        more = (shrinking[row] - whole).clip(0)
        result[row] = np.where(shrinks, more, more[shrinks].mean())
        result[row, -1] = 0
    return result
