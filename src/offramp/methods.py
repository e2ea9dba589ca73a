"""Methods by name: the paper's, the library's own, and plug-ins."""

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from offramp.answers import (
    Answer,
    ClassWiseEnsemble,
    CurrentExit,
    GeometricEnsemble,
    MajorityVote,
    MatrixScaling,
    ProductOfExperts,
    TemperatureScaling,
    VectorScaling,
)
from offramp.component import check_kind
from offramp.errors import ConfigError, PluginError
from offramp.ledger import History, Ledger
from offramp.plan import Plan
from offramp.policy import Policy
from offramp.registry import GROUPS, METHODS, TOP
from offramp.scorers import (
    BreakEven,
    Corrector,
    Entropy,
    LogisticCorrector,
    Margin,
    MaxProbability,
    Patience,
    Scorer,
    Settled,
)
from offramp.thresholds import DEFAULT, PAPER
from offramp.thresholds.tuning import threshold_method

Fits = dict[tuple[type, type, str], list[Policy]]
"""Fitted policies by scorer, answer and settings: methods that differ in thresholds share one."""


@dataclass(frozen=True)
class Method:
    """A named way to policies: an answer, a scorer and a way to choose thresholds.

    A method that comes to its policies in another way overrides `plans` (see
    `offramp.advice.Auto`); `register` makes it known by its name.

    Args:
        name: For the command line and for files.
        label: For tables.
        scorer: Unfitted.
        answer: Unfitted.
        thresholds: Name of the threshold method; by default the paper's, which comparisons use.
            See `ready` for use.

    Example:
        >>> from offramp import synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300, exits=4)
        >>> method = Method("mine", "Mine", MaxProbability())
        >>> (plan,) = method.plans(splits["held_out"], splits["val"], budgets=[0.5], seeds=1)
        >>> plan[0.5].is_tuned
        True
    """

    name: str
    label: str
    scorer: Scorer = field(default_factory=MaxProbability)
    answer: Answer = field(default_factory=CurrentExit)
    thresholds: str = PAPER

    def __post_init__(self) -> None:
        for name in ("name", "label"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"`{name}` of a method is a text, got {getattr(self, name)!r}")
        check_kind("scorer", self.scorer, Scorer)
        check_kind("answer", self.answer, Answer)
        threshold_method(self.thresholds)

    def describe(self) -> dict[str, Any]:
        """Everything that the method is made of, for a file."""
        parts = {"answer": self.answer.describe(), "scorer": self.scorer.describe()}
        return {**parts, "thresholds": self.thresholds}

    def with_thresholds(self, thresholds: str) -> "Method":
        """The same with other thresholds, which its name and label then state."""
        name, label = f"{self.name}:{thresholds}", f"{self.label}, {thresholds}"
        return replace(self, name=name, label=label, thresholds=thresholds)

    def policy(self) -> Policy:
        """An unfitted policy."""
        return Policy(self.scorer.clone(), self.answer.clone())

    def plans(
        self,
        held_out: Ledger,
        val: Ledger,
        budgets: Sequence[float],
        seeds: int,
        fits: Fits | None = None,
    ) -> list[Plan]:
        """Policies for every budget: fitted on held_out, with thresholds from val.

        Args:
            held_out: To fit on.
            val: To choose thresholds on.
            budgets: Mean costs as shares of the network without exits; one that is out of reach
                gets the cheapest operating point.
            seeds: How many plans, where the fit is random.
            fits: Shared by the methods of a comparison, so that none is fitted twice.

        Returns:
            One plan per seed, or one in all where nothing is random.
        """
        fitted = self.fitted(held_out, seeds, {} if fits is None else fits)
        # Copies, since tuning changes a policy.
        tuned = [copy(policy).tune(val, self.thresholds) for policy in fitted]
        exits, names = list(range(val.num_exits)), dict.fromkeys(budgets, self.name)
        return [Plan({b: policy.nearest(b) for b in budgets}, exits, names) for policy in tuned]

    def fitted(self, held_out: Ledger, seeds: int, fits: Fits) -> list[Policy]:
        """Policies fitted on held_out, one per seed; those among the fits are not fitted again."""
        settings = [self.scorer.settings(), self.answer.settings()]
        key = type(self.scorer), type(self.answer), json.dumps(settings, default=repr)
        if key not in fits:
            fits[key] = self.policy().fit_seeds(held_out, range(seeds))
        return fits[key]


