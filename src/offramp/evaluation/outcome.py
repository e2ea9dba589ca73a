"""Outcome: what a policy does on test at one operating point."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from offramp.arrays import Array, Floats
from offramp.errors import ConfigError
from offramp.evaluation.bootstrap import QUANTILE
from offramp.evaluation.words import NETWORK, Words, words_for
from offramp.files import plain
from offramp.ledger import Ledger
from offramp.metrics import augrc, ece, eefp
from offramp.policy import Policy
from offramp.replay import Replay
from offramp.scorers import Scorer


@dataclass(frozen=True)
class ExitMetrics:
    """Scores of every exit, each `[M]`."""

    accuracy: Floats  # of the exit's answer
    # Calibration error of the scorer's `probability` for the answer being right; NaN where the
    # scorer has none. At the last exit, where no scorer runs, of the answer's own max probability.
    ece: Floats
    eefp: Floats  # AUROC of the scores for the stop target; NaN at the last exit
    nll: Floats  # negative log-likelihood of the answer
    augrc: Floats  # of the scores for the answer being right; of the max probability at the last

    def among(self, exits: Sequence[int], count: int) -> "ExitMetrics":
        """The same among all exits of a network; NaN at the exits that a policy leaves out."""
        every = {name: placed(values, exits, count, np.nan) for name, values in vars(self).items()}
        return ExitMetrics(**every)


def placed(values: Array, exits: Sequence[int], count: int, fill: float) -> Array:
    """Values `[m, ...]` of some exits among all of them, `[M, ...]`.

    Args:
        values: Of the exits that a policy has kept.
        exits: Their numbers.
        count: How many exits there are.
        fill: At the others.

    Example:
        >>> placed(np.array([0.5, 0.75]), [1, 3], 4, 0.0)
        array([0.  , 0.5 , 0.  , 0.75])
    """
    every = np.full((count, *values.shape[1:]), fill, dtype=values.dtype)
    every[list(exits)] = values
    return every


def exit_metrics(replay: Replay, scorer: Scorer) -> ExitMetrics:
    """Score every exit of a replay."""
    correct = replay.correct.T  # [M, N]
    stated = zip(stated_probabilities(replay, scorer), correct, strict=True)
    ranked = zip([*replay.scores.T[:-1], replay.confidences[:, -1]], correct, strict=True)
    return ExitMetrics(
        accuracy=correct.mean(axis=1),
        ece=np.array([np.nan if each is None else ece(each, right) for each, right in stated]),
        eefp=eefp(replay.scores, replay.stop_targets),
        nll=replay.losses.mean(axis=0, dtype=np.float64),
        augrc=np.array([augrc(*pair) for pair in ranked]),
    )


def stated_probabilities(replay: Replay, scorer: Scorer) -> list[Array | None]:
    """The probability of being right that is stated at each exit, `[N]`; None where none is.

    At the last exit, where no scorer runs, it is the answer's own max probability.
    """
    found = scorer.probability(replay.scores[:, :-1])
    before = [None] * (replay.scores.shape[1] - 1) if found is None else list(found.T)
    return [*before, replay.confidences[:, -1]]


@dataclass(frozen=True)
class Outcome:
    """What a policy did on a ledger.

    Attributes:
        accuracy: Share of right answers.
        mean_cost: Mean cost per sample as a share of the network without exits.
        exit_shares: `[M]`, share of samples that left at each exit.
        exits: Accuracy, ECE, EEFP, NLL and AUGRC per exit.
        hopeless_share: Share of samples that no head of the network gets right.
        hopeless_cost: Mean cost of these samples, as a share of the network without exits.
        hopeless_accuracy: Accuracy on these samples; zero unless the answer changes predictions.
        full_accuracy: Accuracy of the network's own last exit.
        sure_share: Of answers without logits, the share of samples that stopped early because they
            were sure: with a confidence of at least one half. NaN otherwise, as the next two.
        gave_up_share: Share of samples that stopped early with less, as hopeless.
        gave_up_loss: Share of samples that gave up and would have been right at the last exit.
        exit_numbers: `[M]`, which exits of the network these are; a policy may leave some out.
        overrun: What the mean cost is clearly (by two standard errors) above what it was on val;
            zero where it is not.
        words: What all of this is called.
    """

    accuracy: float
    mean_cost: float
    exit_shares: Floats
    exits: ExitMetrics
    hopeless_share: float
    hopeless_cost: float
    hopeless_accuracy: float
    full_accuracy: float
    sure_share: float = float("nan")
    gave_up_share: float = float("nan")
    gave_up_loss: float = float("nan")
    exit_numbers: tuple[int, ...] = ()
    overrun: float = 0.0
    words: Words = NETWORK

    @property
    def ece(self) -> Floats:
        """`[M]`, per exit."""
        return self.exits.ece

    @property
    def eefp(self) -> Floats:
        """`[M]`, per exit; NaN at the last."""
        return self.exits.eefp

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file; NaN becomes None."""
        result: dict[str, Any] = plain(asdict(self))
        del result["words"]
        return result

    def __str__(self) -> str:
        over = f", clearly more than on val: {self.overrun:+.1%}" if self.overrun else ""
        lines = [
            f"accuracy {self.accuracy:.2%} ({self.words.full} {self.full_accuracy:.2%}) at "
            f"{self.mean_cost:.1%} of the cost of {self.words.whole}{over}",
            f"hopeless samples: {self.hopeless_share:.1%}, each given {self.hopeless_cost:.1%} "
            "of that cost"
            if self.hopeless_share
            else "hopeless samples: none",
            f"{self.words.stage:5}  leave  accuracy    ECE   EEFP",
        ]
        if not np.isnan(self.sure_share):
            ways = (
                f"stopped early: {self.sure_share:.1%} sure, {self.gave_up_share:.1%} as hopeless"
                f"; {self.gave_up_loss:.1%} gave up and would have been right by going on"
            )
            lines.insert(2, ways)
        found = self.exits
        numbers = self.exit_numbers or range(len(self.exit_shares))
        columns = (numbers, self.exit_shares, found.accuracy, found.ece, found.eefp)
        for number, share, right, error, area in zip(*columns, strict=True):
            lines.append(
                f"{number:4d}  {share:6.1%}   {right:6.1%}  {_digits(error)}  {_digits(area)}"
            )
        each = f"of each {self.words.stage} on all samples, wherever they left"
        lines.append(f"(accuracy, ECE and EEFP: {each})")
        return "\n".join(lines)


