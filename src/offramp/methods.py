"""The exit methods of the paper by name: each an answer, a scorer and a way to thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from offramp.answers import (
    Answer,
    ClassWiseEnsemble,
    CurrentExit,
    GeometricEnsemble,
    MatrixScaling,
    ProductOfExperts,
    StackingNetwork,
    TemperatureScaling,
    VectorScaling,
)
from offramp.component import check_kind
from offramp.errors import ConfigError, PluginError
from offramp.extras import load_plugin, plugin_origins
from offramp.hints import did_you_mean, or_known
from offramp.policy import Policy
from offramp.scorers import (
    Corrector,
    Entropy,
    ExitUtility,
    Forecast,
    Gates,
    Margin,
    MaxProbability,
    Patience,
    PerformanceControl,
    Scorer,
    ValueOfContinuing,
)
from offramp.thresholds import METHODS as WAYS


@dataclass(frozen=True)
class Method:
    """A named way to build a policy.

    Args:
        name: For the command line and for files.
        label: For tables.
        scorer: Unfitted.
        answer: Unfitted.
        thresholds: Name of the threshold method. Unless a method says otherwise it has those of
            the paper, so that comparisons are the paper's; see `ready` for use.
    """

    name: str
    label: str
    scorer: Scorer = field(default_factory=MaxProbability)
    answer: Answer = field(default_factory=CurrentExit)
    thresholds: str = "geometric"

    def __post_init__(self) -> None:
        for name in ("name", "label"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"`{name}` of a method is a text, got {getattr(self, name)!r}")
        check_kind("scorer", self.scorer, Scorer)
        check_kind("answer", self.answer, Answer)
        if self.thresholds not in WAYS:
            raise ConfigError(
                f"`thresholds` must be one of {', '.join(WAYS)}, got {self.thresholds!r}"
                f"{did_you_mean(self.thresholds, WAYS)}"
            )

    def describe(self) -> dict[str, Any]:
        """Everything that the method is made of, for a file."""
        parts = {"answer": self.answer.describe(), "scorer": self.scorer.describe()}
        return {**parts, "thresholds": self.thresholds}

    def policy(self) -> Policy:
        """An unfitted policy."""
        return Policy(self.scorer.clone(), self.answer.clone())


def _correctors() -> list[Method]:
    found = []
    for k in (1, 2, 5, 10, "all"):
        for name, label, target in (
            ("eefp", "EEFP", "eefp"),
            ("ccct", "CCCT", "correctness"),
        ):
            for suffix, note, history in (("", "", True), ("-no-history", ", no history", False)):
                scorer = Corrector(k=k, history=history, target=target)
                found.append(Method(f"{name}-top-{k}{suffix}", f"{label} top-{k}{note}", scorer))
    return found


_PLAIN = [
    Method("baseline", "Baseline"),
    Method("temperature", "Temperature scaling", answer=TemperatureScaling()),
    Method("vector", "Vector scaling", answer=VectorScaling()),
    Method("matrix", "Matrix scaling", answer=MatrixScaling()),
    Method("overconfident", "Temperature x 0.3", answer=TemperatureScaling(multiplier=0.3)),
    Method("underconfident", "Temperature x 3", answer=TemperatureScaling(multiplier=3.0)),
    Method("entropy", "Entropy", Entropy()),
    Method("margin", "Margin", Margin()),
    Method("patience", "Patience", Patience()),
    Method("product", "Product of experts", answer=ProductOfExperts()),
    Method("ensemble", "Geometric ensemble", answer=GeometricEnsemble()),
    Method("class-ensemble", "Class-wise ensemble", answer=ClassWiseEnsemble()),
    Method("stacking", "Stacking network", answer=StackingNetwork()),
    Method("eefp", "EEFP (paper)", Corrector()),
    Method("eefp-no-history", "EEFP, no history", Corrector(history=False)),
    Method("ccct", "CCCT", Corrector(target="correctness")),
    Method("eefp-ensemble", "EEFP on ensemble", Corrector(), GeometricEnsemble()),
    Method("eefp-class-ensemble", "EEFP on class-wise ensemble", Corrector(), ClassWiseEnsemble()),
    Method(
        "eefp-no-history-class-ensemble",
        "EEFP, no history, on class-wise ensemble",
        Corrector(history=False),
        ClassWiseEnsemble(),
    ),
    Method("eefp-stacking", "EEFP on stacking network", Corrector(), StackingNetwork()),
    Method("pcee", "PCEE", PerformanceControl(), thresholds="shared"),
    Method("eenet", "EENet, post hoc", ExitUtility(), thresholds="assigned"),
    Method("gates", "JEI-DNN gates, post hoc", Gates()),
    Method("forecast", "Forecast", Forecast()),
    Method("value", "Value of continuing", ValueOfContinuing()),
    Method("value-regression", "Value, by regression", ValueOfContinuing(loss="regression")),
]

METHODS = {method.name: method for method in [*_PLAIN, *_correctors()]}
"""All methods by name. `eefp` and `ccct` look at min(5, K) classes."""

_ALL_K = [f"{name}-top-{k}" for name in ("eefp", "ccct") for k in (1, 2, 5, 10, "all")]

_BEYOND = [
    *("baseline", "temperature", "margin", "patience", "product", "ensemble", "class-ensemble"),
    *("stacking", "ccct", "eefp", "eefp-no-history", "eefp-ensemble", "eefp-stacking"),
    *("eefp-no-history-class-ensemble", "gates", "forecast", "value", "value-regression"),
]

GROUPS = {
    "standard": ["baseline", "temperature", "eefp", "eefp-no-history", "ccct"],
    "extended": ["baseline", "temperature", "vector", "matrix", *_ALL_K, "eefp-no-history"],
    "simple": ["baseline", "entropy", "margin", "patience", "product", "ensemble"],
    "beyond": [
        *("pcee", "eenet", "eenet:optimized"),
        *(f"{name}{way}" for name in _BEYOND for way in ("", ":optimized")),
    ],
}
"""Names of several methods at once; `extended` is the paper's extended comparison, `beyond` gives
every method geometric and optimised thresholds."""


def find_methods(names: Sequence[str | Method], num_classes: int) -> list[Method]:
    """Methods for these names, groups expanded, each once.

    A group leaves out correctors that look at more classes than there are. After a colon, a
    name may say which thresholds the method is to have: `eefp:optimized`. A name may also be one
    that an installed package has registered (`offramp.extras`), which is imported then.

    Raises:
        ConfigError: An unknown name, with the nearest known one.
        PluginError: The package's method cannot be loaded.

    Example:
        >>> [method.name for method in find_methods(["baseline", "simple"], num_classes=10)][:3]
        ['baseline', 'entropy', 'margin']
    """
    found: dict[str, Method] = {}
    for name in names:
        if isinstance(name, Method):
            if name.name in found:
                raise ConfigError(f"two methods are called {name.name!r}; rename one of them")
            found[name.name] = name
        elif name in GROUPS:
            members = (_named(member) for member in GROUPS[name])
            found |= {m.name: m for m in members if _fits(m, num_classes)}
        else:
            found[name] = _named(name)
    if not found:
        raise ConfigError("no method was asked for")
    return list(found.values())


def ready(method: Method) -> Method:
    """A method as one would use it: with optimised thresholds instead of the paper's.

    Thresholds that the method's name asks for after a colon stay, and so do those of a method that
    is made for others than the paper's.

    Example:
        >>> [ready(m).thresholds for m in find_methods(["eefp", "eefp:geometric", "pcee"], 10)]
        ['optimized', 'geometric', 'shared']
    """
    if ":" in method.name or method.thresholds != "geometric":
        return method
    return replace(method, thresholds="optimized")


def _named(name: str) -> Method:
    """The method with this name, with other thresholds if the name says so."""
    plain, colon, thresholds = name.partition(":")
    method = METHODS.get(plain) or plugin_method(plain)
    if method is None:
        raise ConfigError(_unknown(plain))
    if not colon:
        return method
    if thresholds not in WAYS:
        raise ConfigError(
            f"after the colon of {name!r}, thresholds must be one of {', '.join(WAYS)}"
            f"{did_you_mean(thresholds, WAYS, f'{plain}:')}"
        )
    return replace(method, name=name, label=f"{method.label}, {thresholds}", thresholds=thresholds)


def plugin_method(name: str) -> Method | None:
    """The method that an installed package has registered under a name, or None.

    Methods of the library cannot be replaced: those are looked at first.

    Raises:
        PluginError: It cannot be loaded, or is no method, scorer or answer.
    """
    found = load_plugin(name)
    if found is None:
        return None
    label = getattr(found, "__name__", type(found).__name__)
    try:
        made = found() if isinstance(found, type) else found
    except TypeError as error:
        raise PluginError(f"{_of(name)} cannot be made without settings: {error}") from None
    if isinstance(made, Method):
        return replace(made, name=name)
    if isinstance(made, Scorer):
        return Method(name, label, made)
    if isinstance(made, Answer):
        return Method(name, label, answer=made)
    raise PluginError(
        f"{_of(name)} is a {type(made).__name__}, and should be an offramp.Method, Scorer or "
        "Answer"
    )


def _of(name: str) -> str:
    return f"the method {name!r} of the package {plugin_origins()[name]}"


def _fits(method: Method, num_classes: int) -> bool:
    k = getattr(method.scorer, "k", None)
    return not isinstance(k, int) or k <= num_classes


def _unknown(name: str) -> str:
    known = [*GROUPS, *METHODS, "auto", *plugin_origins()]
    return f"there is no method {name!r}{or_known(name, known)}"
