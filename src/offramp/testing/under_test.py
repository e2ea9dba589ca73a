"""An answer or a scorer under test: its fits, which all checks share, and what it is run on."""

import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from offramp import synthetic
from offramp.answers import Answer, CurrentExit
from offramp.component import Component
from offramp.costs import Costs
from offramp.ledger import Ledger
from offramp.policy import Policy
from offramp.scorers import History, MaxProbability, Scorer

SAMPLES = 240
EXITS = 4
SHOWN = 48  # test samples that a component is run on


class ComponentUnderTest:
    """A component with its fits; it is copied, never fitted itself.

    Attributes:
        component: An answer or a scorer.
        fitted: A fitted copy.
        returned: What its `fit` returned.
        changed: Names of the settings that `fit` changed.
        data_kept: Whether `fit` left logits and labels unchanged.
    """

    base: type[Answer] | type[Scorer]
    exits: range  # at which it runs
    returned: object
    changed: list[str]
    data_kept: bool

    def __init__(self, component: Any) -> None:  # noqa: ANN401 - which is checked first
        self.component = component

    @cached_property
    def ledgers(self) -> dict[str, Ledger]:
        """Three synthetic splits with four exits and eight classes, in float32."""
        return synthetic.ledgers(seed=0, samples=SAMPLES, exits=EXITS, classes=8)

    @cached_property
    def logits(self) -> Tensor:
        """`[n, M, K]` float32: what it is run on."""
        return self.ledgers["test"].logits[:SHOWN]

    @cached_property
    def fitted(self) -> Any:  # noqa: ANN401
        """A fitted copy."""
        ledger, fresh = self.ledgers["held_out"], self.component.clone()
        data = (ledger.logits, ledger.labels)
        before = [tensor.clone() for tensor in data]
        settings = copy.deepcopy(fresh.settings())
        self.returned = self.fit(fresh, ledger)
        now = fresh.settings()
        self.changed = [name for name, value in settings.items() if value != now[name]]
        self.data_kept = all(torch.equal(one, two) for one, two in zip(before, data, strict=True))
        for tensor, original in zip(data, before, strict=True):
            tensor.copy_(original)  # the next check has to see the same data
        return fresh

    def fit_again(self) -> Component:
        """Another copy, fitted under another state of the global random numbers."""
        with torch.random.fork_rng(devices=()):
            torch.seed()
            fresh: Component = self.component.clone()
            self.fit(fresh, self.ledgers["held_out"])
        return fresh

    def fit(self, component: Any, ledger: Ledger) -> object:  # noqa: ANN401
        """What `component.fit` returns for a held_out ledger."""
        raise NotImplementedError

    def run(self, logits: Tensor, exit_index: int, component: Any = None) -> Tensor:  # noqa: ANN401
        """Run at one exit, `[n, K]` or `[n]`: the fitted copy, if not another one."""
        raise NotImplementedError

    def policy(self, component: Any) -> Policy:  # noqa: ANN401
        """A policy of it and the simplest partner."""
        raise NotImplementedError


class AnswerUnderTest(ComponentUnderTest):
    """An answer under test, with max probability as the scorer."""

    base = Answer
    exits = range(EXITS)

    def fit(self, component: Answer, ledger: Ledger) -> object:
        """On a ledger."""
        return component.fit(ledger)

    def run(self, logits: Tensor, exit_index: int, component: Answer | None = None) -> Tensor:
        """`[n, K]`; later exits are not passed on."""
        answer = component or self.fitted
        with torch.inference_mode():
            return answer.answer_at(logits[:, : exit_index + 1])

    def policy(self, component: Answer) -> Policy:
        """With max probability."""
        return Policy(MaxProbability(), component)


class ScorerUnderTest(ComponentUnderTest):
    """A scorer under test, with the current exit as the answer."""

    base = Scorer
    exits = range(EXITS - 1)  # at the last one, no scorer runs

    def fit(self, component: Scorer, ledger: Ledger, logits: Tensor | None = None) -> object:
        """On what would be answered at all exits; `logits` are those before, if they differ."""
        history = History(ledger.logits if logits is None else logits, ledger.logits)
        return component.fit(history, ledger.labels, ledger.costs)

    def run(self, logits: Tensor, exit_index: int, component: Scorer | None = None) -> Tensor:
        """`[n]`, as in evaluation: from a history with answers that differ from the logits."""
        scorer, history = component or self.fitted, History(logits, 0.5 * logits)
        with torch.inference_mode():
            return scorer.score_at(history.until(exit_index))

    def policy(self, component: Scorer) -> Policy:
        """With the current exit."""
        return Policy(component, CurrentExit())


def smallest_ledgers() -> dict[str, Ledger]:
    """Three splits with two exits and two classes, stored in float16."""
    ledgers = {}
    for number, split in enumerate(("held_out", "val", "test")):
        generator = torch.Generator().manual_seed(number)
        labels = torch.randint(2, (SAMPLES // 2,), generator=generator)
        logits = torch.randn(len(labels), 2, 2, generator=generator)
        logits += one_hot(labels, 2)[:, None] * torch.tensor([0.5, 1.5])[:, None]
        ledgers[split] = Ledger(
            logits.half(),
            labels,
            Costs(stages=(1e6, 1e6), heads=(1e4, 1e4)),
            split=split,
            sample_ids=[f"{split}-{index}" for index in range(len(labels))],
            network="two exits, two classes",
        )
    return ledgers


def easy_and_hard(seed: int) -> tuple[Ledger, Tensor]:
    """A ledger on whose samples no rule should disagree, and which of them are easy, bool `[N]`.

    Easy samples are right at every exit, and rather sure. Hard ones are unsure, and answer another
    class at every exit, of which only the last is right.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(8, (SAMPLES,), generator=generator)
    easy = torch.arange(SAMPLES) % 2 == 0
    wrong = (labels[:, None] + torch.arange(EXITS).flip(0)) % 8  # the label at the last exit
    said = torch.where(easy[:, None], labels[:, None], wrong)
    sure = torch.where(easy, 5.0, 2.0)[:, None, None]
    logits = 0.5 * torch.randn(SAMPLES, EXITS, 8, generator=generator) + sure * one_hot(said, 8)
    costs = Costs(stages=(1e6,) * EXITS, heads=(1e4,) * EXITS)
    return Ledger(logits, labels, costs, split="held_out", network="easy and hard"), easy
