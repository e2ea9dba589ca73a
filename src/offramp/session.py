"""Items whose stages arrive over time, and a policy that decides when to stop each of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from offramp.arrays import AnyArray, Array, all_finite, as_numpy
from offramp.decide import Decider, ExitOutput, HistoryBuffer
from offramp.errors import ConfigError, LedgerError
from offramp.ledger import History
from offramp.ledger.answers import UNSTATED, Normalise, log_odds_of, log_odds_of_log, same_form

NOTHING = "nothing was observed yet; call observe with the first stage"


class Session:
    """A policy at work on one item: a chain of thought, samples drawn one by one, readings.

    It decides as the policy does on a ledger of such items. `Policy.start` makes one per item.

    Args:
        decider: Of the policy at its operating point.
        width: K, or how many numbers there are per stage.
        normalise: Brings an answer into the form that is compared.

    Attributes:
        stopped: Whether the policy has decided to stop.
        stage: The number of the last stage, from 0 on; -1 before the first.
        cost: What the item has cost so far, as given to `observe`.

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

    def __init__(self, decider: Decider, width: int, normalise: Normalise | None = None) -> None:
        self._decider, self._width, self._normalise = decider, width, normalise
        self._buffer: HistoryBuffer | None = None
        self._given: list[Any] = []
        self._found: ExitOutput | None = None
        self.stage = -1
        self.stopped = False
        self.cost: float | None = None

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
            confidence: The probability of being right that the stage states; a policy that
                answers by `MajorityVote`, or was fitted on answers without, needs none.
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
            raise _fell(cost, self.cost or 0)
        decider = self._decider
        if decider.history_type.has_logits:
            alone = confidence is None and log_confidence is None and not len(features)
            row = _logits(output, (self._width,), alone)[None]
        else:
            first = _first_with(self._given, output, decider.history_type, self._normalise)
            if confidence is None and log_confidence is None and decider.votes:
                confidence = UNSTATED
            numbers = _numbers(first, confidence, log_confidence, features, self._width)
            row = np.array([numbers], np.float32)
            self._given.append(output)
        if cost is not None:  # not before all is checked: what is refused changes nothing
            self.cost = cost
        if self._buffer is None:
            self._buffer = decider.begin(1, self._width)
        self.stage = stage = self.stage + 1
        self._found = found = decider.at_exit(stage, self._buffer, row)
        scores = found.scores
        if scores is not None:
            self.stopped = bool(scores.item() >= decider.limits[stage])
        elif stage == decider.last:
            self.stopped = True
        return self.stopped

    @property
    def score(self) -> float | None:
        """The last stop score; None before the first stage, and where no scorer runs."""
        scores = None if self._found is None else self._found.scores
        return None if scores is None else float(scores[0])

    @property
    def answer(self) -> Any:  # noqa: ANN401
        """What to answer now: the answer as it was given, or the number of a class."""
        number = int(self._now.predictions[0, -1])
        return number if self._decider.history_type.has_logits else self._given[number]

    @property
    def confidence(self) -> float:
        """How sure the answer is: its own probability, what was stated, or its share of votes."""
        return float(self._now.confidences[0, -1])

    @property
    def why(self) -> str | None:
        """Why it stopped: `sure`, `hopeless` (probably wrong, and would stay so), or `last`.

        Of logits it is never `hopeless`: of many classes, the most probable one may well be right
        with less than one half.
        """
        return self._decider.why(self.stage, self.confidence) if self.stopped else None

    @property
    def _now(self) -> History:
        if self._found is None:
            raise ConfigError(NOTHING)
        answers = self._found.answer[:, None]
        return self._decider.history_type(answers, answers)