def evaluate(policy: Policy, test: Ledger, allow_split: str | None = None) -> Outcome:
    """Measure a policy at its chosen operating point.

    Args:
        policy: Fitted, tuned and at an operating point (`policy.at(budget=...)`).
        test: Data that nothing was fitted or tuned on.
        allow_split: Another split's name, to measure on that one knowingly.

    Example:
        >>> from offramp import MaxProbability, Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0)
        >>> policy = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"])
        >>> outcome = evaluate(policy.at(budget=0.5), splits["test"])
        >>> round(outcome.mean_cost, 1)
        0.5
    """
    if not isinstance(policy, Policy):
        raise ConfigError(
            "evaluate takes a policy and the test ledger, in this order; the first was a "
            f"{type(policy).__name__}"
        )
    replay = policy.replay(test, "test", allow_split)
    exits, costs, right, lost = replay.exits, replay.costs, replay.right, replay.hopeless
    shares = np.bincount(exits, minlength=replay.scores.shape[1]) / len(test)
    return Outcome(
        accuracy=float(right.mean()),
        mean_cost=float(costs.mean()),
        exit_shares=shares,
        exits=exit_metrics(replay, policy.scorer),
        hopeless_share=float(lost.mean()),
        hopeless_cost=float(costs[lost].mean()) if lost.any() else float("nan"),
        hopeless_accuracy=float(right[lost].mean()) if lost.any() else float("nan"),
        full_accuracy=float(replay.full_right.mean()),
        exit_numbers=policy.exits,
        overrun=overrun(replay, float(policy.points.budgets[policy.selected])),
        words=words_for(test),
        **({} if policy.history_type.has_logits else _early_shares(replay)),
    )


def overrun(replay: Replay, promised: float) -> float:
    """What a policy costs more than promised, where that is more than two standard errors."""
    costs = replay.by_group(replay.costs[:, None])[:, 0]
    over = float(costs.mean()) - promised
    return over if over > QUANTILE * float(costs.std()) / len(costs) ** 0.5 else 0.0


def _early_shares(replay: Replay) -> dict[str, Any]:
    """Shares of the samples that were sure, that gave up, and that lost a right answer by it."""
    early, gave_up = replay.exits < replay.last_exits, replay.gave_up
    regret = gave_up & ~replay.right & replay.full_right
    shares = {"sure_share": early & ~gave_up, "gave_up_share": gave_up, "gave_up_loss": regret}
    return {name: float(rows.mean()) for name, rows in shares.items()}


def _digits(value: float) -> str:
    return "    -" if np.isnan(value) else f"{value:.3f}"
