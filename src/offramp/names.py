"""Names of what can be asked for, without the code behind them, which takes seconds to import.

The command line shows, completes and checks them. `tests/test_names.py` holds each list against
the registry that it stands for.
"""

import re
from collections.abc import Iterable

from offramp.errors import ConfigError
from offramp.extras import PAPER_METHODS, paper_command, plugin_origins
from offramp.extras import THRESHOLDS as PLUGIN_THRESHOLDS
from offramp.hints import did_you_mean, or_known

METHODS = (
    *("baseline", "temperature", "vector", "matrix", "overconfident", "underconfident", "entropy"),
    *("margin", "patience", "product", "vote", "vote-patience", "ensemble", "class-ensemble"),
    *("eefp", "eefp-no-history", "ccct", "eefp-ensemble", "eefp-class-ensemble"),
    *("eefp-no-history-class-ensemble", "eefp-logistic"),
    *("break-even", "break-even-no-ensemble", "auto", "pairs"),
)
TOP = re.compile(r"(eefp|ccct)-top-([1-9]\d*|all)(-no-history)?")
"""Names of correctors that look at K classes, of which there are as many as there are K."""
GROUPS = ("standard", "extended", "simple")
CANDIDATES = ("baseline", "baseline:smooth", "eefp-logistic", "break-even")
"""Methods that `auto` chooses from, the one that is trusted most last; the first is the yardstick.

All of them are fitted in closed form, and need a few hundred samples.
"""
THRESHOLDS = ("geometric", "smooth", "shared")
ARCHITECTURES = (
    *("resnet34", "resnet18", "vit-mini", "vit-tiny", "vit-small", "efficientnet-b0"),
    *("efficientnet-b2", "msdnet", "thin-resnet", "convnet"),
)
HEADS = (
    *("pooled-linear", "pooled-mlp", "two-conv", "separable", "mixed-pool", "cls-token"),
    *("mean-token", "cascade", "mixed-cascade"),
)
OBJECTIVES = ("joint", "gradient-equilibrium", "distillation", "zero-time-waste")
RECIPES = ("paper", "finetune")
AUGMENTATIONS = ("none", "light", "paper")
LOSSES = ("regret", "regret-sure", "regret-hopeless", "disagreement")
RUNTIMES = ("torch", "onnx")
PRECISIONS = ("auto", "float32", "bfloat16", "float16")
DATA_SETS = (
    *("cluttered-digits", "mixture", "cifar100", "cifar10", "tiny-imagenet", "imagenet-1k"),
    *("domainnet", "pacs", "sst2"),
)
STUDIES = (  # in the order of the paper; the last goes beyond it
    "resnet34-tinyimagenet",
    "vit-tiny-tinyimagenet",
    "msdnet-cifar100",
    "vit-small-imagenet",
    "efficientnet-b2-imagenet",
    "topk-ablation",
    "history-ablation",
    "calibration-methods",
    "decalibration",
    "domain-shift",
    "other-methods",
    "corrector-cost",
    "metric-validity",
    "futile-sample",
    "beyond",
)


def plugins_known() -> list[str]:
    """Methods of installed packages; nothing is imported but their list."""
    return list(plugin_origins())


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
        if plain not in METHODS and plain not in GROUPS and not TOP.fullmatch(plain):
            plugins = plugins_known()
            if plain not in plugins:
                if plain in PAPER_METHODS:
                    raise ConfigError(f"{plain!r} comes with offramp-paper: {paper_command()}")
                known = [*GROUPS, *METHODS, *plugins]
                raise ConfigError(f"there is no method {plain!r}{or_known(plain, known)}")
        ways = [*THRESHOLDS, *plugin_origins(PLUGIN_THRESHOLDS)]
        if colon and thresholds not in ways:
            raise ConfigError(
                f"after the colon of {name!r}, thresholds must be one of {', '.join(ways)}"
                f"{did_you_mean(thresholds, ways, f'{plain}:')}"
            )
