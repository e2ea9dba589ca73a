"""An answer or a scorer under examination: how it is fitted, and how it is asked."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

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


def ordinary() -> dict[str, Ledger]:
    """Three splits of a made-up network of four exits and eight classes, in float32."""
    return synthetic.ledgers(seed=0, samples=SAMPLES, exits=EXITS, classes=8)


def smallest() -> dict[str, Ledger]:
    """Three splits with two exits and two classes, stored in float16."""
    made = {}
    for number, split in enumerate(("held_out", "val", "test")):
        generator = torch.Generator().manual_seed(number)
        labels = torch.randint(2, (SAMPLES // 2,), generator=generator)
        logits = torch.randn(len(labels), 2, 2, generator=generator)
        logits += one_hot(labels, 2)[:, None] * torch.tensor([0.5, 1.5])[:, None]
        made[split] = Ledger(
            logits.half(),
            labels,
            Costs(stages=(1e6, 1e6), heads=(1e4, 1e4)),
            split=split,
            sample_ids=[f"{split}-{index}" for index in range(len(labels))],
            network="two exits, two classes",
        )
    return made


def threshold_cases() -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Scores `[N, M]`, correct `[N, M]` and costs `[M]`, by what is special about them.

    As in use, the scores of the last exit are `+inf`.
    """
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, exits, score in (
        ("scores that all differ", 4, lambda x: x),
        ("two exits", 2, lambda x: x),
        ("many tied scores", 4, lambda x: x.round()),
        ("one score for all", 3, torch.zeros_like),
    ):
        scores = score(torch.randn(200, exits, generator=generator))
        odds = scores + torch.linspace(0, 2, exits)
        correct = torch.rand(200, exits, generator=generator) < odds.sigmoid()
        scores[:, -1] = torch.inf
        made[name] = scores, correct, torch.linspace(0.2, 1.0, exits, dtype=torch.float64)
    return made


C = TypeVar("C", bound=Component)

SHOWN = 48  # samples that it is asked about


@dataclass(frozen=True)
class FirstFit(Generic[C]):
    """What came of a fit.

    Attributes:
        component: Fitted.
        returned: By its `fit`.
        settings: Before it.
        data_kept: Whether logits and labels were left as they were.
    """

    component: C
    returned: object
    settings: dict[str, Any]
    data_kept: bool


class Specimen(ABC, Generic[C]):
    """A component with its fits, which are made once for all checks.

    Args:
        component: Of the user; it is copied, never fitted itself.
    """

    kind: type[Answer] | type[Scorer]

    def __init__(self, component: C) -> None:
        self.component = component

    @cached_property
    def ledgers(self) -> dict[str, Ledger]:
        """The splits that it is fitted and asked on."""
        return ordinary()

    @cached_property
    def logits(self) -> Tensor:
        """`[n, M, K]` float32: what it is asked about."""
        return self.ledgers["test"].logits[:SHOWN]

    @cached_property
    def first_fit(self) -> "FirstFit[C]":
        """A fitted copy, and what its fit gave and left behind."""
        ledger, fresh = self.ledgers["held_out"], self.component.clone()
        before = [part.clone() for part in (ledger.logits, ledger.labels)]
        settings = copy.deepcopy(fresh.settings())
        returned = self.fit(fresh, ledger)
        after = (ledger.logits, ledger.labels)
        kept = all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
        for mine, theirs in zip(after, before, strict=True):
            mine.copy_(theirs)  # the next check is to see what this one saw
        return FirstFit(fresh, returned, settings, kept)

    @property
    def fitted(self) -> C:
        """A fitted copy."""
        return self.first_fit.component

    def fit_again(self) -> C:
        """Another fitted copy, fitted under another state of the global random numbers."""
        with torch.random.fork_rng(devices=()):
            torch.seed()
            fresh = self.component.clone()
            self.fit(fresh, self.ledgers["held_out"])
        return fresh

    def copy_of_fitted(self) -> C:
        """A copy that has learned the same."""
        return copy.deepcopy(self.fitted)

    def exits(self, logits: Tensor) -> range:
        """The exits at which it is asked."""
        return range(logits.shape[1])

    @abstractmethod
    def fit(self, component: C, ledger: Ledger) -> object:
        """What `component.fit` gives for a held_out ledger."""

    @abstractmethod
    def ask(self, component: C, logits: Tensor) -> Tensor:
        """What it says at the last of these exits, `[n, m+1, K]` -> `[n, K]` or `[n]`."""

    @abstractmethod
    def policy(self, component: C) -> Policy:
        """A policy with it and the plainest partner."""

    def ask_at(self, component: C, logits: Tensor, exit_index: int) -> Tensor:
        """What it says at one of these exits, of which the later ones are there but not shown."""
        return self.ask(component, logits[:, : exit_index + 1])


class AnswerSpecimen(Specimen[Answer]):
    """An answer under examination."""

    kind = Answer

    def fit(self, component: Answer, ledger: Ledger) -> object:
        """On a ledger."""
        return component.fit(ledger)

    def ask(self, component: Answer, logits: Tensor) -> Tensor:
        """`[n, K]`."""
        with torch.inference_mode():
            return component.answer_at(logits)

    def policy(self, component: Answer) -> Policy:
        """With max probability."""
        return Policy(MaxProbability(), component)


class ScorerSpecimen(Specimen[Scorer]):
    """A scorer under examination."""

    kind = Scorer

    def exits(self, logits: Tensor) -> range:
        """All but the last, at which no scorer is run."""
        return range(logits.shape[1] - 1)

    def fit(self, component: Scorer, ledger: Ledger) -> object:
        """On all exits of a ledger, stored as they are."""
        history = History(ledger.logits, ledger.logits)
        return component.fit(history, ledger.labels, ledger.costs)

    def ask(self, component: Scorer, logits: Tensor) -> Tensor:
        """`[n]`."""
        return self.ask_at(component, logits, logits.shape[1] - 1)

    def ask_at(self, component: Scorer, logits: Tensor, exit_index: int) -> Tensor:
        """As evaluation does: a history of all exits, of which the exits so far are shown."""
        with torch.inference_mode():
            return component.score_at(self.history(logits).until(exit_index))

    @staticmethod
    def history(logits: Tensor) -> History:
        """With answers that differ from the logits."""
        return History(logits, 0.5 * logits)

    def policy(self, component: Scorer) -> Policy:
        """With the current exit."""
        return Policy(component, CurrentExit())