class BatchSession:
    """A policy at work on n items in step: after each stage, those that go on are observed again.

    `Policy.start(n)` makes one. What `observe` takes and returns has a row for each item that has
    not stopped, in the order of `left`.

    Args:
        decider: Of the policy at its operating point.
        width: K, or how many numbers there are per stage.
        items: n.
        normalise: Brings an answer into the form that is compared.

    Attributes:
        left: `[l]`, the numbers of the items that have not stopped.
        stages: `[n]`, the last stage of each item; -1 before the first.
        costs: `[n]` float64, what each item has cost so far, as given to `observe`; else NaN.
        scores: `[n]` float32, the last stop scores; NaN before the first stage and where no scorer
            runs.
        confidences: `[n]` float32, how sure each answer is of itself.

    Example:
        >>> from offramp import MaxProbability, Policy, synthetic
        >>> splits = synthetic.ledgers(seed=0)
        >>> policy = Policy(MaxProbability()).fit(splits["held_out"]).tune(splits["val"])
        >>> policy = policy.at(budget=0.5)
        >>> logits, session = splits["test"].logits[:100], policy.start(100)
        >>> for stage in range(logits.shape[1]):
        ...     if len(session.left):
        ...         stop = session.observe(logits[session.left, stage])
        >>> bool((session.stages == policy.decide(splits["test"])[:100]).all())
        True
    """

    def __init__(
        self, decider: Decider, width: int, items: int, normalise: Normalise | None = None
    ) -> None:
        self._decider, self._width, self._normalise = decider, width, normalise
        self._buffer = decider.begin(items, width)
        self._given: list[list[Any]] = [[] for _ in range(items)]
        self._stage = -1
        self.left = np.arange(items)
        self._predicted = np.zeros_like(self.left)
        self.stages = np.full(items, -1)
        self.costs = np.full(items, np.nan)
        self.scores = np.full(items, np.nan, np.float32)
        self.confidences = np.full(items, np.nan, np.float32)

    def observe(
        self,
        outputs: Any = None,  # noqa: ANN401 - answers of any kind, or logits
        confidence: Sequence[float] | AnyArray | None = None,
        cost: Sequence[float] | AnyArray | None = None,
        *,
        log_confidence: Sequence[float] | AnyArray | None = None,
        features: Sequence[Sequence[float]] | AnyArray | None = None,
    ) -> Array:
        """Take in the next stage of all items that are left, and say which of them stop.

        Args:
            outputs: `[l, K]` logits, or l answers.
            confidence: l probabilities of being right.
            cost: What each has cost by now.
            log_confidence: Instead of `confidence`: its logarithm.
            features: `[l, F]`, as many as the ledger had.

        Returns:
            bool `[l]`.

        Raises:
            ConfigError: All have stopped.
            LedgerError: This is not what the policy was fitted on.
        """
        left, decider = self.left, self._decider
        if not len(left):
            raise ConfigError("all items of this session have stopped; start another one")
        rows = self._rows(outputs, confidence, log_confidence, features)
        if cost is not None:
            self.costs[left] = self._checked(as_numpy(cost, np.float64))
        if not decider.history_type.has_logits:
            answers = [None] * len(left) if outputs is None else outputs
            for item, answer in zip(left.tolist(), answers, strict=True):
                self._given[item].append(answer)
        self._stage = stage = self._stage + 1
        self.stages[left] = stage
        found = decider.at_exit(stage, self._buffer, rows)
        stop = np.full(len(left), stage == decider.last)
        self.scores[left] = np.nan
        if found.scores is not None:
            self.scores[left] = found.scores
            stop = decider.stops(stage, found.scores)
        now = decider.history_type(found.answer[:, None], found.answer[:, None])
        self._predicted[left] = now.predictions[:, -1]
        self.confidences[left] = now.confidences[:, -1]
        if stop.any():
            staying = np.flatnonzero(~stop)
            self.left, self._buffer = left[staying], self._buffer.take(staying)
        return stop

    @property
    def answers(self) -> list[Any]:
        """What to answer now, for each item: the answer as it was given, or a class."""
        if self._stage < 0:
            raise ConfigError(NOTHING)
        if self._decider.history_type.has_logits:
            return list(self._predicted.tolist())
        return [given[number] for given, number in zip(self._given, self._predicted, strict=True)]

    @property
    def why(self) -> list[str | None]:
        """Why each item stopped: see `Session.why`; None for those that are left."""
        going = set(self.left.tolist())
        ends = zip(self.stages.tolist(), self.confidences.tolist(), strict=True)
        return [
            None if item in going else self._decider.why(stage, confidence)
            for item, (stage, confidence) in enumerate(ends)
        ]

    def _rows(
        self,
        outputs: Any,  # noqa: ANN401
        confidence: Any,  # noqa: ANN401
        log_confidence: Any,  # noqa: ANN401
        features: Any,  # noqa: ANN401
    ) -> Array:
        """The numbers of a stage `[l, K]`, as a ledger has them."""
        items, read = len(self.left), self._decider.history_type
        if read.has_logits:
            alone = confidence is None and log_confidence is None and features is None
            return _logits(outputs, (items, self._width), alone)
        columns = {"answers": outputs, "confidence": confidence, "log_confidence": log_confidence}
        for name, values in {**columns, "features": features}.items():
            if values is not None and len(values) != items:
                raise LedgerError(f"{items} items are left, got {len(values)} {name}")
        if confidence is None and log_confidence is None and self._decider.votes:
            columns["confidence"] = [UNSTATED] * items
        none = [None] * items
        answers, sure, log_sure = (none if each is None else each for each in columns.values())
        further = [()] * items if features is None else as_numpy(features).tolist()
        rows = []
        for item, answer, *stated in zip(self.left, answers, sure, log_sure, further, strict=True):
            first = _first_with(self._given[item], answer, read, self._normalise)
            rows.append(_numbers(first, stated[0], stated[1], stated[2], self._width))
        return np.array(rows, np.float32)

    def _checked(self, costs: Array) -> Array:
        """Costs of the items that are left, which do not fall."""
        before = np.nan_to_num(self.costs[self.left])
        if costs.shape != before.shape:
            raise LedgerError(f"{len(before)} items are left, got {costs.size} costs")
        if not (costs >= before).all():
            item = int(np.argmin(costs >= before))
            raise _fell(costs[item], before[item])
        return costs


