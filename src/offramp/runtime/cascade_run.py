"""Items on their way through the models of a cascade, each by itself: none waits for another.

`Traffic` asks the models, `Answering` decides after each of them who goes on. Synchronous models
get the items that came while they were busy as one batch.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from offramp.decide import Decider
from offramp.errors import NetworkError
from offramp.ledger import History
from offramp.ledger.answers import UNSTATED, Normalise, log_odds_of, same_form
from offramp.policy import Policy
from offramp.runtime.calls import Calls, LateError
from offramp.runtime.members import Member, Response, count


@dataclass(frozen=True)
class CascadeAnswer:
    """The answer to one item.

    Attributes:
        answer: Of any kind; None where every model failed.
        confidence: As the answer states it.
        stage: The number of the stage that answered; -1 where none did.
        member: The name of its model.
        cost: What was paid for this item, in the unit of the cascade.
        why: `sure`, `hopeless`, `last`, `deadline`, or `failed` where a model failed at the end.
        failures: Names of models that failed on this item.
        score: The last stop score; NaN where none was computed.
        asked: The responses by stage, of the stages that were asked.
    """

    answer: Any
    confidence: float
    stage: int
    member: str
    cost: float
    why: str
    failures: tuple[str, ...] = ()
    score: float = field(default=float("nan"), compare=False)
    asked: Mapping[int, Response] = field(default_factory=dict, compare=False, repr=False)


class Visit(NamedTuple):
    """A model, and which of its stages are asked."""

    number: int  # of the visit
    member: Member
    is_async: bool
    stages: tuple[tuple[int, int], ...]  # the number of the stage in the cascade, and in the model


def route(members: Sequence[Member], wanted: Sequence[int]) -> tuple[Visit, ...]:
    """The models to ask for some stages of a cascade, in order."""
    found: list[Visit] = []
    first = 0
    for member in members:
        stages = [(n, n - first) for n in wanted if first <= n < first + member.stages]
        if stages:
            found.append(Visit(len(found), member, member.is_async, tuple(stages)))
        first += member.stages
    return tuple(found)


class Traffic:
    """The items of one batch, each on its own way through the models.

    Args:
        visits: The models in the order in which they are asked.
        inputs: The batch.
        calls: Of the models.
        until: The time of `time.monotonic` at which calls are cut off; None: never.
        most: The largest batch that a synchronous model gets; None: without a limit.
    """

    def __init__(
        self,
        visits: Sequence[Visit],
        inputs: Any,  # noqa: ANN401
        calls: Calls,
        until: float | None = None,
        most: int | None = None,
    ) -> None:
        self.visits, self.inputs, self.calls = visits, inputs, calls
        self.until, self.samples = until, count(inputs)
        self._most = most or max(self.samples, 1)
        self._waiting: list[set[int]] = [set() for _ in visits]
        self._busy = [asyncio.Lock() for _ in visits] if calls.in_loop else []

    def needs(self, visit: Visit, row: int) -> bool:
        """Whether an item is to be asked about."""
        raise NotImplementedError

    def take_in(self, stage: int, name: str, rows: list[int], found: Sequence[Response]) -> None:
        """What a stage responded to these items."""
        raise NotImplementedError

    def end(self, rows: list[int]) -> None:
        """The time for these items is up."""

    def pay(self, row: int, response: Response) -> None:
        """Pay for a response that came too late to be read."""

    async def finish(self) -> None:
        """Ask until no item needs anything more."""
        if not self.calls.in_loop:
            for start in range(0, self.samples, self._most):
                for visit in self.visits:
                    await self._visit(visit, range(start, min(start + self._most, self.samples)))
            return
        try:
            async with asyncio.TaskGroup() as group:
                for row in range(self.samples):
                    group.create_task(self._go(row))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _go(self, row: int) -> None:
        """One item's way."""
        for visit in self.visits:
            if not self.needs(visit, row):
                continue
            if visit.number and self.until is not None and time.monotonic() >= self.until:
                self.end([row])
                return
            if not visit.is_async:
                await self._in_batch(visit, row)
            elif visit.member.at_once > 1:
                await self._sample(visit, row)
            else:
                await self._visit(visit, [row])

    async def _in_batch(self, visit: Visit, row: int) -> None:
        """Visit a model that takes one batch at a time, with all items that wait for it, too."""
        waiting = self._waiting[visit.number]
        waiting.add(row)
        await asyncio.sleep(0)  # whoever comes in the same step joins the batch
        async with self._busy[visit.number]:
            while row in waiting:
                batch = sorted(waiting)[: self._most]
                waiting.difference_update(batch)
                await self._visit(visit, batch)

    async def _visit(self, visit: Visit, rows: Sequence[int]) -> None:
        """Ask the stages of a model about some items, as long as they need it."""
        run, calls = None, self.calls
        for stage, own_stage in visit.stages:
            rows = [row for row in rows if self.needs(visit, row)]
            if not rows:
                return
            places = np.array(rows)
            run = run or visit.member.start(self.inputs, places)
            try:
                if visit.is_async:
                    found = [await calls.item(run, rows[0], self.until)]
                else:
                    found = await calls.batch(run, own_stage, places, self.until)
            except LateError:
                self.end(rows)
                return
            self.take_in(stage, visit.member.name, rows, found)

    async def _sample(self, visit: Visit, row: int) -> None:
        """Ask a model for several answers to an item at once, until it needs no more of them.

        They are read in the order in which they were asked for: those that come first are not
        taken first, since quick answers may be right more often, or less.
        """
        run = visit.member.start(self.inputs, np.array([row]))
        tasks: deque[asyncio.Task[Response]] = deque()
        try:
            for number, (stage, _) in enumerate(visit.stages):
                ahead = min(visit.member.at_once, len(visit.stages) - number)
                while len(tasks) < ahead:
                    call = self.calls.item(run, row, self.until)
                    tasks.append(asyncio.create_task(call))
                self.take_in(stage, visit.member.name, [row], [await tasks.popleft()])
                if not self.needs(visit, row):
                    return
        except LateError:
            self.end([row])
        finally:
            for task in tasks:
                task.cancel()
            for late in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(late, Response):  # it was there already
                    self.pay(row, late)


