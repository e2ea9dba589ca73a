"""`Session`: one item whose stages arrive over time, and a policy that decides when to stop."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from offramp.answers import Answer
from offramp.errors import ConfigError, LedgerError
from offramp.ledger import History
from offramp.ledger.answers import Normalise, log_odds_of, log_odds_of_log, same_form
from offramp.scorers import Scorer
from offramp.thresholds.rule import SURE, rounded_up, stops


class Session:
    """A policy at work on one item: a chain of thought, samples drawn one by one, readings.

    It decides as the policy does on a ledger of such items. `Policy.start` makes one per item.

    Args:
        answer: Fitted.
        scorer: Fitted.
        thresholds: `[M]`, of the chosen operating point.
        history_type: How what is observed is read: `History` of logits, `AnswerHistory`, ...
        width: K, or how many numbers there are per stage.
        normalise: Brings an answer into the form that is compared.

    Attributes:
        stopped: Whether the policy has decided to stop.
        cost: What the item has cost so far, as given to `observe`.
        score: The last stop score; None before the first stage, and at the last, where none runs.

    Example:
        >>> from offramp import Ledger, MaxProbability, Policy
        >>> confidence = [[0.6, 0.9], [0.95, 0.99], [0.3, 0.8], [0.9, 0.7]] * 10
        >>> ledger = Ledger.from_answers(
        ...     [["a", "b"], ["c", "c"], ["a", "d"], ["e", "e"]] * 10,
        ...     confidence=confidence,
        ...     labels=["b", "c", "d", "e"] * 10,
        ...     costs=[10, 100],
        ...     unit="tokens",
        ...     split="all",
        ... )
        >>> held_out, val, test = ledger.partition()
        >>> session = Policy(MaxProbability()).fit(held_out).tune(val).at(budget=0.6).start()
        >>> session.observe("a", confidence=0.3, cost=10), session.observe("d", 0.8, cost=100)
        (False, True)
        >>> session.answer, session.cost, session.why
        ('d', 100, 'last')
    """

    def __init__(
        self,
        answer: Answer,
        scorer: Scorer,
        thresholds: Tensor,
        history_type: type[History],
        width: int,
        normalise: Normalise | None = None,
    ) -> None:
        self._answer, self._scorer = answer, scorer
        self._limits = rounded_up(thresholds, torch.float32)
        self._history_type, self._width, self._normalise = history_type, width, normalise
        self._outputs: list[Tensor] = []  # [1, 1, K] each
        self._answered: list[Tensor] = []
        self._given: list[Any] = []
        self.stopped = False
        self.cost: float | None = None
        self.score: float | None = None

    def observe(
        self,
        output: Any = None,  # noqa: ANN401 - an answer of any kind, or logits
        confidence: float | None = None,
        cost: float | None = None,
        *,
        log_confidence: float | None = None,
        features: Sequence[float] = (),
    ) -> bool:
        """Take in the next stage, and say whether to stop.

        Args:
            output: The answer, or, for a policy on logits, the logits `[K]`.
            confidence: The probability of being right that the stage states.
            cost: What the item has cost by now; it is kept, and plays no part in the decision.
            log_confidence: Instead of `confidence`: its logarithm.
            features: As many as the ledger had.

        Raises:
            ConfigError: The session has stopped.
            LedgerError: This is not what the policy was fitted on.
        """
        if self.stopped:
            raise ConfigError(
                f"this session has stopped at stage {self.stage}; start another one for the next "
                "item, with policy.start()"
            )
        if cost is not None and not cost >= (self.cost or 0):
            raise LedgerError(
                f"`cost` is what the item has cost by now, and does not fall: got {cost:g} after "
                f"{self.cost or 0:g}"
            )
        row = self._row(output, confidence, log_confidence, features)
        self._given.append(output)
        self._outputs.append(row[None, None])
        self.cost = self.cost if cost is None else cost
        with torch.inference_mode():
            outputs = torch.cat(self._outputs, dim=1)
            self._answered.append(self._answer.answer_at(outputs).unsqueeze(1))
            history = self._history_type(outputs, torch.cat(self._answered, dim=1))
            self.score = None
            if len(self._outputs) == len(self._limits):
                self.stopped = True
            elif self._limits[self.stage] < torch.inf:
                score = self._scorer.score_at(history).float()
                self.score = float(score)
                self.stopped = bool(stops(score, self._limits[self.stage]))
            self._confidence = float(history.confidences[0, -1])
            self._predicted = int(history.predictions[0, -1])
        return self.stopped

    @property
    def stage(self) -> int:
        """The number of the last stage, from 0 on; -1 before the first."""
        return len(self._outputs) - 1

    @property
    def answer(self) -> Any:  # noqa: ANN401
        """What to answer now: the answer as it was given, or the number of a class."""
        if not self._given:
            raise ConfigError("nothing was observed yet; call observe with the first stage")
        return self._predicted if self._history_type.has_logits else self._given[self._predicted]

    @property
    def why(self) -> str | None:
        """Why it stopped: `sure`, `hopeless` (rather wrong, and would stay so), or `last`.

        Of logits it is never `hopeless`: of many classes, the most probable one may well be right
        with less than one half.
        """
        if not self.stopped:
            return None
        if len(self._outputs) == len(self._limits):
            return "last"
        sure = self._confidence >= SURE or self._history_type.has_logits
        return "sure" if sure else "hopeless"

    def _row(
        self,
        output: Any,  # noqa: ANN401
        confidence: float | None,
        log_confidence: float | None,
        features: Sequence[float],
    ) -> Tensor:
        """The numbers of a stage, as a ledger has them."""
        if self._history_type.has_logits:
            logits = torch.as_tensor(output, dtype=torch.float32)
            if logits.shape != (self._width,) or not logits.isfinite().all():
                raise LedgerError(
                    f"this policy observes {self._width} finite logits, got {list(logits.shape)}"
                )
            return logits
        if (confidence is None) == (log_confidence is None):
            raise LedgerError("give either `confidence` or `log_confidence` of the stage")
        if len(features) != self._width - 2:
            raise LedgerError(
                f"this policy reads {self._width - 2} features per stage, got {len(features)}"
            )
        if confidence is not None:
            odds = log_odds_of(float(confidence))
        else:
            assert log_confidence is not None
            odds = log_odds_of_log(float(log_confidence))
        return torch.tensor([odds, self._first(output), *features], dtype=torch.float32)

    def _first(self, output: Any) -> int:  # noqa: ANN401
        """The first stage with this answer."""
        here = len(self._given)
        if "answers" not in self._history_type.offers:
            return here
        form = same_form(output, self._normalise)
        forms = (same_form(other, self._normalise) for other in self._given)
        return next((stage for stage, other in enumerate(forms) if other == form), here)
