"""Heads, which turn the state at an exit into logits.

A head takes `(state, logits_so_far)`. It first reads features from the state without any
parameter, then classifies them: with a frozen backbone the features are computed only once. Any
module with that signature can be a head; those here can also be saved. Which of them an exit gets
is decided in `choose_heads`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from offramp.errors import FileFormatError, NetworkError
from offramp.files import restore
from offramp.networks.state import Path, State, leaf_at

HeadMaker: TypeAlias = Callable[[State, int, int], nn.Module]
PoolKind = Literal["whole", "flat", "map", "max-mean", "first", "mean"]
GRID = 4  # cells in each direction that `max-mean` pools to


@dataclass(frozen=True)
class Pool:
    """How features are read from a state, without parameters.

    Args:
        kind: `map` averages `[N, C, ...]` over all positions, `mean` does so for `[N, ..., C]`,
            such as tokens; `max-mean` takes the maxima and the means of `[N, C, H, W]` in 4 x 4
            cells; `first` takes the first token of `[N, T, C]`, `flat` takes `[N, C]` as it is,
            and `whole` returns the tensor unpooled.
        leaf: Where in the state the tensor is.
        mask: Where in the state the mask `[N, T]` of the tokens is, if there is one.

    Example:
        >>> Pool("map")(torch.ones(2, 3, 4, 4)).shape
        torch.Size([2, 3])
    """

    kind: PoolKind
    leaf: Path = ()
    mask: Path | None = None

    def __call__(self, state: State) -> Tensor:
        """Features `[N, C]`; `[N, 2, 16 C]` for `max-mean`, the tensor itself for `whole`."""
        tensor: Tensor = leaf_at(state, self.leaf)
        if self.kind == "map":
            return tensor.flatten(2).mean(2)
        if self.kind == "max-mean":
            pooled = _cell_maxima(tensor), adaptive_avg_pool2d(tensor, GRID)
            return torch.stack([each.flatten(1) for each in pooled], dim=1)
        if self.kind == "first":
            return tensor[:, 0]
        if self.kind == "mean":
            return self._mean(tensor, state)
        return tensor

    def _mean(self, tokens: Tensor, state: State) -> Tensor:
        if self.mask is None:
            return tokens.flatten(1, -2).mean(1)
        weights: Tensor = leaf_at(state, self.mask).to(tokens.dtype).unsqueeze(2)  # [N, T, 1]
        return (tokens * weights).sum(1) / weights.sum(1).clamp(min=1)

    def channels(self, tensor: Tensor) -> int:
        """C of the tensor that is read."""
        channels_last = self.kind in ("mean", "first")
        return tensor.shape[-1] if channels_last else tensor.shape[1]


def _cell_maxima(maps: Tensor) -> Tensor:
    """`adaptive_max_pool2d` to the grid; ONNX has it only where the cells are of equal size."""
    if maps.shape[2] % GRID == 0 and maps.shape[3] % GRID == 0:
        return adaptive_max_pool2d(maps, GRID)
    for dim in (2, 3):
        size = maps.shape[dim]
        cells = [(size * i // GRID, -(-size * (i + 1) // GRID)) for i in range(GRID)]
        parts = [maps.narrow(dim, start, end - start).amax(dim) for start, end in cells]
        maps = torch.stack(parts, dim)
    return maps


class Head(nn.Module):
    """Parent of the heads of this library; a subclass can be saved under its class name.

    Attributes:
        reads_logits: Whether `logits_so_far` are read. The runtime has to run the heads before
            such a head even at exits that are closed.
        settings: The constructor's arguments as JSON values.
    """

    reads_logits: ClassVar[bool] = False
    _known: ClassVar[dict[str, type["Head"]]] = {}

    def __init_subclass__(cls) -> None:
        Head._known[cls.__name__] = cls

    def __init__(self, pool: Pool, **settings: int | bool) -> None:
        super().__init__()
        self.pool = pool
        self.settings = settings

    def features(self, state: State) -> Tensor:
        """What the head reads from the state, without parameters; `[N, C]` where pooled."""
        return self.pool(state)

    def classify(self, features: Tensor, logits_so_far: Tensor | None = None) -> Tensor:
        """Logits `[N, K]` from `features(state)`."""
        raise NotImplementedError

    def forward(self, state: State, logits_so_far: Tensor | None = None) -> Tensor:
        """Logits of this exit.

        Args:
            state: What the stage before this exit returned.
            logits_so_far: `[N, m, K]`, the logits of the exits before; only cascade heads read
                them.

        Returns:
            Logits `[N, K]`.
        """
        return self.classify(self.features(state), logits_so_far)

    def describe(self) -> dict[str, Any]:
        """Class name and settings, for a file."""
        return {"name": type(self).__name__, "pool": asdict(self.pool), **self.settings}

    @staticmethod
    def restore(description: object) -> "Head":
        """Rebuild a head from `describe()`, with fresh weights.

        Raises:
            FileFormatError: The file names an unknown class, or settings that it does not have.
        """
        settings = dict(description) if isinstance(description, dict) else {}
        name = settings.pop("name", None)
        found = Head._known.get(name) if isinstance(name, str) else None
        if found is None:
            raise FileFormatError(
                f"the file names an unknown head {name!r}; if it is your own class, make it a "
                "subclass of Head and import its module before loading"
            )
        try:
            return found(pool=restore(Pool, settings.pop("pool"), "pool"), **settings)
        except (TypeError, KeyError, AttributeError) as error:
            raise FileFormatError(f"the file's settings do not fit {name}: {error}") from None


def stacked_for(head: nn.Module, logits: Sequence[Tensor]) -> Tensor | None:
    """The logits so far `[N, m, K]` if a head may read them: stacking them copies all."""
    reads = getattr(head, "reads_logits", True)
    return torch.stack(list(logits), 1) if logits and reads else None


class MaxMeanMix(nn.Module):
    """A learned mixture of maxima and means, `w * maxima + (1 - w) * means` with one number w.

    Shallow-deep networks pool so (Kaya et al. 2019): to 4 x 4 cells, so that the linear layer
    still sees where in the image something is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, features: Tensor) -> Tensor:
        """`[N, 2, F]` to `[N, F]`."""
        maxima, means = features.unbind(1)
        mixed: Tensor = self.weight * maxima + (1 - self.weight) * means
        return mixed


