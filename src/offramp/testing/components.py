"""The promises that answers and scorers share."""

import copy
import json
import tempfile
from collections.abc import Iterator
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from offramp import synthetic
from offramp.answers import Answer
from offramp.arrays import AnyArray, Array, as_numpy, as_tensor
from offramp.component import Component
from offramp.costs import Costs
from offramp.errors import ConfigError
from offramp.ledger import Ledger
from offramp.policy import Policy
from offramp.replay import replay
from offramp.scorers import Scorer
from offramp.testing.promises import (
    Outputs,
    Promise,
    UnderTest,
    changes_nothing,
    differences,
    gives_the_same_again,
    random_numbers,
)

SAMPLES, EXITS, CLASSES = 240, 4, 8  # of the ledgers
SHOWN = 48  # test samples that a component is run on
TOLERANCE = 1e-4  # relative: float32 sums in another order may differ by as much


class ComponentUnderTest(UnderTest):
    """An answer or a scorer under test; copies of it are fitted, never itself.

    Attributes:
        component: The answer or the scorer.
        kind: What it has to be.
        exits: Where it runs.
    """

    kind: type[Answer] | type[Scorer]
    exits: range

    def __init__(self, component: Any) -> None:  # noqa: ANN401 - which is checked first
        self.component = component
        self.name = type(component).__name__

    def fit(self, component: Any, ledger: Ledger, heads: Array | None = None) -> object:  # noqa: ANN401
        """What `component.fit` returns; `heads` are the logits before the answer, if others."""
        raise NotImplementedError

    def run(
        self,
        component: Any,  # noqa: ANN401
        heads: AnyArray,
        logits: AnyArray,
        exit_index: int,
    ) -> AnyArray:
        """What a fitted component makes of the exits so far, when there are more in memory."""
        raise NotImplementedError

    def policy(self, component: Any) -> Policy:  # noqa: ANN401
        """A policy of it and the simplest partner."""
        raise NotImplementedError

    @cached_property
    def logits(self) -> Array:
        """`[n, M, K]` float32: what it is run on."""
        return made_up("test").logits[:SHOWN].copy()

    def fitted_to(
        self, ledger: Ledger, heads: Array | None = None, seed: int | None = None
    ) -> Component:
        """A fitted copy, under global random numbers of a seed or any others."""
        fresh: Component = copy.deepcopy(self.component).clone()
        self.given = copy.deepcopy(fresh.settings())
        with random_numbers(seed):
            self.returned = self.fit(fresh, ledger, heads)
        return fresh

    @cached_property
    def fitted(self) -> Any:  # noqa: ANN401
        """A fitted copy."""
        ledger = made_up("held_out")
        fitted = self.fitted_to(ledger)
        self.returns_itself, now = self.returned is fitted, fitted.settings()
        self.changed = [name for name, value in self.given.items() if value != now[name]]
        for name in ("logits", "labels"):
            if not np.array_equal(getattr(ledger, name), getattr(made_up("held_out"), name)):
                self.changed.append(name)
        return fitted

    def outputs(
        self,
        logits: AnyArray | None = None,
        component: Any = None,  # noqa: ANN401
        heads: AnyArray | None = None,
    ) -> Outputs:
        """What it makes of logits `[n, M, K]` at every exit, from that exit and those before."""
        component = self.fitted if component is None else component
        logits = self.logits if logits is None else logits
        heads = logits if heads is None else heads
        exits = self.exits[: logits.shape[1]]
        return {f"at exit {m}": self.run(component, heads, logits, m) for m in exits}

    @Promise("it is an instance of its base class", basic=True)
    def _is_an_instance(self) -> Iterator[str]:
        if isinstance(self.component, type):
            yield f"got the class {self.component.__name__} itself"
        if not isinstance(self.component, self.kind):
            yield f"a subclass of offramp.{self.kind.__name__} is needed, got {self.name}"

    @Promise("settings are plain values", "files store them as JSON", basic=True)
    def _has_plain_settings(self) -> Iterator[str]:
        settings = self.component.settings()
        back = json.loads(json.dumps(settings))
        for name, value in settings.items():
            if back[name] != value:  # a tuple, for example, and not a list
                yield f"`{name}` was {value!r} and became {back[name]!r}"

    @Promise("it can be fitted and run", basic=True)
    def _runs(self) -> Iterator[str]:
        self.outputs()
        yield from ()  # an error breaks it, and nothing else does

    @Promise("fit returns self", basic=True)
    def _fit_returns_self(self) -> Iterator[str]:
        if not self.returns_itself:
            yield f"it returned {type(self.returned).__name__}"

    @Promise("there is one finite number per sample, or per sample and class", basic=True)
    def _outputs_are_numbers(self) -> Iterator[str]:
        for logits in (self.logits, self.logits[:0]):
            wanted = [len(logits), CLASSES][: 2 if self.kind is Answer else 1]
            for where, found in self.outputs(logits).items():
                if not isinstance(found, np.ndarray):
                    yield f"a NumPy array is needed, got {type(found).__name__}"
                if list(found.shape) != wanted:
                    yield f"the shape {wanted} is needed, got {list(found.shape)} {where}"
                if found.dtype.kind != "f":
                    yield f"floating-point numbers are needed, got {found.dtype}"
                if not np.isfinite(found).all():
                    yield f"got {found[~np.isfinite(found)][0]} {where}"

    _gives_the_same_again = gives_the_same_again

    @Promise("nothing sees a later exit", basic=True)
    def _later_exits_are_unseen(self) -> Iterator[str]:
        for exit_index in range(EXITS - 1):
            stop, where = exit_index + 1, f"at exit {exit_index}"
            other = self.logits.copy()
            other[:, stop:] = -3.0 * other[::-1, stop:]
            wanted = {where: self.outputs()[where]}
            for change in differences(self.outputs(other), wanted):
                yield f"with other logits at later exits, {change}"
            alone = self.outputs(self.logits[:, :stop].copy())
            for change in differences(alone, wanted, TOLERANCE):
                yield f"when later exits have not run, {change}"

    @Promise("describe() and state() hold everything", basic=True)
    def _files_restore_it(self) -> Iterator[str]:
        description = json.loads(json.dumps(self.fitted.describe()))
        back = self.kind.restore(description, copy.deepcopy(self.fitted).state())
        if type(back) is not type(self.fitted):
            yield f"the description restores another class than {self.name}"
        for change in differences(self.outputs(component=back), self.outputs()):
            yield f"after restoring it, {change}"

    @Promise("the constructor only stores its arguments")
    def _constructor_only_stores(self) -> Iterator[str]:
        fresh, settings = self.component.clone(), self.component.settings()
        for name, value in fresh.settings().items():
            if value != settings[name]:
                yield f"`{name}` was {settings[name]!r} and is {value!r} in a copy"
        if extra := _others(fresh, settings):
            yield f"before fit, there is `{extra}`"

    @Promise("`learned` names everything that fit learns", "files store what it names")
    def _learned_is_complete(self) -> Iterator[str]:
        names = self.component.learned
        for name in names:
            if not name.endswith("_"):
                yield f"names end in `_`, and `learned` has `{name}`"
            if not isinstance(value := getattr(self.fitted, name, None), np.ndarray):
                yield f"`{name}` is no NumPy array: {type(value).__name__}"
        if new := _others(self.fitted, [*names, *self.component.settings()]):
            yield f"fit also sets `{new}`"

    _changes_nothing = changes_nothing

    @Promise(
        "fit depends only on data, settings and seed", "draw from np.random.default_rng(self.seed)"
    )
    def _fit_repeats(self) -> Iterator[str]:
        again = self.fitted_to(made_up("held_out"))
        yield from differences(learned(again), learned(self.fitted))

    @Promise("macs are counts")
    def _macs_are_counts(self) -> Iterator[str]:
        for exit_index in self.exits:
            count = self.fitted.macs(exit_index, CLASSES)
            if type(count) is not int or count < 0:
                yield f"got {count!r} at exit {exit_index}"

    @Promise("samples are independent")
    def _samples_are_independent(self) -> Iterator[str]:
        whole, order = self.outputs(), np.random.default_rng(0).permutation(SHOWN)
        ways = {"alone": order[:1], "in another order": order, "in a small batch": order[3:8]}
        for how, rows in ways.items():
            wanted = {where: value[rows] for where, value in whole.items()}
            for change in differences(self.outputs(self.logits[rows]), wanted, TOLERANCE):
                yield f"{how}, {change}"

    @Promise("current_exit_only is true where it is set", "remove the mark")
    def _current_exit_only_is_true(self) -> Iterator[str]:
        for exit_index in () if self.component.reads_history else self.exits:
            other, where = self.logits.copy(), f"at exit {exit_index}"
            other[:, :exit_index] = np.nan  # never computed
            wanted = {where: self.outputs()[where]}
            for change in differences(self.outputs(other), wanted):
                yield f"with other logits at earlier exits, {change}"

    @Promise("tensors give what arrays give")
    def _takes_tensors(self) -> Iterator[str]:
        if find_spec("torch") is None:
            return
        logits = as_tensor(self.logits)
        try:
            found = self.outputs(logits, self.fitted.beside(logits))
        except Exception:  # for NumPy alone: runners on a GPU then decide on the CPU
            return
        as_arrays = {where: as_numpy(value) for where, value in found.items()}
        yield from differences(as_arrays, self.outputs(), TOLERANCE)

    @Promise("a saved policy decides as before")
    def _policies_restore_it(self) -> Iterator[str]:
        seed = self.component.settings().get("seed", 0)
        with random_numbers():
            policy, *_ = self.policy(self.component.clone()).fit_seeds(made_up("held_out"), [seed])
        chosen = policy.tune(made_up("val"), points=21).at(budget=0.6)
        with tempfile.TemporaryDirectory() as folder:
            loaded = Policy.load(chosen.save(folder))
            first, second = (each.decide(made_up("test")) for each in (chosen, loaded))
        if differ := int((first != second).sum()):
            yield f"{differ} of {len(first)} samples stop at another exit"

    @Promise("it works with two classes, two exits and float16")
    def _smallest_works(self) -> Iterator[str]:
        try:
            fitted = self.fitted_to(smallest("held_out"))
        except ConfigError:
            return  # a setting needs more classes or exits than there are, and the error says so
        policy = self.policy(fitted)
        found = replay(policy.answer, policy.scorer, smallest("test"))
        if not (np.isfinite(found.scores[:, 0]).all() and np.isfinite(found.losses).all()):
            yield "some scores or losses are not finite"


