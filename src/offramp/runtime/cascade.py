"""`Cascade`: several models, one policy. Items leave as soon as they have their answer."""

import asyncio
import hashlib
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np

from offramp import check
from offramp.costs import UNITS
from offramp.errors import ConfigError, LedgerError, NetworkError
from offramp.ledger import Ledger
from offramp.ledger.answers import Normalise
from offramp.policy import Policy
from offramp.progress import Progress, showing
from offramp.runtime import recording
from offramp.runtime.calls import (
    FOUND,
    BackgroundLoop,
    Calls,
    CallSettings,
    driven,
    passes,
    unknown_cost,
)
from offramp.runtime.cascade_run import Answering, CascadeAnswer, PreparedPolicy, route
from offramp.runtime.members import Member, Response, count, picked, stacked, told_apart


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
        backoff: Seconds before the first retry; twice as many before each next one. What a
            server asks for with `Retry-After` is kept where it is more.
        timeout: Seconds after which a call is cut off, which is a failure. The thread of a
            synchronous model that hangs is left to itself.
        retry_on: Whether to try again after an exception; by default after lost connections,
            timeouts, and the states 408, 409, 429 and 5xx of HTTP.
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
        timeout: float | None = None,
        retry_on: Callable[[Exception], bool] = passes,
        normalise: Normalise | None = None,
    ) -> None:
        made = [each if isinstance(each, Member) else Member(each) for each in members]
        if sum(member.stages for member in made) < 2:
            raise ConfigError("a cascade needs at least two stages: two models, or more")
        check.one_of("unit", unit, UNITS)
        self.members, self.unit = told_apart(made), unit
        self.settings = CallSettings(
            concurrency, retries, backoff, timeout, retry_on, normalise, unit
        )
        for member in self.members:
            if member.costs is None and unit == "macs":
                member.count()
            known = "relative" if member.costs is None else member.costs.unit
            if known not in ("relative", unit):
                raise ConfigError(
                    f"the costs of `{member.name}` are in {known}, and the cascade counts in "
                    f"{unit}: say Cascade(..., unit={known!r}), and state all costs in it"
                )
        self._plan: PreparedPolicy | None = None
        self._here = Calls(self.settings, in_loop=False)
        self._calls: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Calls]
        self._calls, self._lock = weakref.WeakKeyDictionary(), Lock()
        self._loop: BackgroundLoop | None = None

    def close(self) -> None:
        """Cancel the calls that still run in the background, and end its thread.

        The cascade can be used afterwards; clients that belong to the old event loop cannot.
        Programs that end need not call it.
        """
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        *,
        path: str | Path | None = None,
        progress: bool | Progress = False,
    ) -> Ledger:
        """Ask all models about all items, and keep their responses as a ledger.

        A ledger of logits, if all models have them for the same classes; else one of answers.
        Where a call fails for good, its stage is masked: it repeats the one before. Items on which
        the first model fails are left out. What was billed for calls that failed counts.

        Args:
            data: `(inputs, labels)`, or a data set of `(input, label)`; labels may be None.
            split: As for `Ledger`; that of the data set by default.
            batch_size: How many items a synchronous model is asked about at once.
            groups: As for `Ledger`.
            path: A file of JSON lines to which every response is appended as it comes. What it
                has already is not asked again, except for calls that failed.
            progress: Whether progress is shown, on stderr; or an `offramp.progress.Progress`.

        Raises:
            LedgerError: A model fails on all items, or costs are not known.
            FileFormatError: The file holds something else.

        Warns:
            LedgerWarning: Calls failed for good, with the first reason.
        """
        inputs, labels = _inputs_and_labels(data)
        split = split or getattr(data, "split", None)
        if split is None:
            raise LedgerError("the data do not say which split they are; pass split='val', say")
        for member in self.members:
            if member.costs is None and self.unit == "macs":
                member.count(picked(inputs, np.arange(1)))
        ids = getattr(data, "sample_ids", None)
        numbered = range(count(inputs)) if ids is None else ids
        names = self.stage_names
        journal = None if path is None else recording.Journal(path, inputs, names, numbered)
        try:
            with showing(progress) as shown:
                table = self._recorded(inputs, batch_size, journal, shown)
        finally:
            if journal is not None:
                journal.close()
        kept = recording.usable_rows(table, names, journal)
        if len(kept) < len(table):
            ids = [numbered[row] for row in kept]
            labels = None if labels is None else [labels[row] for row in kept]
            groups = None if groups is None else [groups[row] for row in kept]
        table = recording.with_billed([table[row] for row in kept])
        known: dict[str, Any] = {
            "split": split,
            "network": self.fingerprint(),
            "groups": groups,
            "sample_ids": ids,
        }
        costs = recording.costs_of(self.members, self.unit, table)
        logits = recording.logits_of(table)
        if logits is not None:
            return Ledger(logits, labels, costs, **known)
        return Ledger.from_answers(
            [[each.answer for each in row] for row in table],
            confidence=recording.confidences_of(table),
            features=recording.features_of(table),
            labels=labels,
            costs=costs,
            normalise=self.settings.normalise,
            stage_names=names,
            **known,
        )

    def _recorded(
        self,
        inputs: Any,  # noqa: ANN401
        batch_size: int,
        journal: recording.Journal | None,
        progress: Progress,
    ) -> recording.Table:
        visits = route(self.members, range(self.num_stages))
        known = {} if journal is None else journal.known
        progress.start("recording", count(inputs) * self.num_stages, done=len(known))

        of_stage = [member for member in self.members for _ in range(member.stages)]

        def keep(row: int, stage: int, response: Response) -> None:
            # Multiply-accumulates are counted, seconds are measured, and failures may be free.
            nothing_states_it = response.cost is None and of_stage[stage].costs is None
            if nothing_states_it and not response.error and self.settings.unit not in FOUND:
                raise unknown_cost(of_stage[stage].name)
            if journal is not None:
                journal.add(row, stage, response)
            progress.advance()

        async def asked(here: Calls | None = None) -> recording.Table:
            calls = here or self._calls_here()
            found = recording.Recording(visits, inputs, calls, batch_size, known, keep)
            return await found.responses()

        if not self._may_wait and not any(visit.is_async for visit in visits):
            return driven(asked(self._here))
        return self._background().run(asked())

    async def arecord_item(
        self,
        item: Any,  # noqa: ANN401
        known: Mapping[int, Response] | None = None,
    ) -> list[Response]:
        """The responses of all stages to one item, on the caller's event loop.

        Args:
            item: As the models take it.
            known: Responses by stage, such as `CascadeAnswer.asked`, which are not asked again.
        """
        visits = route(self.members, range(self.num_stages))
        there = {(0, stage): response for stage, response in (known or {}).items()}
        asked = recording.Recording(visits, [item], self._calls_here(), 1, there)
        return (await asked.responses())[0]

    def check_policy(self, policy: Policy) -> None:
        """Raise where a policy cannot decide for this cascade.

        Raises:
            ConfigError, NotFittedError: It is no policy, or at no operating point.
            NetworkError: It was fitted on a ledger of other models.
        """
        check.instance("policy", policy, Policy, "a Policy, fitted on ledgers of this cascade")
        _ = policy.thresholds  # raises where there is no operating point
        is_beyond = bool(policy.exits) and policy.exits[-1] >= self.num_stages
        if is_beyond or policy.network not in (None, self.fingerprint()):
            names = ", ".join(dict.fromkeys(self.stage_names))
            raise NetworkError(
                "this policy was fitted for other models: it decides at the stages "
                f"{list(policy.exits)} of {policy.network or 'a ledger'}, and the cascade has "
                f"{self.num_stages}, of {names}: record this cascade, and fit it again"
            )

    def run(
        self,
        inputs: Any,  # noqa: ANN401
        policy: Policy,
        deadline: float | None = None,
    ) -> list[CascadeAnswer]:
        """Answer a batch; see `arun`, which is the same for programs that are async themselves.

        Async models are called on an event loop in a thread of the cascade, always the same one.
        """
        plan = self._prepared(policy)
        if plan.is_direct and deadline is None and not self._may_wait:
            return driven(Answering(plan, inputs, self._here).answers())
        return self._background().run(self.arun(inputs, policy, deadline))

    async def arun(
        self,
        inputs: Any,  # noqa: ANN401
        policy: Policy,
        deadline: float | None = None,
    ) -> list[CascadeAnswer]:
        """Answer a batch on the caller's event loop. Each item goes its own way.

        A client that belongs to an event loop, as most with open connections do, can be used by
        `run` and `record`, or by `arun` on one loop, but not by both.

        Args:
            inputs: An array, a tensor, a sequence of items, or a mapping of these.
            policy: Fitted on ledgers of this cascade, at an operating point.
            deadline: Seconds after which items are answered with what there is. Calls are
                cancelled, and threads of synchronous models left to themselves.

        Returns:
            An answer per item, in order. Where a model fails even when tried again, the item goes
            on with the next one, and is answered with what there was before.
        """
        plan, until = self._prepared(policy), None
        if deadline is not None:
            check.at_least("deadline", deadline, 0)
            until = time.monotonic() + deadline
        return await Answering(plan, inputs, self._calls_here(), until).answers()

    def _prepared(self, policy: Policy) -> PreparedPolicy:
        """What a policy asks; checked and prepared when it first comes."""
        plan = self._plan
        if plan is None or plan.policy is not policy or plan.decider is not policy.decider:
            self.check_policy(policy)
            self._plan = plan = PreparedPolicy(self.members, policy, self.settings.normalise)
        return plan

    @property
    def _may_wait(self) -> bool:
        """Whether calls can be cut off."""
        return self.settings.timeout is not None or any(m.timeout for m in self.members)

    def _calls_here(self) -> Calls:
        """The calls on the event loop that runs here."""
        return self._calls.setdefault(asyncio.get_running_loop(), Calls(self.settings))

    def _background(self) -> BackgroundLoop:
        with self._lock:
            if self._loop is None:
                self._loop = BackgroundLoop()
                weakref.finalize(self, self._loop.close)
            return self._loop

    def stream(
        self,
        items: Iterable[Any],
        policy: Policy,
        batch_size: int = 32,
        deadline: float | None = None,
    ) -> Iterator[CascadeAnswer]:
        """Answer items one after the other, in order, a batch at a time."""
        source = iter(items)
        while batch := list(islice(source, batch_size)):
            yield from self.run(stacked(batch), policy, deadline)

    async def astream(
        self, items: AsyncIterator[Any], policy: Policy, deadline: float | None = None
    ) -> AsyncIterator[CascadeAnswer]:
        """Answer items as they come, at most `concurrency` at once, in order.

        Each item has the time until the deadline for itself.
        """
        waiting: list[asyncio.Task[list[CascadeAnswer]]] = []
        async for item in items:
            waiting.append(asyncio.create_task(self.arun(stacked([item]), policy, deadline)))
            while len(waiting) >= self.settings.concurrency:
                yield (await waiting.pop(0))[0]
        for task in waiting:
            yield (await task)[0]


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
