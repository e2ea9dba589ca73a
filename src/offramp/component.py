"""What answers and scorers share: settings in the constructor, learned arrays that end in `_`.

A component is a dataclass. Its fields are its settings and go into JSON; what `fit` learns are
arrays, named in `learned`, and go into safetensors. Files name a component by its class name,
and only classes that the running program has already defined can be found by it.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Self, TypeVar

from offramp import check
from offramp.arrays import AnyArray, Array, is_tensor, namespace
from offramp.errors import ConfigError, FileFormatError, LedgerError
from offramp.ledger import History
from offramp.registry import import_hint

HAS = {
    "answers": "answers with confidences: use CurrentExit or MajorityVote to answer, and "
    "MaxProbability, Patience, Corrector, LogisticCorrector or BreakEven to stop",
    "votes": "answers without confidences: use MajorityVote to answer, and Settled or Patience to "
    "stop, or give `confidence` to Ledger.from_answers, too",
    "confidences": "confidences: use CurrentExit to answer, and MaxProbability, Corrector, "
    "LogisticCorrector or BreakEven to stop, or give the answers to Ledger.from_answers, too",
}
"""What ledgers without logits have, as the end of a sentence."""

Method = TypeVar("Method", bound=Callable[..., Any])


def current_exit_only(method: Method) -> Method:
    """Mark an `answer_at` or a `score_at` that reads nothing but the current exit.

    The runtime neither keeps nor computes what nothing reads. The mark is on the method, so that
    a subclass with a method of its own does not inherit the claim.

    Example:
        >>> @current_exit_only
        ... def answer_at(self, logits):
        ...     return 2 * logits[:, -1]
        >>> answer_at.reads_history
        False
    """
    method.reads_history = False  # type: ignore[attr-defined]
    return method


class Component:
    """Parent of `Answer` and `Scorer`: cloning, and going to and from files.

    Attributes:
        learned: Names of the arrays that `fit` sets; empty where there is nothing to learn.
        needs: What it reads of each stage: `logits`; `answers`, if all that it asks of them is
            which are the same and how sure they are; `confidences`, if it is only how sure. What
            needs less can be used on more ledgers, and `nothing` on all.
    """

    learned: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[str] = "logits"
    _known: ClassVar[dict[str, type["Component"]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**kwargs)
        Component._known[cls.__name__] = cls

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments, as JSON values.

        Raises:
            ConfigError: The class is not a dataclass.
        """
        if not is_dataclass(self) or "__dataclass_fields__" not in type(self).__dict__:
            raise ConfigError(
                f"{type(self).__name__} must be a dataclass: put @dataclass above its class line"
            )
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def clone(self, **changes: Any) -> Self:  # noqa: ANN401
        """An unfitted copy with the same settings, but for `changes`."""
        return type(self)(**{**self.settings(), **changes})

    def can_read(self, history_type: type[History]) -> bool:
        """Whether ledgers that are read in this way have what it needs."""
        return self.needs in ("nothing", *history_type.offers)

    def on(self, history_type: type[History]) -> Self:
        """An unfitted copy for ledgers that are read in this way.

        Raises:
            LedgerError: It cannot read them.
        """
        if not self.can_read(history_type):
            raise LedgerError(
                f"{type(self).__name__} needs the {self.needs}, and this ledger has only "
                f"{HAS[history_type.name]}"
            )
        return self.clone()

    @property
    def learns(self) -> bool:
        """Whether there is anything to fit."""
        return bool(self.learned)

    @property
    def is_fitted(self) -> bool:
        """Whether everything that has to be learned has been learned."""
        return all(hasattr(self, name) for name in self.learned)

    def check_fitted(self) -> None:
        """Raise unless fitted.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check.fitted(self, self.is_fitted, "fit(held_out)")

    def state(self) -> dict[str, Array]:
        """The learned arrays by name."""
        self.check_fitted()
        return {name: getattr(self, name) for name in self.learned}

    def beside(self, outputs: AnyArray | None) -> Self:
        """This component for outputs like these: itself for NumPy's, on their device for tensors.

        What is learned is NumPy's and lies in the memory of the CPU. To decide on a GPU, a copy
        holds it there.
        """
        if outputs is None or not is_tensor(outputs) or not self.learned:
            return self
        xp, placed = namespace(outputs), copy(self)
        for name, value in self.state().items():
            setattr(placed, name, xp.asarray(value, device=outputs.device))
        return placed

    def describe(self) -> dict[str, Any]:
        """Class name and settings, for a file."""
        return {"name": type(self).__name__, "settings": self.settings()}

    @classmethod
    def restore(cls, description: object, state: dict[str, Array]) -> Self:
        """Rebuild a component from `describe()` and `state()`.

        Raises:
            FileFormatError: The file names a class that is not defined here, or settings or
                arrays that it does not have.
        """
        if not isinstance(description, dict):
            raise FileFormatError(
                f"a description of a {cls.__name__} is needed, got {description}"
            )
        name = description.get("name")
        found = cls._known.get(name) if isinstance(name, str) else None
        if found is None or not issubclass(found, cls):
            raise FileFormatError(
                f"the file names an unknown {cls.__name__.lower()} {name!r}; {import_hint(name)}"
            )
        try:
            component = found(**description.get("settings", {}))
        # Components are anybody's, and what they do with odd settings is not known.
        except Exception as error:
            raise FileFormatError(f"the file's settings do not fit {name}: {error}") from None
        if set(state) != set(found.learned):
            raise FileFormatError(
                f"{name} needs the arrays {sorted(found.learned)}, the file has {sorted(state)}"
            )
        for key, value in state.items():
            setattr(component, key, value)
        return component


def check_kind(name: str, given: object, kind: type[Component]) -> None:
    """Raise `ConfigError` unless an argument is a component of a kind, not a class or a name."""
    example = "Corrector()" if kind.__name__ == "Scorer" else "TemperatureScaling()"
    check.instance(
        name,
        given,
        kind,
        f"an offramp.{kind.__name__}, such as offramp.{example} or a subclass of your own",
    )