def _top_method(name: str) -> Method | None:
    """The corrector that a name such as `eefp-top-7` or `ccct-top-all-no-history` describes."""
    found = TOP.fullmatch(name)
    if found is None:
        return None
    kind, classes, no_history = found.groups()
    scorer = Corrector(
        k="all" if classes == "all" else int(classes),
        history=no_history is None,
        target="correctness" if kind == "ccct" else "eefp",
    )
    note = ", no history" if no_history else ""
    return Method(name, f"{kind.upper()} top-{classes}{note}", scorer)


BASELINE = Method("baseline", "Baseline")
TEMPERATURE = Method("temperature", "Temperature scaling", answer=TemperatureScaling())
VECTOR = Method("vector", "Vector scaling", answer=VectorScaling())
MATRIX = Method("matrix", "Matrix scaling", answer=MatrixScaling())
OVERCONFIDENT = Method(
    "overconfident", "Temperature x 0.3", answer=TemperatureScaling(multiplier=0.3)
)
UNDERCONFIDENT = Method(
    "underconfident", "Temperature x 3", answer=TemperatureScaling(multiplier=3.0)
)
ENTROPY = Method("entropy", "Entropy", Entropy())
MARGIN = Method("margin", "Margin", Margin())
PATIENCE = Method("patience", "Patience", Patience())
PRODUCT = Method("product", "Product of experts", answer=ProductOfExperts())
VOTE = Method("vote", "Majority vote", answer=MajorityVote())
VOTE_PATIENCE = Method("vote-patience", "Majority vote, patience", Patience(), MajorityVote())
SETTLED = Method(
    "adaptive-consistency", "Adaptive consistency", Settled(), MajorityVote(), "shared"
)
SETTLED_DIRICHLET = Method(
    "adaptive-consistency-dirichlet",
    "Adaptive consistency, Dirichlet",
    Settled("dirichlet"),
    MajorityVote(),
    "shared",
)
ENSEMBLE = Method("ensemble", "Geometric ensemble", answer=GeometricEnsemble())
CLASS_ENSEMBLE = Method("class-ensemble", "Class-wise ensemble", answer=ClassWiseEnsemble())
EEFP = Method("eefp", "EEFP (paper)", Corrector())
EEFP_NO_HISTORY = Method("eefp-no-history", "EEFP, no history", Corrector(history=False))
CCCT = Method("ccct", "CCCT", Corrector(target="correctness"))
EEFP_ENSEMBLE = Method("eefp-ensemble", "EEFP on ensemble", Corrector(), GeometricEnsemble())
EEFP_CLASS_ENSEMBLE = Method(
    "eefp-class-ensemble", "EEFP on class-wise ensemble", Corrector(), ClassWiseEnsemble()
)
EEFP_NO_HISTORY_CLASS_ENSEMBLE = Method(
    "eefp-no-history-class-ensemble",
    "EEFP, no history, on class-wise ensemble",
    Corrector(history=False),
    ClassWiseEnsemble(),
)
EEFP_LOGISTIC = Method(
    "eefp-logistic", "EEFP, ridge logistic", LogisticCorrector(), thresholds="smooth"
)
BREAK_EVEN = Method(
    "break-even",
    "Break-even prices",
    BreakEven(),
    GeometricEnsemble(shrinkage=0.02),
    thresholds="shared",
)
BREAK_EVEN_NO_ENSEMBLE = Method(
    "break-even-no-ensemble", "Break-even, no ensemble", BreakEven(), thresholds="shared"
)


