"""Training objectives: losses of the exits' logits, and the phases that they train in."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from offramp import check
from offramp.errors import ConfigError
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import State, map_leaves
from offramp.registry import OBJECTIVES
from offramp.training.processes import mean_over_processes

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
TrainedPart: TypeAlias = Literal["network", "backbone", "heads", "cascade"]


@dataclass(frozen=True)
class Phase:
    """One phase of training, with an optimiser and a schedule of its own.

    Args:
        name: For progress and the history.
        objective: What is minimised.
        trains: `network` trains everything; `backbone` the stages and the last head; `heads`
            every head but the backbone's own classifier; `cascade` the heads that read logits.
            What is not trained is frozen and in eval mode.
    """

    name: str
    objective: "Objective"
    trains: TrainedPart = "network"


class Objective:
    """Parent of the training methods: `objective(logits, targets)` is a loss.

    Subclasses are dataclasses of plain values. Most need only the outputs, and can be used in a
    training loop of your own; those that change how gradients flow override `logits` too.

    Attributes:
        name: For `train(..., objective=name)`.
    """

    name: ClassVar[str] = "objective"

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss.

        Args:
            logits: `[N, M, K]`, of all exits.
            targets: Classes `[N]`, or probabilities `[N, K]` as Mixup gives them.

        Returns:
            A scalar.
        """
        raise NotImplementedError

    def logits(self, network: EarlyExitNetwork, inputs: Any) -> Tensor:  # noqa: ANN401
        """Run the network; `[N, M, K]`."""
        logits: Tensor = network(inputs)
        return logits

    def phases(self, network: EarlyExitNetwork) -> tuple[Phase, ...]:
        """The phases of training; one that trains everything, unless overridden."""
        return (Phase("network", self),)

    def state(self) -> dict[str, float]:
        """What changes during training, for a checkpoint."""
        return {}

    def load_state(self, state: dict[str, float]) -> None:
        """Restore what `state` returned."""

    def describe(self) -> dict[str, Any]:
        """Name and settings, as JSON values."""
        is_settled = is_dataclass(self) and not isinstance(self, type)
        settings: dict[str, Any] = asdict(self) if is_settled else {}  # type: ignore[call-overload]
        return {"name": self.name, **settings}


class PlainObjective(Objective):
    """Any function of `(logits, targets)` as an objective."""

    def __init__(self, function: LossFunction) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)  # type: ignore[misc]

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """What the function returns."""
        return self.function(logits, targets)


def exit_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy `[M]` of every exit, mean over the samples, in float32.

    Every exit is trained on the same targets: soft ones, as Mixup and CutMix make them, hold for
    all exits, since all of them see the same mixed input.

    Args:
        logits: `[N, M, K]`.
        targets: Classes `[N]`, or probabilities `[N, K]`.

    Example:
        >>> logits = torch.zeros(2, 3, 4)
        >>> exit_losses(logits, torch.tensor([0, 3]))
        tensor([1.3863, 1.3863, 1.3863])
        >>> exit_losses(logits, torch.full((2, 4), 0.25))
        tensor([1.3863, 1.3863, 1.3863])
    """
    return sample_losses(logits, targets).mean(0)


def sample_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy `[N, M]` of every sample at every exit, see `exit_losses`."""
    log_probs = logits.float().log_softmax(-1)  # [N, M, K]
    if targets.ndim == 1 and not targets.is_floating_point():
        picked = log_probs.gather(2, targets.view(-1, 1, 1).expand(-1, logits.shape[1], 1))
        return -picked.squeeze(2)
    if targets.shape != (logits.shape[0], logits.shape[2]):
        raise ConfigError(
            f"targets must be classes of the shape [N] or probabilities of the shape [N, K], here "
            f"[{logits.shape[0]}] or {[logits.shape[0], logits.shape[2]]}, got {targets.dtype} of "
            f"the shape {list(targets.shape)}"
        )
    return -(log_probs * targets.unsqueeze(1)).sum(2)


@dataclass
class Joint(Objective):
    """Sum of the cross-entropies of all exits, as most early-exit networks are trained.

    Args:
        weights: `[M]`, how much each exit counts; all alike by default.

    Example:
        >>> Joint()(torch.zeros(2, 3, 4), torch.tensor([0, 1]))
        tensor(4.1589)
        >>> Joint(weights=[0, 0, 1])(torch.zeros(2, 3, 4), torch.tensor([0, 1]))
        tensor(1.3863)
    """

    weights: Sequence[float] | None = None
    name: ClassVar[str] = "joint"

    def __post_init__(self) -> None:
        if self.weights is not None:
            self.weights = tuple(self.weights)
            for weight in self.weights:
                check.at_least("weights", weight, 0)
            check.positive("sum(weights)", sum(self.weights))

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The weighted sum of the exits' losses."""
        return self.weighted_sum(exit_losses(logits, targets))

    def weighted_sum(self, losses: Tensor) -> Tensor:
        """Sum of the exits' losses `[M]`, each times its weight if there are weights."""
        if self.weights is None:
            return losses.sum()
        check.same_length("weights", self.weights, losses, "exit")
        return (losses * torch.tensor(self.weights, device=losses.device)).sum()