def _logits(outputs: Any, shape: tuple[int, ...], alone: bool) -> Array:  # noqa: ANN401
    if not alone:
        raise LedgerError("this policy observes logits alone, without confidences and features")
    items = f" for each of the {shape[0]} items that are left" * (len(shape) > 1)
    wanted = f"this policy observes {shape[-1]} finite logits{items}"
    try:
        logits = as_numpy(outputs, np.float32)
    except (TypeError, ValueError):
        raise LedgerError(f"{wanted}, got {outputs!r:.60}") from None
    if logits.shape != shape:
        raise LedgerError(f"{wanted}, got an array of the shape {list(logits.shape)}")
    if not all_finite(logits):
        raise LedgerError(f"{wanted}, got NaN or infinity")
    return logits


def _first_with(
    given: list[Any],
    answer: Any,  # noqa: ANN401
    history_type: type[History],
    normalise: Normalise | None,
) -> int:
    """The first stage with this answer, given the answers of the stages before it."""
    if "answers" in history_type.offers:
        form = same_form(answer, normalise)
        for stage, other in enumerate(given):
            if same_form(other, normalise) == form:
                return stage
    return len(given)


def _numbers(
    first: int,
    confidence: float | None,
    log_confidence: float | None,
    features: Sequence[float],
    width: int,
) -> list[float]:
    """The numbers of a stage that answers without logits, as a ledger has them."""
    if (confidence is None) == (log_confidence is None):
        raise LedgerError("give either `confidence` or `log_confidence` of the stage")
    if len(features) != width - 2:
        raise LedgerError(f"this policy reads {width - 2} features per stage, got {len(features)}")
    if confidence is not None:
        return [log_odds_of(float(confidence)), first, *features]
    assert log_confidence is not None
    return [log_odds_of_log(float(log_confidence)), first, *features]


def _fell(cost: float, before: float) -> LedgerError:
    return LedgerError(
        "`cost` is what the item has cost by now, and does not fall: got "
        f"{cost:g} after {before:g}"
    )