class PreparedPolicy:
    """What a policy asks of a cascade, prepared once.

    Args:
        members: Of the cascade.
        policy: At an operating point.
        normalise: Brings an answer into the form that is compared.
    """

    def __init__(
        self, members: Sequence[Member], policy: Policy, normalise: Normalise | None
    ) -> None:
        costs = policy.cost_model
        assert costs is not None, "a policy with an operating point is fitted"
        self.policy, self.decider, self.normalise = policy, policy.decider, normalise
        self.visits = route(members, _needed(policy, self.decider))
        self.place = {stage: place for place, stage in enumerate(policy.exits)}
        self.stated = (costs.stages + costs.heads).tolist()
        self.is_direct = not any(visit.is_async for visit in self.visits)


def _needed(policy: Policy, decider: Decider) -> list[int]:
    """The stages to ask: all that were charged, when the policy was tuned.

    In seconds a stage that is closed costs nothing, unless a later one reads what it returned.
    """
    assert policy.cost_model is not None
    if policy.cost_model.unit != "seconds":
        return list(policy.exits)
    needed = zip(policy.exits, decider.needs_head, strict=True)
    return [stage for stage, is_needed in needed if is_needed]


class Answering(Traffic):
    """Items that leave as soon as the policy stops them."""

    def __init__(
        self,
        plan: PreparedPolicy,
        inputs: Any,  # noqa: ANN401
        calls: Calls,
        until: float | None = None,
    ) -> None:
        super().__init__(plan.visits, inputs, calls, until)
        self._plan = plan
        self._items = [_Item() for _ in range(self.samples)]

    def needs(self, visit: Visit, row: int) -> bool:
        """Whether an item has not stopped."""
        return not self._items[row].why

    def take_in(self, stage: int, name: str, rows: list[int], found: Sequence[Response]) -> None:
        """Keep the responses of a stage and what they cost, and decide who stops."""
        plan, items = self._plan, [self._items[row] for row in rows]
        place = plan.place[stage]
        for item, response in zip(items, found, strict=True):
            item.asked[stage] = response
            if response.error:
                item.fail(place, name, response, plan.decider.history_type)
            else:
                item.add(place, name, response, plan)
        decide(plan.decider, place, items)

    def end(self, rows: list[int]) -> None:
        """Answer with what there is."""
        for row in rows:
            self._items[row].why = "deadline"

    def pay(self, row: int, response: Response) -> None:
        """Pay for a response that nobody read."""
        item = self._items[row]
        item.cost += self._plan.stated[len(item.table)] if response.cost is None else response.cost

    async def answers(self) -> list[CascadeAnswer]:
        """The answers to all items, in order."""
        await self.finish()
        return [item.answer(self._plan) for item in self._items]


