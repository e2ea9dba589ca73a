"""The paper's stop target by ridge logistic regression, for a few hundred samples."""

from dataclasses import dataclass

from offramp.arrays import AnyArray, Array, sigmoid
from offramp.scorers.ridge import RidgeScorer, SoftTargets, fit_logistic
from offramp.targets import stop_target

SOFTNESS = 0.75  # weight of the soft target beside the hard one
LOGISTIC = 15.0  # a sample tells a logistic regression less, so penalties are this much smaller


@dataclass
class LogisticCorrector(RidgeScorer):
    """Predicts the paper's stop target by a ridge logistic regression per exit.

    Where `Corrector` needs thousands of samples to gain from the history, this one takes a few
    hundred, a fraction of a second and no seed. Three quarters of its target are soft: the
    probability that no later, different answer is right.

    Args:
        history: Also look at the earlier exits.
        classes: Also look at the probability of every class, if there are at most 500.

    Attributes:
        means_: `[M-1, D]`, of the features.
        scales_: `[M-1, D]`.
        coefficients_: `[M-1, D+1, 1]` float64, the constant last.

    Example:
        >>> from offramp import Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=300)
        >>> policy = Policy(LogisticCorrector()).fit(splits["held_out"]).tune(splits["val"])
        >>> policy.at(budget=0.5).decide(splits["test"]).shape
        (300,)
    """

    def _score(self, outputs: AnyArray) -> AnyArray:
        """Log-odds of "right here, or hopeless from here on"."""
        return outputs[:, 0]

    def probability(self, scores: AnyArray) -> AnyArray:
        """The corrector's own output, in [0, 1]."""
        return sigmoid(scores)

    def _solve(
        self,
        designs: list[Array],
        penalties: Array,
        predictions: Array,
        teacher: SoftTargets,
        costs: Array,
    ) -> list[Array]:
        assert teacher.labels is not None
        hard, soft = (
            stop_target(predictions, teacher.labels),
            teacher.soft_stop_target(predictions),
        )
        target = (1 - SOFTNESS) * hard + SOFTNESS * soft
        found: list[Array] = []
        for exit_index, design in enumerate(designs):
            start = found[-1][:, 0] if found else None  # neighbouring exits are alike
            weights = fit_logistic(design, target[:, exit_index], penalties / LOGISTIC, start)
            found.append(weights[:, None])
        return found
