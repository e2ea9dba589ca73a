"""Small networks, one per exit, on what an exit and those before it say of the top classes.

Correctors are made of them, and methods of other packages. Two layers each. They score without
torch, which only `network_training` needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self

from offramp.arrays import AnyArray, Array, float32, float64, namespace
from offramp.errors import ConfigError
from offramp.imports import require
from offramp.ledger import History
from offramp.scorers.base import PreparedScorer

PARAMETERS = (
    *("hidden_weights_", "hidden_biases_", "output_weights_", "output_biases_"),
    "log_odds_weights_",
)
"""Names of what scorers that are made of small networks learn."""


def check_k(k: object) -> None:
    """Raise unless `k` can be a number of classes to look at."""
    if not (k is None or k == "all" or (type(k) is int and k >= 1)):
        raise ConfigError(f"`k` must be a positive number, 'all' or None, got {k!r}")


@dataclass(frozen=True)
class TopView:
    """What a small network sees: probabilities of the current exit's most probable classes.

    Args:
        k: How many classes; None means min(5, K), `"all"` all.
        history: Also at every exit so far, in the current exit's order.

    Example:
        >>> TopView(k=2, history=True).width(exit_index=3, num_classes=10)
        8
    """

    k: int | Literal["all"] | None
    history: bool

    def top_k(self, num_classes: int) -> int:
        """How many classes of so many."""
        if self.k is None:
            return min(5, num_classes)
        if self.k == "all":
            return num_classes
        if self.k > num_classes:
            raise ConfigError(f"`k` must not exceed the {num_classes} classes, got {self.k}")
        return self.k

    def width(self, exit_index: int, num_classes: int) -> int:
        """How many probabilities are seen at an exit."""
        return self.top_k(num_classes) * (exit_index + 1 if self.history else 1)

    def inputs(self, history: History) -> AnyArray:
        """The probabilities that are seen at the last of the exits so far, `[n, inputs]`."""
        return history.inputs(self.history, self.top_k(history.num_classes))


class SmallNetworks(Protocol):
    """What a scorer keeps of its networks: E exits, O outputs with H hidden units each.

    Attributes:
        hidden_weights_: `[E, D, O x H]`, padded with zeros where an exit sees less.
        hidden_biases_: `[E, O x H]`.
        output_weights_: `[E, O, H]`, or `[E, H]` where there is one output.
        output_biases_: `[E, O]`, or `[E]`.
        log_odds_weights_: `[E, O]`, or `[E]`.
    """

    hidden_weights_: Array
    hidden_biases_: Array
    output_weights_: Array
    output_biases_: Array
    log_odds_weights_: Array

    @property
    def view(self) -> TopView:
        """What the networks see."""

    def check_fitted(self) -> None:
        """Raise unless the networks are there."""


def networks_at(
    scorer: SmallNetworks, exit_index: int, num_classes: int
) -> Callable[[History], AnyArray]:
    """The networks of one exit: from the exits so far to what they return, `[n, O]` or `[n]`.

    In float64, so that a score, rounded to float32, does not depend on how many samples it was
    computed with.

    Raises:
        NotFittedError: The scorer is not fitted.
        ConfigError: There are no networks at this exit.
    """
    scorer.check_fitted()
    if exit_index >= len(scorer.hidden_weights_):
        raise ConfigError(
            f"there is no {type(scorer).__name__} at exit {exit_index}: it was fitted for a "
            f"network of {len(scorer.hidden_weights_) + 1} exits, and the last one always stops"
        )
    networks, view = ExitNetworks.of(scorer, exit_index, num_classes), scorer.view
    return lambda history: networks.respond(
        float64(view.inputs(history)), float64(history.log_odds)
    )


class ExitNetworks(NamedTuple):
    """The networks of one exit, float64; a single one where the outputs have no dimension."""

    hidden_weights: AnyArray  # [D, O x H]
    hidden_biases: AnyArray  # [O x H]
    output_weights: AnyArray  # [O, H] or [H]
    output_biases: AnyArray  # [O] or []
    log_odds_weights: AnyArray  # [O] or []

    @classmethod
    def of(cls, scorer: SmallNetworks, exit_index: int, num_classes: int) -> "ExitNetworks":
        """Look them up, without the padding."""
        weights, *rest = (getattr(scorer, name)[exit_index] for name in PARAMETERS)
        used = weights[: scorer.view.width(exit_index, num_classes)]
        return cls(*(float64(part) for part in (used, *rest)))

    def respond(self, inputs: AnyArray, odds: AnyArray) -> AnyArray:
        """What inputs `[n, D]` and log-odds `[n]` come to: `[n, O]`, or `[n]` if O is 1."""
        xp, hidden = namespace(inputs), inputs @ self.hidden_weights + self.hidden_biases
        hidden = xp.where(hidden > 0, hidden, 0.0)
        if self.output_weights.ndim == 1:
            added = self.output_biases + self.log_odds_weights * odds
            return float32(hidden @ self.output_weights + added)
        apart = xp.reshape(hidden, (-1, *self.output_weights.shape))  # [n, O, H]
        added = self.output_biases + self.log_odds_weights * odds[:, None]
        return float32(xp.sum(apart * self.output_weights, axis=2) + added)


def check_counts(**counts: object) -> None:
    """Raise unless these settings are whole numbers of at least 1."""
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ConfigError(f"`{name}` must be a whole number of at least 1, got {value!r}")


class TopScorer(PreparedScorer):
    """Parent of scorers whose networks look at the top classes, and are trained seed by seed."""

    k: int | Literal["all"] | None
    history: bool
    seed: int
    hidden_weights_: Array
    hidden_biases_: Array
    output_weights_: Array
    output_biases_: Array
    log_odds_weights_: Array
    needs = "confidences"
    learned = PARAMETERS

    def on(self, history_type: type[History]) -> Self:
        """A copy for such ledgers; of answers without logits, everything is looked at."""
        ready = super().on(history_type)
        return ready if history_type.has_logits else ready.clone(k="all")

    @property
    def view(self) -> TopView:
        """What the networks see."""
        return TopView(self.k, self.history)

    def check_can_fit(self) -> None:
        """Raise `MissingExtraError` without torch, which trains the networks."""
        require(
            "torch",
            extra="torch",
            without="without it, name another method, such as eefp-logistic or break-even "
            "(--method, --methods; LogisticCorrector() or BreakEven() in Python)",
        )

    def fit(self, history: History, labels: Array, costs: Array) -> Self:
        """Train the networks of all exits but the last, all at once."""
        return self._keep(self._train_seeds(history, labels, costs, [self.seed]), 0)

    def fit_seeds(
        self, history: History, labels: Array, costs: Array, seeds: Sequence[int]
    ) -> list[Self]:
        """One fitted scorer per seed; exits and seeds are trained as one batched product."""
        parameters = self._train_seeds(history, labels, costs, seeds)
        return [self.clone(seed=s)._keep(parameters, index) for index, s in enumerate(seeds)]

    def _train_seeds(
        self, history: History, labels: Array, costs: Array, seeds: Sequence[int]
    ) -> Any:  # noqa: ANN401 - `network_training.Parameters`, of torch
        raise NotImplementedError

    @property
    def _outputs(self) -> int:
        """How many networks a seed has at an exit."""
        return 1

    def _keep(self, parameters: Any, index: int) -> Self:  # noqa: ANN401
        """Take over the weights of the seed with this number."""
        for name, value in zip(PARAMETERS, parameters.of_seed(index, self._outputs), strict=True):
            setattr(self, name, value)
        return self