def _first_layers(pool: Pool, width: int, norm: bool) -> tuple[nn.Module, nn.Module, int]:
    """What mixes and what normalizes pooled features, and how many there are then."""
    is_mixed = pool.kind == "max-mean"
    width = GRID * GRID * width if is_mixed else width
    mix = MaxMeanMix() if is_mixed else nn.Identity()
    return mix, nn.LayerNorm(width) if norm else nn.Identity(), width


class LinearHead(Head):
    """Pooled features, an optional layer norm, and one linear layer.

    Args:
        pool: How features are read from the state; `max-mean` gives two kinds, which are mixed.
        width: Number of features C.
        num_classes: K.
        norm: Whether a layer norm comes first; states inside a pre-norm transformer need it.

    Example:
        >>> LinearHead(Pool("map"), width=8, num_classes=3)(torch.rand(2, 8, 4, 4)).shape
        torch.Size([2, 3])
        >>> LinearHead(Pool("max-mean"), width=8, num_classes=3).linear.in_features
        128
    """

    def __init__(self, pool: Pool, width: int, num_classes: int, norm: bool = False) -> None:
        super().__init__(pool, width=width, num_classes=num_classes, norm=norm)
        self.mix, self.norm, inputs = _first_layers(pool, width, norm)
        self.linear = nn.Linear(inputs, num_classes)

    def classify(self, features: Tensor, logits_so_far: Tensor | None = None) -> Tensor:
        """Logits `[N, K]` from features `[N, C]`, or `[N, 2, 16 C]` of `max-mean`."""
        logits: Tensor = self.linear(self.norm(self.mix(features)))
        return logits


class MLPHead(Head):
    """Pooled features and two linear layers with a ReLU between them.

    Args:
        pool: How features are read from the state.
        width: Number of features C.
        num_classes: K.
        hidden: Width of the hidden layer.
        norm: Whether a layer norm comes first.
    """

    def __init__(
        self, pool: Pool, width: int, num_classes: int, hidden: int = 128, norm: bool = False
    ) -> None:
        super().__init__(pool, width=width, num_classes=num_classes, hidden=hidden, norm=norm)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
        )

    def classify(self, features: Tensor, logits_so_far: Tensor | None = None) -> Tensor:
        """Logits `[N, K]` from features `[N, C]`."""
        logits: Tensor = self.layers(self.norm(features))
        return logits