@dataclass
class GradientEquilibrium(Joint):
    """Joint training with gradients that are balanced between the exits (Li et al., 2019).

    At exit i of n, counted from 0, the stage before it receives
    `(head's + (n - i - 1) x deeper's) / (n - i)`, where *head's* is the gradient from this exit's
    head and *deeper's* the one from all deeper stages. A head's own weights get their full
    gradient, and outputs do not change.

    Our choices: in a state of several tensors (MSDNet carries one per scale) the rule holds for
    each of them; for those that a head does not read, *head's* is zero. `Shared` leaves are left
    alone.

    Args:
        weights: `[M]`, how much each exit's loss counts; all alike by default.

    Example:
        >>> from offramp.networks import build
        >>> objective = GradientEquilibrium()
        >>> network = build("convnet", num_classes=3, image_size=8)
        >>> logits = objective.logits(network, torch.rand(2, 3, 8, 8))
        >>> objective(logits, torch.tensor([0, 2])).backward()
    """

    name: ClassVar[str] = "gradient-equilibrium"

    def logits(self, network: EarlyExitNetwork, inputs: Any) -> Tensor:  # noqa: ANN401
        """Run the network with balanced gradients; `[N, M, K]`, the same as `network(inputs)`."""
        state = network.begin(inputs)
        logits: list[Tensor] = []
        for exit_index in range(network.num_exits):
            state = network.advance(exit_index, state)
            # In a chain no gradient comes back from the next network, so its exits do not count.
            ends = [start for start in network.starts if start > exit_index]
            left = (ends[0] if ends else network.num_exits) - exit_index
            so_far = torch.stack(logits, 1) if logits else None
            logits.append(network.head(exit_index, scale_gradient(state, 1 / left), so_far))
            state = scale_gradient(state, (left - 1) / left)
        return torch.stack(logits, 1)


def scale_gradient(state: State, factor: float) -> State:
    """The same state, through which gradients flow back times `factor`.

    Example:
        >>> x = torch.ones(1, requires_grad=True)
        >>> scale_gradient(x, 0.25).sum().backward()
        >>> x.grad
        tensor([0.2500])
    """

    def scale(leaf: Tensor) -> Tensor:
        same = leaf.view_as(leaf)
        if same.requires_grad:
            same.register_hook(lambda gradient: gradient * factor)
        return same

    result: State = map_leaves(scale, state)
    return result