@dataclass(slots=True)
class _Item:
    """One item on its way.

    Attributes:
        table: By stage of the policy, the numbers of a ledger; where a model has failed, those of
            the stage before.
        given: By stage of the policy: the answer, and the name of the model.
        forms: The answers as they are compared.
    """

    table: list[Any] = field(default_factory=list)
    given: list[tuple[Any, str]] = field(default_factory=list)
    forms: list[Any] = field(default_factory=list)
    asked: dict[int, Response] = field(default_factory=dict)
    cost: float = 0.0
    failures: tuple[str, ...] = ()
    failed_now: bool = False
    why: str = ""
    predicted: int = -1
    confidence: float = float("nan")
    score: float = float("nan")

    def add(self, place: int, name: str, response: Response, plan: PreparedPolicy) -> None:
        """Take in what the model of a stage gave."""
        self.failed_now = False
        self.cost += plan.stated[place] if response.cost is None else float(response.cost)
        read = plan.decider.history_type
        # Stages that have failed from the start, or were not asked, are taken to have agreed.
        stages = range(len(self.table), place + 1)
        if read.has_logits:
            if response.logits is None:
                raise NetworkError("this policy was fitted on logits, and a model gave none")
            self.table += [response.logits for _ in stages]
        else:
            form = same_form(response.answer, plan.normalise)
            known = "answers" in read.offers
            first = self.forms.index(form) if form in self.forms else len(self.forms)
            odds = _log_odds(name, response, plan.decider.votes)
            self.table += [
                [odds, first if known else stage, *response.features] for stage in stages
            ]
            self.forms += [form for _ in stages]
        self.given += [(response.answer, name) for _ in stages]

    def fail(self, place: int, name: str, response: Response, read: type[History]) -> None:
        """Go on without the model of a stage, as if it had repeated what the one before gave."""
        self.failed_now = True
        self.failures = (*self.failures, name)
        self.cost += response.cost or 0.0
        for stage in range(len(self.table), place + 1) if self.table else ():
            row = self.table[-1]
            alone = not read.has_logits and "answers" not in read.offers
            self.table.append([row[0], stage, *row[2:]] if alone else row)
            self.given.append(self.given[-1])
            self.forms += self.forms[-1:]

    def answer(self, plan: PreparedPolicy) -> CascadeAnswer:
        """What to return."""
        if not self.given:
            why = self.why or "failed"
            return CascadeAnswer(
                None, self.confidence, -1, "", self.cost, why, self.failures, asked=self.asked
            )
        if self.why in ("", "deadline"):
            with np.errstate(all="ignore"):
                _settle([self], plan.decider.so_far(np.array([self.table], np.float32)))
        why = self.why or ("failed" if self.failed_now else "last")
        has_logits = plan.decider.history_type.has_logits
        answer = self.predicted if has_logits else self.given[self.predicted][0]
        stage, name = plan.policy.exits[len(self.given) - 1], self.given[-1][1]
        ends = why, self.failures, self.score, self.asked
        return CascadeAnswer(answer, self.confidence, stage, name, self.cost, *ends)


def _log_odds(name: str, response: Response, votes: bool) -> float:
    stated = UNSTATED if votes and response.confidence is None else response.confidence
    try:
        return log_odds_of(float(stated))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise NetworkError(
            f"`{name}` must give a confidence with its answer, a number in [0, 1], got "
            f"{response.confidence!r}"
        ) from None


def decide(decider: Decider, place: int, items: list[_Item]) -> None:
    """Decide which items stop at this stage of the policy, and what these answer."""
    # An item never stops at a model that has failed for it.
    items = [item for item in items if not item.failed_now]
    is_last = place == decider.last
    if not items or not (is_last or decider.is_scored[place]):
        return
    with np.errstate(all="ignore"):  # logits that overflow
        history = decider.so_far(np.array([item.table for item in items], np.float32))
        if not is_last:
            scores = decider.score(history)
            for item, score in zip(items, scores.tolist(), strict=True):
                item.score = score
            stop = decider.stops(place, scores)
            if not stop.any():
                return
            if not stop.all():
                stop = np.flatnonzero(stop)
                items, history = [items[row] for row in stop], history.take(stop)
        _settle(items, history)
    for item in items:
        item.why = decider.why(place, item.confidence)


def _settle(items: Sequence[_Item], history: History) -> None:
    """Keep what items would answer now, and how sure they are."""
    confidences = history.confidences[:, -1].tolist()
    predictions = history.predictions[:, -1].tolist()
    for item, confidence, predicted in zip(items, confidences, predictions, strict=True):
        item.confidence, item.predicted = confidence, predicted
