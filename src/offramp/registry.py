"""Every name once, with the place of what it names, which is imported when it is asked for.

The library finds methods, architectures, data sets and the like by these tables, and the command
line lists, completes and checks their names without the code behind them, which takes seconds to
import. Installed packages add names of their own: to a table with a `group`, by entry points.
"""

import re
from collections import UserDict
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from offramp.errors import ConfigError, OfframpError, PluginError
from offramp.imports import install_command


def close_names(
    name: object, known: Iterable[str], count: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Known names that look like this one, the closest first; `cutoff` from 0 to 1."""
    candidates = list(known)
    begun = [each for each in candidates if str(name) and each.startswith(str(name))]
    return get_close_matches(str(name), candidates, count, cutoff) or begun[:count]


def did_you_mean(name: object, known: Iterable[str], prefix: str = "", cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: the closest known one, or nothing.

    The prefix is put before the suggestion, where the name is only a part of what was written.

    Example:
        >>> did_you_mean("epoch", ["epochs", "seed"]), did_you_mean("x", ["epochs", "seed"])
        ('; did you mean `epochs`?', '')
    """
    close = close_names(name, known, cutoff=cutoff)
    return f"; did you mean `{prefix}{close[0]}`?" if close else ""


def or_known(name: object, known: Iterable[str]) -> str:
    """The same, with the list of all known names where none is close.

    Example:
        >>> or_known("x", ["seed", "epochs"])
        '; known are epochs, seed'
    """
    candidates = list(known)
    return did_you_mean(name, candidates) or f"; known are {', '.join(sorted(candidates))}"


class Names(UserDict[str, Any]):
    """Names of one kind, and what they name.

    The names are there at once. What a name stands for is imported when it is asked for, from its
    place, `module:attribute`.

    Args:
        kind: What is named, for messages.
        places: By name, in the order in which they are listed.
        group: Entry points by which installed packages add names. The library's own come first.
        paper: Names that come with the package offramp-paper.

    Example:
        >>> names = Names("number", {"pi": "math:pi"})
        >>> list(names), names["pi"] > 3
        (['pi'], True)
        >>> names.check("py")
        Traceback (most recent call last):
        offramp.errors.ConfigError: there is no number 'py'; known are pi
    """

    def __init__(
        self, kind: str, places: Mapping[str, str], group: str = "", paper: Iterable[str] = ()
    ) -> None:
        super().__init__(places)
        self.kind = kind
        self.group = group
        self.paper = tuple(paper)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        found = self.data[name]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = self.data[name] = getattr(import_module(module), attribute)
        return found

    def add(self, name: str, named: object, error: type[OfframpError] = ConfigError) -> None:
        """Add a name; another meaning of a name that is taken raises the error."""
        if name in self.data and self[name] != named:
            raise error(f"there is a {self.kind} {name!r} already; choose another name")
        self.data[name] = named

    def listed(self) -> list[str]:
        """All names: the library's, and those of installed packages."""
        return [*self, *(name for name in self.plugins() if name not in self)]

    def check(self, name: str, error: type[OfframpError] = ConfigError) -> None:
        """Raise the error, with the closest known name, unless there is such a name."""
        if name not in self and name not in self.plugins():
            raise error(self.unknown(name))

    def unknown(self, name: str, others: Iterable[str] = ()) -> str:
        """The message about an unknown name; `others` are further names that are understood."""
        if name in self.paper:
            command = install_command("offramp-paper")
            return f"the {self.kind} {name!r} comes with offramp-paper: {command}"
        known = [*others, *self.listed()]
        return f"there is no {self.kind} {name!r}{or_known(name, known)}"

    def plugins(self) -> dict[str, str]:
        """Names that installed packages add, and these packages; nothing is imported."""
        return {
            name: " and ".join(map(_provider, found))
            for name, found in _registered(self.group).items()
        }

    def plugin(self, name: str) -> Any:  # noqa: ANN401
        """What an installed package has registered under a name, or None.

        Raises:
            PluginError: Two packages have, or it cannot be imported.
        """
        found = _registered(self.group).get(name, [])
        if not found:
            return None
        if len(found) > 1:
            both = " and ".join(map(_provider, found))
            raise PluginError(
                f"the {self.kind} {name!r} is registered by {both}; uninstall one of them"
            )
        (entry,) = found
        try:
            return entry.load()
        # Someone else's code can fail in any way, and must not look like ours.
        except Exception as error:
            package = _provider(entry)
            raise PluginError(
                f"the {self.kind} {name!r} of the package {package} cannot be loaded from "
                f"{entry.value}: {type(error).__name__}: {error}; update or uninstall "
                f"{package.split()[0]}"
            ) from error


METHODS = Names(
    "method",
    {
        "baseline": "offramp.methods:BASELINE",
        "temperature": "offramp.methods:TEMPERATURE",
        "vector": "offramp.methods:VECTOR",
        "matrix": "offramp.methods:MATRIX",
        "overconfident": "offramp.methods:OVERCONFIDENT",
        "underconfident": "offramp.methods:UNDERCONFIDENT",
        "entropy": "offramp.methods:ENTROPY",
        "margin": "offramp.methods:MARGIN",
        "patience": "offramp.methods:PATIENCE",
        "product": "offramp.methods:PRODUCT",
        "vote": "offramp.methods:VOTE",
        "vote-patience": "offramp.methods:VOTE_PATIENCE",
        "adaptive-consistency": "offramp.methods:SETTLED",
        "adaptive-consistency-dirichlet": "offramp.methods:SETTLED_DIRICHLET",
        "ensemble": "offramp.methods:ENSEMBLE",
        "class-ensemble": "offramp.methods:CLASS_ENSEMBLE",
        "eefp": "offramp.methods:EEFP",
        "eefp-no-history": "offramp.methods:EEFP_NO_HISTORY",
        "ccct": "offramp.methods:CCCT",
        "eefp-ensemble": "offramp.methods:EEFP_ENSEMBLE",
        "eefp-class-ensemble": "offramp.methods:EEFP_CLASS_ENSEMBLE",
        "eefp-no-history-class-ensemble": "offramp.methods:EEFP_NO_HISTORY_CLASS_ENSEMBLE",
        "eefp-logistic": "offramp.methods:EEFP_LOGISTIC",
        "break-even": "offramp.methods:BREAK_EVEN",
        "break-even-no-ensemble": "offramp.methods:BREAK_EVEN_NO_ENSEMBLE",
        "auto": "offramp.advice.auto:AUTO",
    },
    group="offramp.methods",
    paper=("pcee", "eenet", "gates", "stacking", "eefp-stacking", "beyond"),
)
"""Methods, but for `eefp-top-K` and `ccct-top-K`, which serve any K: see `TOP`.

`eefp` and `ccct` read the logits of min(5, K) classes.
"""

TOP = re.compile(r"(eefp|ccct)-top-([1-9]\d*|all)(-no-history)?")
"""Names of correctors that read the logits of the K likeliest classes, for any K."""

_ALL_K = tuple(f"{name}-top-{k}" for name in ("eefp", "ccct") for k in (1, 2, 5, 10, "all"))

GROUPS = {
    "standard": ("baseline", "temperature", "eefp", "eefp-no-history", "ccct", "auto"),
    "answers": ("baseline:smooth", "eefp-logistic", "vote:smooth", "adaptive-consistency", "auto"),
    "extended": ("baseline", "temperature", "vector", "matrix", *_ALL_K, "eefp-no-history"),
    "simple": ("baseline", "entropy", "margin", "patience", "product", "ensemble"),
}
"""Names of several methods at once; `standard` means `answers` on ledgers without logits.
`extended` is the paper's extended comparison. A plug-in that is a list of names is
a group, too."""

CANDIDATES = ("baseline", "baseline:smooth", "eefp-logistic", "break-even")
"""Methods that `auto` chooses from, the one that is trusted most last; gains are measured against
the first.

All of them are fitted in closed form, and need a few hundred samples.
"""

THRESHOLDS = Names(
    "threshold method",
    {
        "geometric": "offramp.thresholds.geometric:geometric_sweep",
        "smooth": "offramp.thresholds.smooth:smooth_sweep",
        "shared": "offramp.thresholds.geometric:shared_sweep",
    },
    group="offramp.thresholds",
    paper=("assigned",),
)

LOSSES = (
    *("accuracy", "regret", "regret-sure", "regret-hopeless", "disagreement"),
    *("precision", "recall"),
)
"""What can be guaranteed of a policy: against the full network, or of the answers of one class."""

ARCHITECTURES = Names(
    "network",
    {
        "resnet34": "offramp.networks.architectures.resnet:resnet34",
        "resnet18": "offramp.networks.architectures.resnet:resnet18",
        "vit-mini": "offramp.networks.architectures.vit:vit_mini",
        "vit-tiny": "offramp.networks.architectures.vit:vit_tiny",
        "vit-small": "offramp.networks.architectures.vit:vit_small",
        "efficientnet-b0": "offramp.networks.architectures.efficientnet:EfficientNet",
        "efficientnet-b2": "offramp.networks.architectures.efficientnet:efficientnet_b2",
        "msdnet": "offramp.networks.architectures.msdnet:msdnet",
        "thin-resnet": "offramp.networks.architectures.resnet:thin_resnet",
        "convnet": "offramp.networks.architectures.convnet:ConvNet",
    },
)
"""Backbones that `build` makes from a number of classes and an image size alone."""

BUILDERS = Names(
    "builder",
    {
        **ARCHITECTURES.data,
        "vit": "offramp.networks.architectures.vit:VisionTransformer",
        "efficientnet-lite0": "offramp.networks.architectures.efficientnet:efficientnet_lite0",
        "transformers": "offramp.networks.transformers.models:model_from_config",
        "timm": "offramp.networks.backbones:timm_model",
        "torchvision": "offramp.networks.backbones:torchvision_model",
    },
)
"""What makes backbones. A file names its backbone's builder, and nothing else can be run."""

HEADS = Names(
    "head",
    {
        "pooled-linear": "offramp.networks.choose_heads:POOLED_LINEAR",
        "pooled-mlp": "offramp.networks.choose_heads:POOLED_MLP",
        "two-conv": "offramp.networks.choose_heads:TWO_CONV",
        "separable": "offramp.networks.choose_heads:SEPARABLE",
        "mixed-pool": "offramp.networks.choose_heads:MIXED_POOL",
        "cls-token": "offramp.networks.choose_heads:CLS_TOKEN",
        "mean-token": "offramp.networks.choose_heads:MEAN_TOKEN",
        "cascade": "offramp.networks.choose_heads:CASCADE",
        "mixed-cascade": "offramp.networks.choose_heads:MIXED_CASCADE",
    },
)

OBJECTIVES = Names(
    "objective",
    {
        "joint": "offramp.training.objectives:Joint",
        "gradient-equilibrium": "offramp.training.objectives:GradientEquilibrium",
        "distillation": "offramp.training.objectives:Distillation",
        "zero-time-waste": "offramp.training.objectives:ZeroTimeWaste",
    },
)

RECIPES = Names(
    "recipe",
    {
        "paper": "offramp.training.config:PAPER",
        "finetune": "offramp.training.config:FINETUNE",
    },
)

AUGMENTATIONS = Names(
    "augmentation",
    {
        "none": "offramp.data.augmentation:NONE",
        "light": "offramp.data.augmentation:LIGHT",
        "paper": "offramp.data.augmentation:PAPER",
    },
)

EMBEDDED = Names(
    "data set",
    {
        "cluttered-digits": "offramp.data.embedded:cluttered_digits",
        "mixture": "offramp.data.embedded:mixture",
    },
)
"""Data sets that are made on demand."""

CATALOG = Names(
    "data set",
    {
        "cifar100": "offramp.data.catalog:CIFAR100",
        "cifar10": "offramp.data.catalog:CIFAR10",
        "tiny-imagenet": "offramp.data.catalog:TINY_IMAGENET",
        "imagenet-1k": "offramp.data.catalog:IMAGENET_1K",
        "domainnet": "offramp.data.catalog:DOMAINNET",
        "pacs": "offramp.data.catalog:PACS",
        "sst2": "offramp.data.catalog:SST2",
    },
)
"""Data sets that are searched for, in folders and on the hub."""

DATA_SETS = (*EMBEDDED, *CATALOG)

COMMANDS = Names("command", {}, group="offramp.commands", paper=("study", "studies", "theory"))
"""Commands of installed packages; the command line knows its own."""

RUNTIMES = ("torch", "onnx")


def check_methods(names: Iterable[str]) -> None:
    """Raise `ConfigError` unless all of these are names of methods or groups.

    Example:
        >>> check_methods(["baseline", "eefp:smooth", "standard"])
        >>> check_methods(["eepf"])
        Traceback (most recent call last):
        offramp.errors.ConfigError: there is no method 'eepf'; did you mean ...
    """
    for name in names:
        plain, colon, thresholds = name.partition(":")
        if plain not in GROUPS and not TOP.fullmatch(plain) and plain not in METHODS.listed():
            raise ConfigError(METHODS.unknown(plain, GROUPS))
        ways = THRESHOLDS.listed()
        if colon and thresholds not in ways:
            raise ConfigError(
                f"after the colon of {name!r}, thresholds must be one of {', '.join(ways)}"
                f"{did_you_mean(thresholds, ways, f'{plain}:')}"
            )


def import_hint(class_name: object) -> str:
    """How to define a class that a file names: by import, or by naming its package's method."""
    entries = [entry for found in _registered(METHODS.group).values() for entry in found]
    exact = [entry for entry in entries if entry.attr == class_name]
    if exact:
        entry = exact[0]
        return (
            f"the package {_provider(entry)} has one of that name; nothing is imported because "
            f"a file says so: import {entry.module} before loading, or on the command line say "
            f"offramp --plugin {entry.name} ..."
        )
    names = ", ".join(entry.name for entry in entries)
    return (
        "if it is your own class, import its module before loading; on the command line, register "
        "it in a package (entry points `offramp.methods`) and say offramp --plugin NAME ..."
        + (f" (installed: {names})" if names else "")
    )


def _registered(group: str) -> dict[str, list[EntryPoint]]:
    """By name; a package that is found twice on the path counts once."""
    found: dict[str, dict[tuple[str, str], EntryPoint]] = {}
    for entry in entry_points(group=group) if group else ():
        found.setdefault(entry.name, {}).setdefault((_provider(entry), entry.value), entry)
    return {name: list(entries.values()) for name, entries in sorted(found.items())}


def _provider(entry: EntryPoint) -> str:
    """Name and version of the package of an entry."""
    return (
        "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    )