@dataclass
class Distillation(Joint):
    """Earlier exits learn from labels and from the detached last exit (Phuong & Lampert, 2019).

    An earlier exit's loss is `(1 - share) x CE(labels) + share x T² x CE(teacher / T, exit / T)`;
    the last exit's is the cross-entropy alone. The losses are summed. The temperature T starts at
    `temperature` and grows by the factor `growth` at each step at which the teacher is confident,
    that is, where the mean of its largest probability at T is above `confidence`. A teacher that
    is certain would teach no more than the labels do.

    Our choices: the default values; at most one growth per step; the sum over exits; T never
    grows for a confidence below 1/K + 0.1, which even an untrained teacher would reach with few
    classes; and T only grows while gradients are recorded, hence not in evaluation.

    Args:
        weights: `[M]`, how much each exit's loss counts; all alike by default.
        share: Weight of the teacher in an earlier exit's loss, in [0, 1].
        confidence: Above which the temperature grows, in (0, 1].
        growth: Factor per step, at least 1.
        temperature: To begin with.

    Attributes:
        temperature_: The current T.

    Example:
        >>> objective = Distillation()
        >>> logits = torch.tensor([[[1.0, 0.0, 0.0], [9.0, 0.0, 0.0]]], requires_grad=True)
        >>> objective(logits, torch.tensor([0])).backward()
        >>> objective.temperature_
        1.05
    """

    share: float = 0.5
    confidence: float = 0.5
    growth: float = 1.05
    temperature: float = 1.0
    name: ClassVar[str] = "distillation"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.within("share", self.share, 0, 1)
        check.within("confidence", self.confidence, 0, 1, ends="(]")
        check.at_least("growth", self.growth, 1)
        check.positive("temperature", self.temperature)
        self.temperature_ = self.temperature

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss; the temperature may grow."""
        labelled = exit_losses(logits, targets)  # [M]
        teacher = logits[:, -1].detach().float()  # [N, K]
        if torch.is_grad_enabled():
            self._grow(teacher)
        warm = self.temperature_
        taught = exit_losses(logits[:, :-1] / warm, (teacher / warm).softmax(-1))  # [M - 1]
        earlier = (1 - self.share) * labelled[:-1] + self.share * warm**2 * taught
        losses = torch.cat([earlier, labelled[-1:]])
        return self.weighted_sum(losses)

    def _grow(self, teacher: Tensor) -> None:
        surest = (teacher / self.temperature_).softmax(-1).amax(-1).mean()
        limit = max(self.confidence, 1 / teacher.shape[1] + 0.1)
        # The mean over all processes, to keep their temperatures the same.
        if float(mean_over_processes(surest)) > limit:
            self.temperature_ *= self.growth

    def state(self) -> dict[str, float]:
        """The current temperature."""
        return {"temperature": self.temperature_}

    def load_state(self, state: dict[str, float]) -> None:
        """Restore the temperature."""
        self.temperature_ = float(state["temperature"])


@dataclass
class LastExit(Objective):
    """The cross-entropy of the last exit alone: how a backbone is trained without exits.

    Example:
        >>> LastExit()(torch.zeros(2, 3, 4), torch.tensor([0, 1]))
        tensor(1.3863)
    """

    name: ClassVar[str] = "last-exit"

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The last exit's loss."""
        return exit_losses(logits[:, -1:], targets).sum()

    def logits(self, network: EarlyExitNetwork, inputs: Any) -> Tensor:  # noqa: ANN401
        """Run the stages and the last head only, `[N, 1, K]`; all heads if the last reads them."""
        if reads_logits(network, network.num_exits - 1):
            return super().logits(network, inputs)
        state = network.begin(inputs)
        for exit_index in range(network.num_exits):
            state = network.advance(exit_index, state)
        return network.head(network.num_exits - 1, state).unsqueeze(1)


@dataclass
class ZeroTimeWaste(Objective):
    """The backbone is trained and frozen, then cascaded heads (Wołczyk et al., 2021).

    Each head also reads the detached logits of the head before it: what was computed for an exit
    that was not taken is not wasted. The network must have cascade heads:
    `attach(backbone, head="cascade")`. In a training loop of your own, this is the loss of the
    second phase, the sum over the exits. The method's geometric ensemble over the exits is an
    answer, `offramp.answers.GeometricEnsemble`, and is fitted on held_out.

    Our choices: both phases have the same optimiser, schedule and number of epochs, and the
    augmentation if there is one. The last exit is the backbone's own classifier and stays frozen
    with it; if it is a cascade head instead, it is trained in both phases. The heads are trained
    at the same time, each on the current logits of the head before it.
    """

    name: ClassVar[str] = "zero-time-waste"

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The sum of the exits' losses."""
        return exit_losses(logits, targets).sum()

    def phases(self, network: EarlyExitNetwork) -> tuple[Phase, ...]:
        """The backbone with its last exit, then the cascade.

        Raises:
            ConfigError: A head before the last one does not read logits.
        """
        for exit_index, name in enumerate(network.exit_names[:-1]):
            if not reads_logits(network, exit_index):
                raise ConfigError(
                    "zero-time-waste trains heads that read the logits of the head before them, "
                    f"and the head of exit {exit_index} ({name}) does not: make the network with "
                    'head="cascade"'
                )
        return (Phase("backbone", LastExit(), "backbone"), Phase("heads", self, "cascade"))


def reads_logits(network: EarlyExitNetwork, exit_index: int) -> bool:
    """Whether the head of an exit reads the logits of the exits before it."""
    return bool(getattr(network.heads[exit_index], "reads_logits", False))


def find_objective(objective: str | Objective | LossFunction) -> Objective:
    """An objective by name, as it is, or from a function of `(logits, targets)`.

    Raises:
        ConfigError: An unknown name, or something that cannot be called.

    Example:
        >>> find_objective("joint")
        Joint(weights=None)
    """
    if isinstance(objective, Objective):
        return objective
    if isinstance(objective, str) and objective in OBJECTIVES:
        named: Objective = OBJECTIVES[objective]()
        return named
    if callable(objective):
        return PlainObjective(objective)
    raise ConfigError(
        f"`objective` must be one of {', '.join(OBJECTIVES)}, an Objective, or a function of "
        f"(logits, targets), got {objective!r}"
    )