class TwoConvHead(Head):
    """The classifier of MSDNet: two 3x3 convolutions of stride 2, the mean, one linear layer.

    Args:
        pool: Where in the state the feature map is; the head pools by itself.
        width: Channels of the feature map.
        num_classes: K.
        hidden: Channels of both convolutions; 128 on CIFAR in the MSDNet paper.
    """

    def __init__(self, pool: Pool, width: int, num_classes: int, hidden: int = 128) -> None:
        super().__init__(pool, width=width, num_classes=num_classes, hidden=hidden)
        self.convolutions = nn.Sequential(
            *self._convolution(width, hidden), *self._convolution(hidden, hidden)
        )
        self.linear = nn.Linear(hidden, num_classes)

    def classify(self, features: Tensor, logits_so_far: Tensor | None = None) -> Tensor:
        """Logits `[N, K]` from a feature map `[N, C, H, W]`."""
        logits: Tensor = self.linear(self.convolutions(features).mean((2, 3)))
        return logits

    def _convolution(self, width: int, hidden: int) -> list[nn.Module]:
        convolution = nn.Conv2d(width, hidden, 3, stride=2, padding=1, bias=False)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        return [convolution, nn.BatchNorm2d(hidden), nn.ReLU(inplace=True)]


class SeparableHead(TwoConvHead):
    """Two depthwise separable convolutions of stride 2, the mean, one linear layer.

    It sees more than the mean of an early feature map, at about a tenth of the price of
    `TwoConvHead`.

    Args:
        pool: Where in the state the feature map is; the head pools by itself.
        width: Channels of the feature map.
        num_classes: K.
        hidden: Channels after each of the two.

    Example:
        >>> SeparableHead(Pool("whole"), width=8, num_classes=3)(torch.rand(2, 8, 4, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(self, pool: Pool, width: int, num_classes: int, hidden: int = 192) -> None:
        super().__init__(pool, width, num_classes, hidden)

    def _convolution(self, width: int, hidden: int) -> list[nn.Module]:
        depthwise = nn.Conv2d(width, width, 3, stride=2, padding=1, groups=width, bias=False)
        pointwise = nn.Conv2d(width, hidden, 1, bias=False)
        for convolution in (depthwise, pointwise):
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        norms = nn.BatchNorm2d(width), nn.BatchNorm2d(hidden)
        return [depthwise, norms[0], pointwise, norms[1], nn.ReLU(inplace=True)]


class CascadeHead(Head):
    """A linear head that also reads the logits of the exit before it (zero time waste).

    The logits are detached: an exit is not trained through the next one.

    Args:
        pool: How features are read from the state; `max-mean` gives two kinds, which are mixed.
        width: Number of features C.
        num_classes: K.
        first: Whether this is the first exit, which has nothing before it.
        norm: Whether a layer norm comes first.

    Example:
        >>> head = CascadeHead(Pool("flat"), width=4, num_classes=3)
        >>> head(torch.rand(2, 4), torch.rand(2, 1, 3)).shape
        torch.Size([2, 3])
    """

    reads_logits = True

    def __init__(
        self, pool: Pool, width: int, num_classes: int, first: bool = False, norm: bool = False
    ) -> None:
        super().__init__(pool, width=width, num_classes=num_classes, first=first, norm=norm)
        self.first = first
        self.mix, self.norm, inputs = _first_layers(pool, width, norm)
        self.linear = nn.Linear(inputs if first else inputs + num_classes, num_classes)

    def classify(self, features: Tensor, logits_so_far: Tensor | None = None) -> Tensor:
        """Logits `[N, K]` from features of `pool` and the earlier logits `[N, m, K]`.

        Raises:
            NetworkError: The earlier logits are missing.
        """
        features = self.norm(self.mix(features))
        if not self.first:
            if logits_so_far is None or logits_so_far.shape[1] == 0:
                raise NetworkError(
                    "a cascade head reads the logits of the exit before it: pass "
                    "`logits_so_far` of shape [N, m, K]"
                )
            features = torch.cat([features, logits_so_far[:, -1].detach()], dim=1)
        logits: Tensor = self.linear(features)
        return logits


class BackboneHead(Head):
    """The backbone's own classifier, untouched, as the last exit's head: last state to logits."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(Pool("whole"))
        self.module = module

    def classify(self, features: Tensor, logits_so_far: Tensor | None = None) -> Tensor:
        """Logits `[N, K]` from the whole state."""
        logits: Tensor = self.module(features)
        return logits
