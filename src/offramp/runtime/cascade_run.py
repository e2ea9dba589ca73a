"""One batch on its way through the models of a cascade: which items stop where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from offramp.arrays import Array
from offramp.decide import Decider
from offramp.errors import ConfigError, NetworkError
from offramp.ledger import History
from offramp.ledger.answers import log_odds_of, same_form
from offramp.policy import Policy
from offramp.runtime.member_failures import Calls, CallSettings
from offramp.runtime.members import Member, Response


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
        everyone = np.arange(self.samples)
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
        left, first = np.arange(self.samples), 0
        needed = _needed(policy)
        for member in self.members:
            numbers = [number for number in needed if first <= number < first + member.stages]
            run = member.start(self.inputs, left) if numbers and len(left) else None
            for number in numbers:
                late = number > needed[0] and self.calls.is_late
                if late or run is None or not len(left):
                    break
                found = await self.calls.responses(run, number - first, left)
                asked = [items[row] for row in left.tolist()]
                place = policy.exits.index(number)
                self._take_in(policy, place, member.name, asked, found)
                decide(policy.decider, place, asked)
                left = left[np.array([not item.why for item in asked])]
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
                item.fail(place, name)
            else:
                form = same_form(response.answer, self.settings.normalise)
                cost = stated if response.cost is None else float(response.cost)
                item.add(place, _Given(response, form, name), cost)


def _needed(policy: Policy) -> list[int]:
    """The stages to ask: all that were charged, when the policy was tuned.

    In seconds a stage that is closed costs nothing, unless a later one reads what it returned.
    """
    assert policy.cost_model is not None
    if policy.cost_model.unit != "seconds":
        return list(policy.exits)
    needed = policy.decider.needs_head
    return [stage for stage, is_needed in zip(policy.exits, needed, strict=True) if is_needed]


class _Given(NamedTuple):
    """What a model gave for an item."""

    response: Response
    form: Any  # the answer as answers are compared
    name: str  # of the model


@dataclass
class _Item:
    """One item on its way.

    Attributes:
        given: By stage of the policy; where a model has failed, what the one before gave.
        predicted: The class, or the stage whose answer is given.
    """

    given: list[_Given] = field(default_factory=list)
    cost: float = 0.0
    failures: tuple[str, ...] = ()
    failed_now: bool = False
    why: str = ""
    predicted: int = -1
    confidence: float = float("nan")

    def add(self, place: int, given: _Given, cost: float) -> None:
        """Take in what the model of a stage gave."""
        self.failed_now = False
        self.cost += cost
        self._fill(place, given)

    def fail(self, place: int, name: str) -> None:
        """Go on without the model of a stage, as if it had repeated what the one before gave."""
        self.failed_now = True
        self.failures = (*self.failures, name)
        if self.given:
            self._fill(place, self.given[-1])

    def _fill(self, place: int, given: _Given) -> None:
        # Stages that have failed from the start, or were not asked, are taken to have agreed.
        self.given += [given] * (place + 1 - len(self.given))

    def rows(self, history_type: type[History]) -> Array:
        """`[m+1, K]`, the numbers of the stages so far, as a ledger has them."""
        if history_type.has_logits:
            logits = [each.response.logits for each in self.given]
            if any(each is None for each in logits):
                raise NetworkError("this policy was fitted on logits, and a model gave none")
            return np.stack([each for each in logits if each is not None])
        forms = [each.form for each in self.given]
        table = []
        for stage, (response, form, name) in enumerate(self.given):
            try:
                odds = log_odds_of(float(response.confidence))  # type: ignore[arg-type]
            except (TypeError, ValueError):
                raise NetworkError(
                    f"`{name}` must give a confidence with its answer, a number in [0, 1], got "
                    f"{response.confidence!r}"
                ) from None
            first = forms.index(form) if "answers" in history_type.offers else stage
            table.append([odds, first, *response.features])
        return np.array(table, np.float32)

    def answer(self, policy: Policy, end: str) -> CascadeAnswer:
        """What to return; `end` says why, if the policy did not stop it."""
        if not self.given:
            return CascadeAnswer(None, self.confidence, -1, "", self.cost, "failed", self.failures)
        number = self.predicted
        has_logits = policy.history_type.has_logits
        answer = number if has_logits else self.given[number].response.answer
        why = self.why or ("failed" if self.failed_now and end == "last" else end)
        stage, name = policy.exits[len(self.given) - 1], self.given[-1].name
        return CascadeAnswer(answer, self.confidence, stage, name, self.cost, why, self.failures)


def decide(decider: Decider, place: int, items: list[_Item]) -> None:
    """Decide which items stop at this stage of the policy, and what each would answer now."""
    items = [item for item in items if item.given]
    if not items:
        return
    outputs = np.stack([item.rows(decider.history_type) for item in items])  # [n, m+1, K]
    stop = [False] * len(items)
    with np.errstate(all="ignore"):  # logits that overflow
        history = decider.so_far(outputs)
        confidences = history.confidences[:, -1].tolist()
        predictions = history.predictions[:, -1].tolist()
        if decider.is_scored[place]:
            stop = decider.stops(place, decider.score(history)).tolist()
    for item, predicted, sure, done in zip(items, predictions, confidences, stop, strict=True):
        item.predicted, item.confidence = predicted, sure
        # An item never stops at a model that has failed for it.
        if done and not item.failed_now:
            item.why = decider.why(place, sure)


def count(inputs: Any) -> int:  # noqa: ANN401
    """How many items a batch has."""
    if isinstance(inputs, str):
        raise ConfigError(f"a cascade takes a batch of items: [{inputs!r}], got a single text")
    if isinstance(inputs, Mapping):
        return len(next(iter(inputs.values())))
    return len(inputs)
