"""The sections of a study file, as frozen dataclasses."""

from dataclasses import dataclass, field
from typing import Any, Literal

from offramp.errors import ConfigError
from offramp.machine import AutoPrecision
from offramp.methods import find_methods
from offramp.registry import (
    AUGMENTATIONS,
    BUILDERS,
    GROUPS,
    METHODS,
    OBJECTIVES,
    TOP,
    did_you_mean,
    or_known,
)
from offramp.training import TrainConfig

ZOO = ("cifar100",)


@dataclass(frozen=True)
class DataSettings:
    """Section `[data]`: which data, and how they are split."""

    name: str  # a data set of `offramp.data`, or a folder
    seed: int = 0  # of the splits
    source: str | None = None  # for data with domains: the domain of train, held_out and val
    targets: tuple[str, ...] = ()  # test domains; default the source
    held_out: int | None = None  # number of samples
    val: int | None = None  # number of samples
    image_size: int | None = None  # height and width to resize images to
    # subtracted from the pixels (0 to 1), per channel; default the data set's own
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None  # divides the pixels, per channel
    on_corrupt: Literal["raise", "skip"] = "raise"  # what to do with images that cannot be decoded
    limit: int | None = None  # use only the first samples of each split, for a quick look

    def __post_init__(self) -> None:
        if self.targets and self.source is None:
            raise ConfigError("`targets` are domains, and go with a `source` domain")
        if (self.mean is None) != (self.std is None):
            raise ConfigError("`mean` and `std` go together; give both or neither")
        for name in ("seed", "held_out", "val", "image_size", "limit"):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            if value is not None and value < least:
                raise ConfigError(f"`{name}` must be at least {least}, got {value}")


@dataclass(frozen=True)
class NetworkSettings:
    """Section `[network]`: what to build, or which pretrained model to attach exits to."""

    # a network that `offramp.build` knows, or a pretrained model that `offramp.attach` takes:
    # `timm/...`, `torchvision/...`, a folder, or `owner/name` on the hub
    name: str
    # `every-block`, a number of exits, or names of modules
    exits: str | int | tuple[str, ...] = "every-block"
    head: str | None = None  # kind of head at all exits but the last
    # of the architecture, such as `depth`; the table `[network.settings]`
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.is_built:
            return
        if "/" not in self.name:
            raise ConfigError(
                f"`name` must be a network or a pretrained model, got {self.name!r}"
                f"{or_known(self.name, BUILDERS)}"
            )
        if self.settings:
            raise ConfigError(
                f"`settings` are for networks that offramp builds, not for {self.name!r}"
            )

    @property
    def is_built(self) -> bool:
        """Whether offramp builds the network, rather than loading one of another library."""
        return self.name in BUILDERS


@dataclass(frozen=True)
class TrainSettings(TrainConfig):
    """Section `[train]`: the keys of `offramp.TrainConfig`, and other arguments of `train`."""

    # `joint`, `gradient-equilibrium`, `distillation` or `zero-time-waste`
    objective: str = "joint"
    augment: str = "none"  # `none`, `light` or `paper`
    freeze_backbone: bool = False  # train the heads only
    # of the objective; the table `[train.settings]`
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("objective", list(OBJECTIVES)), ("augment", list(AUGMENTATIONS))):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(
                    f"`{name}` must be one of {', '.join(known)}, got {value!r}"
                    f"{did_you_mean(value, known)}"
                )
        try:
            OBJECTIVES[self.objective](**self.settings)
        except TypeError as error:
            raise ConfigError(f"`settings` do not fit {self.objective!r}: {error}") from None


@dataclass(frozen=True)
class LedgerSettings:
    """Section `[ledgers]`: existing ledgers, instead of data, network and training."""

    # holds `held_out`, `val` and `test`; beside the study file or below OFFRAMP_DATA
    folder: str | None = None
    zoo: str | None = None  # name of shipped ledgers: `cifar100`

    def __post_init__(self) -> None:
        if (self.folder is None) == (self.zoo is None):
            raise ConfigError("needs either `folder` or `zoo`")
        if self.zoo is not None and self.zoo not in ZOO:
            raise ConfigError(
                f"`zoo` must be one of {', '.join(ZOO)}, got {self.zoo!r}"
                f"{did_you_mean(self.zoo, ZOO)}"
            )


@dataclass(frozen=True)
class RecordSettings:
    """Section `[record]`: how ledgers are recorded."""

    dtype: Literal["float16", "float32"] = "float16"  # of the stored logits
    # `bfloat16` and `float16` run the network under autocast; `auto`: what the device is fast in
    precision: AutoPrecision = "float32"
    batch_size: int = 256  # of each process

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"`batch_size` must be at least 1, got {self.batch_size}")


@dataclass(frozen=True)
class CorrectorSettings:
    """Section `[corrector]`: settings of all correctors among the methods."""

    hidden: int = 128
    epochs: int = 30  # minimum number of passes over held_out
    log_odds: bool = True  # false leaves out the one term that the paper's corrector does not have

    def __post_init__(self) -> None:
        for name in ("hidden", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {getattr(self, name)}")


def _why_not(method: str, known: list[str]) -> str:
    """The end of a message about a method that a study does not know."""
    package = METHODS.plugins().get(method)
    if package is None:
        return or_known(method, known)
    return (
        f": it is a method of the package {package}, which study files do not import; record the "
        "ledgers and pass it to offramp compare LEDGERS --methods"
    )


@dataclass(frozen=True)
class CompareSettings:
    """Section `[compare]`: which methods, at which budgets."""

    # names of methods or groups, optionally with thresholds after a colon (`eefp:smooth`), or
    # `auto`
    methods: tuple[str, ...] = ("baseline", "temperature", "eefp")
    # mean costs as shares of the network without exits
    budgets: tuple[float, ...] = (0.25, 0.5, 0.75)
    seeds: int = 3  # number of seeds for methods whose fit is random
    resamples: int = 1000  # bootstrap resamples of the test samples, for intervals

    def __post_init__(self) -> None:
        known = [*GROUPS, *METHODS]
        for name in self.methods:
            plain, colon, _ = name.partition(":")
            if plain not in (*known, *METHODS.paper) and not TOP.fullmatch(plain):
                raise ConfigError(f"`methods` has no method {plain!r}{_why_not(plain, known)}")
            if colon:
                find_methods([name], 2)  # raises if the thresholds are unknown
        if not self.methods or not self.budgets:
            raise ConfigError("`methods` and `budgets` need at least one entry each")
        for budget in self.budgets:
            if not 0 < budget <= 1:
                raise ConfigError(f"`budgets` must lie in (0, 1], got {budget}")
        if self.seeds < 1 or self.resamples < 2:
            raise ConfigError(
                "`seeds` must be at least 1 and `resamples` at least 2, got "
                f"{self.seeds} and {self.resamples}"
            )


@dataclass(frozen=True)
class ReportSettings:
    """Section `[report]`: what the page shows beside the comparisons."""

    # `metric-validity`, `domain-shift`, `corrector-cost`, `futile-sample`, `gains`
    analyses: tuple[str, ...] = ()
    paper: str | None = None  # label of the paper's table or figure that this study repeats
    note: str = ""  # a sentence or two for the reader, at the top of the page