def register(method: Method) -> None:
    """Make a method known by its name: to comparisons and the command line.

    Raises:
        ConfigError: Another method has this name.
    """
    METHODS.add(method.name, method)


def find_methods(
    names: str | Sequence[str | Method],
    num_classes: int,
    history_type: type[History] = History,
) -> list[Method]:
    """Methods for these names, groups expanded, each once.

    A group leaves out correctors that read more classes than there are, and methods that cannot
    read the ledgers. After a colon, a name may say which thresholds the method is to have:
    `eefp:smooth`. A name may also be one that an installed package has registered
    (`offramp.registry`), which is imported then.

    Raises:
        ConfigError: An unknown name, with the nearest known one.
        PluginError: The package's method cannot be loaded.

    Example:
        >>> [method.name for method in find_methods(["baseline", "simple"], num_classes=10)][:3]
        ['baseline', 'entropy', 'margin']
    """
    found: dict[str, Method] = {}
    for name in [names] if isinstance(names, str) else names:
        if isinstance(name, Scorer | Answer):
            kind = type(name).__name__
            raise ConfigError(
                f"a {kind} takes part as a method, which has a name and a label: "
                f'offramp.Method("mine", "Mine", {kind}(...))'
            )
        if isinstance(name, Method):
            if name.name in found:
                raise ConfigError(f"two methods are called {name.name!r}; rename one of them")
            found[name.name] = name
        elif group := _group(
            "answers" if name == "standard" and not history_type.has_logits else name
        ):
            members = (_method_named(member) for member in group)
            found |= {m.name: m for m in members if _suits(m, num_classes, history_type)}
        else:
            found[name] = _method_named(name)
    if not found:
        raise ConfigError("`methods` must name at least one method")
    return list(found.values())


def ready(method: Method) -> Method:
    """A method as one would use it: with the thresholds of `Policy.tune` instead of the paper's.

    Thresholds that the method's name asks for after a colon stay, and so do the thresholds of a
    method that is made for others than the paper's.

    Example:
        >>> names = ["eefp", "eefp:geometric", "break-even"]
        >>> [ready(method).thresholds for method in find_methods(names, num_classes=10)]
        ['smooth', 'geometric', 'shared']
    """
    if ":" in method.name or method.thresholds != PAPER:
        return method
    return replace(method, thresholds=DEFAULT)


def _group(name: str) -> Sequence[str]:
    """The members of a group, or nothing."""
    plugin = None if name in GROUPS or name in METHODS else METHODS.plugin(name)
    return plugin if isinstance(plugin, list | tuple) else GROUPS.get(name, ())


def _method_named(name: str) -> Method:
    """The method with this name, with other thresholds if the name says so."""
    plain, colon, thresholds = name.partition(":")
    method: Method | None = METHODS.get(plain) or _top_method(plain) or plugin_method(plain)
    if method is None:
        raise ConfigError(METHODS.unknown(plain, GROUPS))
    if not colon:
        return method
    try:
        threshold_method(thresholds)
    except ConfigError as error:
        raise ConfigError(f"{name!r}: after the colon, {error}") from None
    return method.with_thresholds(thresholds)


def plugin_method(name: str) -> Method | None:
    """The method that an installed package has registered under a name, or None.

    Methods of the library cannot be replaced: their names come first.

    Raises:
        PluginError: It cannot be loaded, or is no method, scorer or answer.
    """
    found = METHODS.plugin(name)
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
    return f"the method {name!r} of the package {METHODS.plugins()[name]}"


def _suits(method: Method, num_classes: int, history_type: type[History]) -> bool:
    answer, chooses = method.answer, type(method).plans is not Method.plans  # what can be read
    reads = answer.can_read(history_type) and method.scorer.can_read(answer.gives(history_type))
    if not (reads or chooses):
        return False
    if not history_type.has_logits:
        return ":" in method.name or "top-" not in method.name  # there is no `k` to choose
    k = getattr(method.scorer, "k", None)
    return not isinstance(k, int) or k <= num_classes
