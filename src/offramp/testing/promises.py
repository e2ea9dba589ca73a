"""Promises with their checks, and the components they are checked on."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
from offramp.errors import PromiseError
from offramp.ledger import Ledger
from offramp.policy import Policy
from offramp.scorers import History, MaxProbability, Scorer

T = TypeVar("T")
C = TypeVar("C", bound=Component)
SAMPLES = 240
EXITS = 4
SHOWN = 48  # test samples that a component is run on


@dataclass(frozen=True)
class Promise(Generic[T]):
    """Something that every answer, scorer or threshold method has to keep."""

    text: str  # the promise, as it appears in the error message
    # takes what is under test; raises through `expect` if the promise is broken
    check: Callable[[T], None]
    basic: bool = False  # whether the later ones are meaningless if this one is broken


class _BrokenError(Exception):
    """A promise was broken; the text says what was expected and what happened."""


def expect(kept: bool, expected: str, happened: str) -> None:
    """Raise unless a promise is kept: what should have happened, and what did."""
    if not kept:
        raise _BrokenError(f"expected {expected}; {happened}")


def check_promises(name: str, promises: Sequence[Promise[T]], tested: T) -> None:
    """Raise `PromiseError` with a sentence per broken promise; a basic one ends the checks."""
    broken: dict[str, str] = {}
    first: Exception | None = None
    for promise in promises:
        cause: Exception
        try:
            promise.check(tested)
            continue
        except _BrokenError as error:
            reason, cause = str(error), error
        # Someone else's code can raise anything; whatever it is breaks this promise.
        except Exception as error:
            reason, cause = f"expected no error; {type(error).__name__} was raised: {error}", error
        first = first or cause
        broken[promise.text] = f"{name} breaks the promise {promise.text!r}: {reason}"
        if promise.basic:
            break
    if broken:
        lines = list(broken.values())
        if len(lines) > 1:
            lines = [f"{name} breaks {len(lines)} promises:", *(f"- {line}" for line in lines)]
        raise PromiseError("\n".join(lines), tuple(broken)) from first


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


@dataclass(frozen=True)
class FitRecord(Generic[C]):
    """One fit and its side effects."""

    component: C  # after the fit
    returned: object  # by its `fit`
    settings: dict[str, Any]  # before the fit
    data_kept: bool  # whether logits and labels were left unchanged


class ComponentUnderTest(ABC, Generic[C]):
    """A component with its fits, which all checks share; it is copied, never fitted itself."""

    base: type[Answer] | type[Scorer]

    def __init__(self, component: C) -> None:
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
    def first_fit(self) -> FitRecord[C]:
        """A fitted copy, and what its fit returned and changed."""
        ledger, fresh = self.ledgers["held_out"], self.component.clone()
        data = (ledger.logits, ledger.labels)
        before = [tensor.clone() for tensor in data]
        settings = copy.deepcopy(fresh.settings())
        returned = self.fit(fresh, ledger)
        kept = all(torch.equal(one, two) for one, two in zip(before, data, strict=True))
        for tensor, original in zip(data, before, strict=True):
            tensor.copy_(original)  # the next check has to see the same data
        return FitRecord(fresh, returned, settings, kept)

    @property
    def fitted(self) -> C:
        """A fitted copy."""
        return self.first_fit.component

    def fit_again(self) -> C:
        """Another copy, fitted under another state of the global random numbers."""
        with torch.random.fork_rng(devices=()):
            torch.seed()
            fresh = self.component.clone()
            self.fit(fresh, self.ledgers["held_out"])
        return fresh

    @property
    def exits(self) -> range:
        """The exits at which it runs."""
        return range(EXITS)

    @abstractmethod
    def fit(self, component: C, ledger: Ledger) -> object:
        """What `component.fit` returns for a held_out ledger."""

    @abstractmethod
    def run_at(self, component: C, logits: Tensor, exit_index: int) -> Tensor:
        """Run at one exit, `[n, K]` or `[n]`; later exits of `logits` are not passed on."""

    @abstractmethod
    def policy(self, component: C) -> Policy:
        """A policy of it and the simplest partner."""


class AnswerUnderTest(ComponentUnderTest[Answer]):
    """An answer under test, with max probability as the scorer."""

    base = Answer

    def fit(self, component: Answer, ledger: Ledger) -> object:
        """On a ledger."""
        return component.fit(ledger)

    def run_at(self, component: Answer, logits: Tensor, exit_index: int) -> Tensor:
        """`[n, K]`."""
        with torch.inference_mode():
            return component.answer_at(logits[:, : exit_index + 1])

    def policy(self, component: Answer) -> Policy:
        """With max probability."""
        return Policy(MaxProbability(), component)


class ScorerUnderTest(ComponentUnderTest[Scorer]):
    """A scorer under test, with the current exit as the answer."""

    base = Scorer

    @property
    def exits(self) -> range:
        """All but the last, at which no scorer runs."""
        return range(EXITS - 1)

    def fit(self, component: Scorer, ledger: Ledger) -> object:
        """On the logits of all exits."""
        history = History(ledger.logits, ledger.logits)
        return component.fit(history, ledger.labels, ledger.costs)

    def run_at(self, component: Scorer, logits: Tensor, exit_index: int) -> Tensor:
        """`[n]`, as in evaluation: from a history with answers that differ from the logits."""
        with torch.inference_mode():
            return component.score_at(History(logits, 0.5 * logits).until(exit_index))

    def policy(self, component: Scorer) -> Policy:
        """With the current exit."""
        return Policy(component, CurrentExit())
