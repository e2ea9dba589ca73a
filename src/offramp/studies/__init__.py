"""The paper's tables and figures, each a TOML file; see `offramp.studies.find`."""

from importlib.resources import files
from pathlib import Path

from offramp.errors import ConfigError
from offramp.flow.parsing import did_you_mean

__all__ = ["NAMES", "SCALES", "find"]

SCALES = ("small", "paper")

# In the order of the paper, and what goes beyond it.
NAMES = (
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


def find(name: str) -> Path:
    """The file of a study, or of the demo.

    Raises:
        ConfigError: There is no such study.

    Example:
        >>> find("topk-ablation").name
        'topk-ablation.toml'
        >>> find("topk")
        Traceback (most recent call last):
        offramp.errors.ConfigError: there is no study `topk`; did you mean `topk-ablation`?
    """
    known = (*NAMES, "demo")
    if name not in known:
        raise ConfigError(f"there is no study `{name}`{did_you_mean(name, known)}")
    return Path(str(files("offramp.studies"))) / f"{name}.toml"
