"""`Cascade`: several models, one policy. Items leave as soon as they have their answer."""

import asyncio
import hashlib
import math
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, islice
from typing import Any, TypeVar

import numpy as np

from offramp import check
from offramp.arrays import Array
from offramp.batch_times import BatchTimes
from offramp.costs import UNITS, Costs
from offramp.errors import ConfigError, LedgerError, NetworkError
from offramp.ledger import Ledger
from offramp.ledger.answers import Normalise
from offramp.policy import Policy
from offramp.runtime.cascade_run import CascadeAnswer, CascadeRun, count
from offramp.runtime.member_failures import CallSettings, carried, check_recorded
from offramp.runtime.members import Member, Response, picked, stacked

Result = TypeVar("Result")


class Cascade:
    """Several models, from the cheapest to the best, of which each item asks as few as it needs.

    `cascade.record(data)` asks all of them and makes the ledger that policies are fitted on;
    `cascade.run(inputs, policy)` answers, and items really leave. Budgets are shares of what
    the last model alone costs.

    Args:
        members: The models, or `Member`s of them, with their costs.
        unit: Of the costs: `dollars`, `tokens`, `seconds`, `macs` or `relative`. With `macs` those
            of torch modules are counted where they are not stated; with `seconds`, `measure` times
            them.
        concurrency: How many calls of async models may run at once.
        retries: How often a call that fails is tried again.
        backoff: Seconds before the first retry; twice as many before each next one.
        normalise: Brings an answer into the form that is compared.

    Example:
        >>> def quick(batch):  # an answer and a confidence for each item
        ...     return [(len(text) > 4, 0.9 if len(text) != 5 else 0.55) for text in batch]
        >>> def slow(batch):
        ...     return [(text.startswith("long"), 0.99) for text in batch]
        >>> cascade = Cascade([Member(quick, cost=1.0), Member(slow, cost=9.0)], unit="dollars")
        >>> words = ["long word", "abc", "tiny!", "b"] * 30
        >>> ledger = cascade.record((words, [w.startswith("long") for w in words]), split="all")
        >>> held_out, val, test = ledger.partition()
        >>> from offramp import MaxProbability, Policy
        >>> policy = Policy(MaxProbability()).fit(held_out).tune(val).at(budget=0.5)
        >>> [(found.answer, found.member) for found in cascade.run(["abc", "tiny!"], policy)]
        [(False, 'quick'), (False, 'slow')]
    """

    def __init__(
        self,
        members: Sequence[Any],
        *,
        unit: str = "relative",
        concurrency: int = 8,
        retries: int = 2,
        backoff: float = 0.5,
        normalise: Normalise | None = None,
    ) -> None:
        made = [each if isinstance(each, Member) else Member(each) for each in members]
        if sum(member.stages for member in made) < 2:
            raise ConfigError("a cascade needs at least two stages: two models, or more")
        check.one_of("unit", unit, UNITS)
        self.members, self.unit = made, unit
        self.settings = CallSettings(concurrency, retries, backoff, normalise)
        for member in made:
            if member.costs is None and unit == "macs":
                member.count()
            known = "relative" if member.costs is None else member.costs.unit
            if known not in ("relative", unit):
                raise ConfigError(
                    f"the costs of `{member.name}` are in {known}, and the cascade counts in "
                    f"{unit}: say Cascade(..., unit={known!r}), and state all costs in it"
                )

    @property
    def num_stages(self) -> int:
        """How often an item can be answered."""
        return sum(member.stages for member in self.members)

    @property
    def stage_names(self) -> list[str]:
        """The model of each stage."""
        return [member.name for member in self.members for _ in range(member.stages)]

    def fingerprint(self) -> str:
        """Tells this cascade from others: weights where models have some, and names."""
        text = "\n".join(member.identity for member in self.members)
        return "cascade-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def measure(
        self,
        inputs: Any,  # noqa: ANN401
        rounds: int = 3,
        clock: Callable[[], float] = time.perf_counter,
    ) -> "Cascade":
        """Time every model on a batch, and take the seconds per item as costs.

        Parts of the batch are timed too: the second model gets what the first one leaves over, and
        half of a batch takes more than half of the time. For the exits of a network alone,
        `offramp.profile` does the same.

        Args:
            inputs: A batch as the cascade takes it, of the size that it will get.
            rounds: The fastest of so many counts.
            clock: Seconds; `time.process_time` on a machine that others use, with one thread.
        """
        if any(member.is_async for member in self.members):
            raise ConfigError("async models wait for others: state what their calls cost instead")
        if not count(inputs):
            raise ConfigError("measure models on a batch of the size that they will get, got none")
        self.unit = "seconds"
        for member in self.members:
            member.measure(inputs, count(inputs), rounds, clock)
        return self

    def record(
        self,
        data: Any,  # noqa: ANN401 - (inputs, labels) or a data set
        split: str | None = None,
        batch_size: int = 256,
        groups: Sequence[Any] | None = None,
    ) -> Ledger:
        """Ask all models about all items, and keep their responses as a ledger.

        A ledger of logits, if all models have them for the same classes; else one of answers. A
        model that fails repeats the response of the one before.

        Args:
            data: `(inputs, labels)`, or a data set of `(input, label)`; labels may be None.
            split: As for `Ledger`; that of the data set by default.
            batch_size: How many items are asked about at once.
            groups: As for `Ledger`.

        Raises:
            LedgerError: The first model fails on an item, or costs are not known.
        """
        inputs, labels = _inputs_and_labels(data)
        split = split or getattr(data, "split", None)
        if split is None:
            raise LedgerError("the data do not say which split they are; pass split='val', say")
        for member in self.members:
            if member.costs is None and self.unit == "macs":
                member.count(picked(inputs, np.arange(1)))
        table: list[list[Response | None]] = []
        errors: dict[str, Exception] = {}
        for start in range(0, count(inputs), batch_size):
            rows = np.arange(start, min(start + batch_size, count(inputs)))
            run = CascadeRun(self.members, picked(inputs, rows), self.settings)
            table += _finished(run.all_stages())
            errors |= run.calls.errors
        check_recorded(table, self.stage_names, errors)
        ids = getattr(data, "sample_ids", None)
        known: dict[str, Any] = {
            "split": split,
            "network": self.fingerprint(),
            "groups": groups,
            "sample_ids": ids,
        }
        costs = self._costs(table)
        if _all_logits(table):
            logits = np.array([carried([_logits(s) for s in row]) for row in table])
            return Ledger(logits, labels, costs, **known)
        return Ledger.from_answers(
            [[None if each is None else each.answer for each in row] for row in table],
            confidence=[[None if s is None else s.confidence for s in row] for row in table],
            features=_features(table),
            labels=labels,
            costs=costs,
            normalise=self.settings.normalise,
            **known,
        )

    def check_policy(self, policy: Policy) -> None:
        """Raise where a policy cannot decide for this cascade.

        Raises:
            ConfigError, NotFittedError: It is no policy, or at no operating point.
            NetworkError: It was fitted on a ledger of other models.
        """
        check.instance("policy", policy, Policy, "a Policy, fitted on ledgers of this cascade")
        _ = policy.thresholds  # raises where there is no operating point
        if policy.exits and policy.exits[-1] >= self.num_stages:
            raise NetworkError(
                f"this policy was fitted for stage {policy.exits[-1]}, and the cascade has "
                f"{self.num_stages}"
            )
        if policy.network not in (None, self.fingerprint()):
            raise NetworkError(
                "this policy was fitted on a ledger of other models: record this cascade, and fit "
                "it again"
            )

    def run(
        self,
        inputs: Any,  # noqa: ANN401
        policy: Policy,
        deadline: float | None = None,
    ) -> list[CascadeAnswer]:
        """Answer a batch; see `arun`, which is the same for programs that are async themselves."""
        return _finished(self.arun(inputs, policy, deadline))

    async def arun(
        self,
        inputs: Any,  # noqa: ANN401
        policy: Policy,
        deadline: float | None = None,
    ) -> list[CascadeAnswer]:
        """Answer a batch, model by model; items that stop are not asked about again.

        Args:
            inputs: An array, a tensor, a sequence of items, or a mapping of these.
            policy: Fitted on ledgers of this cascade, at an operating point.
            deadline: Seconds after which items are answered with what there is. Calls of async
                models are cancelled; other models are waited for. The first model always runs.

        Returns:
            An answer per item, in order. Where a model fails even when tried again, the item goes
            on with the next one, and is answered with what there was before.
        """
        self.check_policy(policy)
        if deadline is not None:
            check.at_least("deadline", deadline, 0)
        until = None if deadline is None else time.monotonic() + deadline
        return await CascadeRun(self.members, inputs, self.settings, until).answers(policy)

    def stream(
        self, items: Iterable[Any], policy: Policy, batch_size: int = 32
    ) -> Iterator[CascadeAnswer]:
        """Answer items one after the other, in order, a batch at a time."""
        source = iter(items)
        while batch := list(islice(source, batch_size)):
            yield from self.run(stacked(batch), policy)

    async def astream(
        self, items: AsyncIterator[Any], policy: Policy, deadline: float | None = None
    ) -> AsyncIterator[CascadeAnswer]:
        """Answer items as they come, each by itself, at most `concurrency` at once, in order."""
        waiting: list[asyncio.Task[list[CascadeAnswer]]] = []
        async for item in items:
            waiting.append(asyncio.create_task(self.arun(stacked([item]), policy, deadline)))
            while len(waiting) >= self.settings.concurrency:
                yield (await waiting.pop(0))[0]
        for task in waiting:
            yield (await task)[0]

    def _costs(self, table: list[list[Response | None]]) -> Costs | BatchTimes:
        """Of every stage and item; a call's own cost counts before the model's."""
        parts = [_stages_and_heads(member) for member in self.members]
        stages, heads = map(np.concatenate, zip(*parts, strict=True))  # [M]
        own = np.array(
            [
                [math.nan if each is None or each.cost is None else each.cost for each in row]
                for row in table
            ]
        )
        paid = np.where(np.isnan(own), heads, own)  # [N, M]
        for name, costs in zip(self.stage_names, paid.T, strict=True):
            if np.isnan(costs).any():
                raise LedgerError(
                    f"what `{name}` costs is not known: give Member(..., cost=...), return a cost "
                    "with each answer, or time all models with cascade.measure(inputs)"
                )
        # The last model starts afresh, whatever was run before.
        alone = stages[-self.members[-1].stages :].sum() + paid[:, -1]
        if np.isnan(own).all():
            reference = float(alone[0])
            times = self._batch_times(reference)
            return times or Costs(stages, heads, reference, self.unit, self._starts)
        return Costs(np.broadcast_to(stages, paid.shape), paid, alone, self.unit, self._starts)

    def _batch_times(self, reference: float) -> BatchTimes | None:
        """Of every stage as batches shrink, if that is known of all models."""
        known = [member.batch_times for member in self.members]
        times = [each for each in known if each is not None]
        if len(times) < len(known) or len({each.stages.shape[1] for each in times}) > 1:
            return None
        stages = np.concatenate([each.stages for each in times])
        heads = np.concatenate([each.heads for each in times])
        return BatchTimes(stages, heads, reference, starts=self._starts)

    @property
    def _starts(self) -> tuple[int, ...]:
        """The first stage of every model but the first one."""
        return tuple(accumulate(member.stages for member in self.members))[:-1]


