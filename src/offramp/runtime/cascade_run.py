"""One batch on its way through the models of a cascade: calls, retries, and who leaves when."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offramp.errors import ConfigError, NetworkError
from offramp.ledger.answers import Normalise, log_odds_of, same_form
from offramp.policy import Policy
from offramp.replay import SURE, needed_heads
from offramp.runtime.members import Member, Said, Visit
from offramp.scorers.base import HISTORIES
from offramp.thresholds.rule import rounded_up, stops

logger = logging.getLogger("offramp")


@dataclass(frozen=True)
class CallSettings:
    """How models are called; see `Cascade`."""

    concurrency: int = 8
    retries: int = 2
    backoff: float = 0.5
    normalise: Normalise | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.retries < 0 or self.backoff < 0:
            raise ConfigError(
                "`concurrency` must be at least 1, `retries` and `backoff` not negative, got "
                f"{self.concurrency}, {self.retries} and {self.backoff}"
            )


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
    """

    answer: Any
    confidence: float
    stage: int
    member: str
    cost: float
    why: str
    failures: tuple[str, ...] = ()


class CascadeRun:
    """One batch on its way through the models."""

    def __init__(
        self,
        members: Sequence[Member],
        inputs: Any,  # noqa: ANN401
        settings: CallSettings,
        until: float | None = None,
    ) -> None:
        self.members, self.inputs, self.settings, self.until = members, inputs, settings, until
        self.samples = count(inputs)
        self.errors: dict[str, Exception] = {}  # by model, the last one
        self.limit = asyncio.Semaphore(settings.concurrency)

    async def all_stages(self) -> list[list[Said | None]]:
        """What every stage says of every item; None where a model fails."""
        table: list[list[Said | None]] = [[] for _ in range(self.samples)]
        everyone = torch.arange(self.samples)
        for member in self.members:
            visit = member.visit(self.inputs, everyone)
            for stage in range(member.stages):
                for row, said in zip(table, await self._ask(visit, stage, everyone), strict=True):
                    row.append(said)
        return table

    async def answers(self, policy: Policy) -> list[CascadeAnswer]:
        """Ask until the policy stops each item, or time is up."""
        items = [_Item() for _ in range(self.samples)]
        left, first = torch.arange(self.samples), 0
        asked_of = _needed(policy)
        for member in self.members:
            numbers = [n for n in asked_of if first <= n < first + member.stages]
            visit = member.visit(self.inputs, left) if numbers and len(left) else None
            for number in numbers:
                late = number > asked_of[0] and self._is_late()
                if late or visit is None or not len(left):
                    break
                found = await self._ask(visit, number - first, left)
                asked = [items[row] for row in left.tolist()]
                place = policy.exits.index(number)
                self._take_in(policy, place, member.name, asked, found)
                decide(policy, place, asked)
                left = left[[not item.why for item in asked]]
            first += member.stages
        end = "deadline" if self._is_late() else "last"
        return [item.answer(policy, end) for item in items]

    def _take_in(
        self,
        policy: Policy,
        place: int,
        name: str,
        items: list["_Item"],
        found: list[Said | None],
    ) -> None:
        """Note what a stage said, and what it cost."""
        assert policy.cost_model is not None
        costs = policy.cost_model
        stated = float(costs.stages[place] + costs.heads[place])
        for item, said in zip(items, found, strict=True):
            if said is None:
                item.failures = (*item.failures, name)
            else:
                item.cost += stated if said.cost is None else said.cost
            item.add(said, place, name, self.settings.normalise)

    def _is_late(self) -> bool:
        return self.until is not None and time.monotonic() >= self.until

    async def _ask(self, visit: Visit, stage: int, rows: Tensor) -> list[Said | None]:
        """What a model says of these items; None where it fails even when tried again."""
        if visit.member.is_async:
            return await asyncio.gather(*(self._ask_one(visit, row) for row in rows.tolist()))
        try:
            return list(await self._tried(lambda: _soon(visit.batch(stage, rows))))
        except NetworkError:
            raise
        except Exception as error:
            self._note(visit.member.name, error)
            return [None] * len(rows)

    async def _ask_one(self, visit: Visit, row: int) -> Said | None:
        async with self.limit:
            left = None if self.until is None else max(0.0, self.until - time.monotonic())
            try:
                async with asyncio.timeout(left):
                    return Said.of(await self._tried(lambda: visit.item(row)))
            except NetworkError:
                raise
            except Exception as error:
                if left is None or not isinstance(error, TimeoutError):  # or time is up
                    self._note(visit.member.name, error)
                return None

    def _note(self, name: str, error: Exception) -> None:
        """Keep why a model failed, and say it once."""
        if name not in self.errors:
            logger.warning("`%s` of a cascade failed: %s", name, told(error))
        self.errors[name] = error

    async def _tried(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        """The result of a call, tried again with longer and longer pauses."""
        for attempt in range(self.settings.retries):
            try:
                return await call()
            except NetworkError:  # it answered, with something that no retry will change
                raise
            except Exception:
                await asyncio.sleep(self.settings.backoff * 2**attempt)
        return await call()


def _needed(policy: Policy) -> list[int]:
    """The stages to ask: all that were charged, when the policy was tuned.

    In seconds a stage that is closed costs nothing, unless a later one looks back at it.
    """
    assert policy.cost_model is not None
    if policy.cost_model.unit != "seconds":
        return list(policy.exits)
    looks_back = policy.scorer.reads_history, policy.answer.reads_history
    (needed,) = needed_heads(policy.thresholds[None], *looks_back).tolist()
    return [number for number, is_read in zip(policy.exits, needed, strict=True) if is_read]


def told(error: Exception) -> str:
    """An error of somebody else's in one line."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


async def _soon(value: Any) -> Any:  # noqa: ANN401
    return value


@dataclass
class _Item:
    """One item on its way.

    Attributes:
        said: By stage of the policy; where a model failed, what the one before said.
        forms: The answers as they are compared.
        names: The models that said it.
        predicted: The class, or the stage whose answer is given.
    """

    said: list[Said] = field(default_factory=list)
    forms: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    cost: float = 0.0
    failures: tuple[str, ...] = ()
    failed_now: bool = False
    why: str = ""
    predicted: int = -1
    confidence: float = float("nan")

    def add(self, said: Said | None, place: int, name: str, normalise: Normalise | None) -> None:
        """Take in a stage; where the first ones failed, they are taken to have agreed."""
        self.failed_now = said is None
        if said is None and not self.said:
            return
        name = name if said is not None else self.names[-1]
        said = said if said is not None else self.said[-1]
        while len(self.said) <= place:
            self.said.append(said)
            self.forms.append(same_form(said.answer, normalise))
            self.names.append(name)

    def rows(self, kind: str) -> Tensor:
        """`[m+1, K]`, the numbers of the stages so far, as a ledger has them."""
        if kind == "logits":
            logits = [said.logits for said in self.said if said.logits is not None]
            if len(logits) < len(self.said):
                raise NetworkError("this policy was fitted on logits, and a model gave none")
            return torch.stack(logits)
        table = []
        for stage, said in enumerate(self.said):
            try:
                odds = log_odds_of(float(said.confidence))  # type: ignore[arg-type]
            except (TypeError, ValueError):
                raise NetworkError(
                    f"`{self.names[stage]}` must give a confidence with its answer, a number in "
                    f"[0, 1], got {said.confidence!r}"
                ) from None
            first = self.forms.index(self.forms[stage]) if kind == "answers" else stage
            table.append([odds, first, *said.features])
        return torch.tensor(table, dtype=torch.float32)

    def answer(self, policy: Policy, end: str) -> CascadeAnswer:
        """What to return; `end` says why, if the policy did not stop it."""
        if not self.said:
            return CascadeAnswer(None, self.confidence, -1, "", self.cost, "failed", self.failures)
        given = self.predicted if policy.kind == "logits" else self.said[self.predicted].answer
        why = self.why or ("failed" if self.failed_now and end == "last" else end)
        stage, name = policy.exits[len(self.said) - 1], self.names[-1]
        return CascadeAnswer(given, self.confidence, stage, name, self.cost, why, self.failures)


def decide(policy: Policy, place: int, items: list[_Item]) -> None:
    """Say which items stop at this stage of the policy, and what each would answer now."""
    items = [item for item in items if item.said]
    if not items:
        return
    outputs = torch.stack([item.rows(policy.kind) for item in items])  # [n, m+1, K]
    with torch.inference_mode():
        history = HISTORIES[policy.kind](outputs, policy.answer.answers(outputs))
        confidences = history.confidences[:, -1].tolist()
        predictions = history.predictions[:, -1].tolist()
        stop = [False] * len(items)
        if place < len(policy.thresholds) - 1:
            limit = rounded_up(policy.thresholds, torch.float32)[place]
            stop = stops(policy.scorer.score_at(history).float(), limit).tolist()
    for item, predicted, sure, done in zip(items, predictions, confidences, stop, strict=True):
        item.predicted, item.confidence = predicted, sure
        # Nobody stops on the word of a model that has failed.
        if done and not item.failed_now:
            item.why = "sure" if sure >= SURE or policy.kind == "logits" else "hopeless"


def count(inputs: Any) -> int:  # noqa: ANN401
    """How many items a batch has."""
    if isinstance(inputs, str):
        raise ConfigError(f"a cascade takes a batch of items: [{inputs!r}], got a single text")
    if isinstance(inputs, Mapping):
        return len(next(iter(inputs.values())))
    return len(inputs)