def learned(component: Component) -> Outputs:
    """What a component has learned, as outputs that can be compared."""
    return {f"in `{name}`": value for name, value in component.state().items()}


def _others(component: Component, names: Any) -> str:  # noqa: ANN401 - of any kind
    """Public attributes beside those with these names."""
    return ", ".join(name for name in vars(component) if name not in names and name[0] != "_")


@cache
def _made_up() -> dict[str, Ledger]:
    return synthetic.ledgers(seed=0, samples=SAMPLES, exits=EXITS, classes=CLASSES)


def made_up(split: str) -> Ledger:
    """A copy, which whoever is tested may change, of a made-up ledger in float32."""
    return copy.deepcopy(_made_up()[split])


def smallest(split: str) -> Ledger:
    """Two exits and two classes, stored in float16."""
    rng = np.random.default_rng(len(split))
    labels = rng.integers(2, size=SAMPLES // 2)
    logits = rng.standard_normal((len(labels), 2, 2))
    logits += np.eye(2)[labels][:, None] * np.array([0.5, 1.5])[:, None]
    costs = Costs(stages=(1e6, 1e6), heads=(1e4, 1e4))
    ids = [f"{split}-{index}" for index in range(len(labels))]
    return Ledger(logits.astype(np.float16), labels, costs, split=split, sample_ids=ids)


def easy_and_hard(seed: int) -> tuple[Ledger, Array]:
    """A ledger on whose samples no rule should disagree, and which of them are easy, bool `[N]`.

    Easy samples are right at every exit, and rather sure. Hard ones are unsure, and answer another
    class at every exit, of which only the last is right.
    """
    rng = np.random.default_rng(seed)
    labels, easy = rng.integers(CLASSES, size=SAMPLES), np.arange(SAMPLES) % 2 == 0
    wrong = (labels[:, None] + np.arange(EXITS)[::-1]) % CLASSES  # the label at the last exit
    given = np.where(easy[:, None], labels[:, None], wrong)
    logits = 0.5 * rng.standard_normal((SAMPLES, EXITS, CLASSES))
    logits += np.where(easy, 5.0, 2.0)[:, None, None] * np.eye(CLASSES)[given]
    costs = Costs(stages=(1e6,) * EXITS, heads=(1e4,) * EXITS)
    ledger = Ledger(
        logits.astype(np.float32), labels, costs, split="held_out", network="easy and hard"
    )
    return ledger, easy