def _inputs_and_labels(data: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """Inputs as one batch, and labels, from a pair or a data set."""
    if isinstance(data, tuple) and len(data) == 2:
        return data
    pairs = [data[number] for number in range(len(data))]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise LedgerError(
            "a cascade records (inputs, labels), or a data set of such pairs; without labels: "
            "(inputs, None)"
        )
    inputs, labels = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return stacked(inputs), labels


def _stages_and_heads(member: Member) -> tuple[Array, Array]:
    """What its stages and heads cost, each `[M]`; NaN for heads whose costs are not known."""
    if member.costs is not None:
        return member.costs.stages, member.costs.heads
    nothing = np.zeros(member.stages)
    return nothing, nothing + np.nan


def _all_logits(table: list[list[Response | None]]) -> bool:
    """Whether all models give logits of the same classes."""
    sizes = {each.logits is not None and len(each.logits) for row in table for each in row if each}
    return len(sizes) == 1 and False not in sizes


def _logits(response: Response | None) -> Array | None:
    return None if response is None else response.logits


def _features(table: list[list[Response | None]]) -> Any:  # noqa: ANN401
    """`[N, M, F]`, or None where there are none; zero where a call has failed."""
    widths = {len(each.features) for row in table for each in row if each is not None}
    if widths == {0}:
        return None
    if len(widths) > 1:
        raise LedgerError(f"all models must give as many features, got {sorted(widths)}")
    (width,) = widths
    return np.array(
        [[(0.0,) * width if each is None else each.features for each in row] for row in table]
    )


def _finished(call: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine; in a thread of its own where a loop runs, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(call)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, call).result()
