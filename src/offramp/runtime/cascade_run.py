"""One batch on its way through the models of a cascade: calls, retries, and who leaves when."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offramp.errors import ConfigError, NetworkError
from offramp.ledger.answers import Normalise, log_odds_of, same_form
from offramp.policy import Policy
from offramp.replay import SURE, needed_heads
from offramp.runtime.members import Calls, CallSettings, Member
from offramp.runtime.responses import Response
from offramp.scorers.base import HISTORIES
from offramp.thresholds.rule import rounded_up, stops

logger = logging.getLogger("offramp")


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
        self.members, self.inputs, self.settings = members, inputs, settings
        self.samples = count(inputs)
        self.calls = Calls(settings, until)

    async def all_stages(self) -> list[list[Response | None]]:
        """The response of every stage to every item; None where a model fails."""
        table: list[list[Response | None]] = [[] for _ in range(self.samples)]
        everyone = torch.arange(self.samples)
        for member in self.members:
            run = member.start(self.inputs, everyone)
            for stage in range(member.stages):
                found = await self.calls.responses(run, stage, everyone)
                for row, response in zip(table, found, strict=True):
                    row.append(response)
        return table

    async def answers(self, policy: Policy) -> list[CascadeAnswer]:
        """Ask until the policy stops each item, or time is up."""
        items = [_Item() for _ in range(self.samples)]
        left, first = torch.arange(self.samples), 0
        asked_of = _needed(policy)
        for member in self.members:
            numbers = [n for n in asked_of if first <= n < first + member.stages]
            run = member.start(self.inputs, left) if numbers and len(left) else None
            for number in numbers:
                late = number > asked_of[0] and self.calls.is_late
                if late or run is None or not len(left):
                    break
                found = await self.calls.responses(run, number - first, left)
                asked = [items[row] for row in left.tolist()]
                place = policy.exits.index(number)
                self._take_in(policy, place, member.name, asked, found)
                decide(policy, place, asked)
                left = left[[not item.why for item in asked]]
            first += member.stages
        end = "deadline" if self.calls.is_late else "last"
        return [item.answer(policy, end) for item in items]

    def _take_in(
        self,
        policy: Policy,
        place: int,
        name: str,
        items: list["_Item"],
        found: list[Response | None],
    ) -> None:
        """Keep the responses of a stage, and what they cost."""
        assert policy.cost_model is not None
        costs = policy.cost_model
        stated = float(costs.stages[place] + costs.heads[place])
        for item, response in zip(items, found, strict=True):
            if response is None:
                item.failures = (*item.failures, name)
            else:
                item.cost += stated if response.cost is None else response.cost
            item.add(response, place, name, self.settings.normalise)


def _needed(policy: Policy) -> list[int]:
    """The stages to ask: all that were charged, when the policy was tuned.

    In seconds a stage that is closed costs nothing, unless a later one reads what it returned.
    """
    assert policy.cost_model is not None
    if policy.cost_model.unit != "seconds":
        return list(policy.exits)
    reads_history = policy.scorer.reads_history, policy.answer.reads_history
    (needed,) = needed_heads(policy.thresholds[None], *reads_history).tolist()
    return [number for number, is_read in zip(policy.exits, needed, strict=True) if is_read]


@dataclass
class _Item:
    """One item on its way.

    Attributes:
        responses: By stage of the policy; where a model failed, that of the one before.
        forms: The answers as they are compared.
        names: The models that gave them.
        predicted: The class, or the stage whose answer is given.
    """

    responses: list[Response] = field(default_factory=list)
    forms: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    cost: float = 0.0
    failures: tuple[str, ...] = ()
    failed_now: bool = False
    why: str = ""
    predicted: int = -1
    confidence: float = float("nan")

    def add(
        self, response: Response | None, place: int, name: str, normalise: Normalise | None
    ) -> None:
        """Take in a stage; where the first ones failed, they are taken to have agreed."""
        self.failed_now = response is None
        if response is None and not self.responses:
            return
        name = name if response is not None else self.names[-1]
        response = response if response is not None else self.responses[-1]
        while len(self.responses) <= place:
            self.responses.append(response)
            self.forms.append(same_form(response.answer, normalise))
            self.names.append(name)

    def rows(self, kind: str) -> Tensor:
        """`[m+1, K]`, the numbers of the stages so far, as a ledger has them."""
        if kind == "logits":
            logits = [each.logits for each in self.responses if each.logits is not None]
            if len(logits) < len(self.responses):
                raise NetworkError("this policy was fitted on logits, and a model gave none")
            return torch.stack(logits)
        table = []
        for stage, response in enumerate(self.responses):
            try:
                odds = log_odds_of(float(response.confidence))  # type: ignore[arg-type]
            except (TypeError, ValueError):
                raise NetworkError(
                    f"`{self.names[stage]}` must give a confidence with its answer, a number in "
                    f"[0, 1], got {response.confidence!r}"
                ) from None
            first = self.forms.index(self.forms[stage]) if kind == "answers" else stage
            table.append([odds, first, *response.features])
        return torch.tensor(table, dtype=torch.float32)

    def answer(self, policy: Policy, end: str) -> CascadeAnswer:
        """What to return; `end` says why, if the policy did not stop it."""
        if not self.responses:
            return CascadeAnswer(None, self.confidence, -1, "", self.cost, "failed", self.failures)
        given = (
            self.predicted if policy.kind == "logits" else self.responses[self.predicted].answer
        )
        why = self.why or ("failed" if self.failed_now and end == "last" else end)
        stage, name = policy.exits[len(self.responses) - 1], self.names[-1]
        return CascadeAnswer(given, self.confidence, stage, name, self.cost, why, self.failures)


def decide(policy: Policy, place: int, items: list[_Item]) -> None:
    """Decide which items stop at this stage of the policy, and what each would answer now."""
    items = [item for item in items if item.responses]
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
        # An item never stops at a model that has failed for it.
        if done and not item.failed_now:
            item.why = "sure" if sure >= SURE or policy.kind == "logits" else "hopeless"


def count(inputs: Any) -> int:  # noqa: ANN401
    """How many items a batch has."""
    if isinstance(inputs, str):
        raise ConfigError(f"a cascade takes a batch of items: [{inputs!r}], got a single text")
    if isinstance(inputs, Mapping):
        return len(next(iter(inputs.values())))
    return len(inputs)
