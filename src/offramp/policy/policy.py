"""Policy = answer + scorer + operating points: the only place where they are joined."""

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Self, overload

from offramp import check
from offramp.answers import Answer, CurrentExit
from offramp.arrays import Array, one_thread
from offramp.batch_times import BatchTimes
from offramp.component import check_kind
from offramp.confidence import Confidence, fit_confidence
from offramp.costs import Costs
from offramp.decide import Decider
from offramp.errors import (
    BudgetError,
    ConfigError,
    GuaranteeWarning,
    LedgerError,
    NotFittedError,
)
from offramp.ledger import History, Ledger
from offramp.ledger.answers import Normalise
from offramp.ledger.origin import SplitUses
from offramp.policy import saved
from offramp.policy.fitting import check_fit, fit_parts, training_history
from offramp.price import price_of
from offramp.replay import Replay, replay
from offramp.scorers import Scorer
from offramp.session import BatchSession, Session
from offramp.thresholds import DEFAULT, POINTS
from offramp.thresholds.rule import OperatingPoints


class Policy(SplitUses):
    """When to stop and what to answer.

    Args:
        scorer: Says whether it is time to stop.
        answer: Says what to answer; the current exit by default.

    Attributes:
        selected: The index of the chosen operating point, or None.
        confidence: How probable it is that an answer is right; set by `fit`, and None where a
            policy comes from `fit_seeds` or from an older file.
        guarantee: What `certify` promises of the chosen operating point, or None.
        exits: The exits of the network that it decides at; the others are left out.
        uses: Every use of a split so far.
        made: How it was made, for its file; None before it is saved.

    Example:
        >>> from offramp import Corrector, synthetic
        >>> splits = synthetic.ledgers(seed=0)
        >>> policy = Policy(Corrector()).fit(splits["held_out"]).tune(splits["val"])
        >>> policy.at(budget=0.5).decide(splits["test"]).shape
        (2000,)
    """

    def __init__(self, scorer: Scorer, answer: Answer | None = None) -> None:
        super().__init__()
        self.scorer = scorer
        self.answer = CurrentExit() if answer is None else answer
        check_kind("scorer", self.scorer, Scorer)
        check_kind("answer", self.answer, Answer)
        self._points: OperatingPoints | None = None
        self.selected: int | None = None
        self.guarantee: str | None = None
        self.network: str | None = None
        self.cost_model: Costs | None = None
        self.batch_times: BatchTimes | None = None
        self.num_classes: int | None = None
        self.history_type = History
        self.exits: tuple[int, ...] = ()
        self.confidence: Confidence | None = None
        self.made: saved.Provenance | None = None
        self._decider: Decider | None = None
        self._decides_by: tuple[object, ...] = ()

    def __repr__(self) -> str:
        state = f"at point {self.selected}" if self.selected is not None else "no point chosen"
        if self._points is None:
            state = "not tuned" if self.cost_model else "not fitted"
        if self.guarantee is not None:
            state += ", certified"
        return f"Policy({self.scorer}, {self.answer}, {state})"

    @one_thread()
    def fit(self, held_out: Ledger, allow_split: str | None = None) -> Self:
        """Fit the answer, the scorer, and the confidence in the answers.

        A fitted answer is cross-fitted: the scorer trains on answers that have not seen their
        own labels, as it will meet them in use. For the confidence, so is the scorer.

        Args:
            held_out: Data that the network was not trained on. Without labels, an answer and a
                scorer that need none are fitted, and there is no confidence.
            allow_split: Another split's name, to fit on that one knowingly.

        Warns:
            FewSamplesWarning: The scorer is likely to overfit; with what to use instead.
        """
        check_fit(self.scorer, held_out)
        ledger = self._held_out(held_out, allow_split)
        answer, (scorer,), history = fit_parts(self.answer, self.scorer, ledger)
        self._take_over(answer, scorer, held_out)
        if ledger.has_labels and ledger.has_logits:
            self.confidence = fit_confidence(answer, scorer, ledger, history)
        return self

    @one_thread()
    def fit_confidence(self, held_out: Ledger) -> Self:
        """Fit the confidence in the answers alone; `fit` does it too, and `fit_seeds` does not."""
        ledger = self._held_out(held_out, None)
        if ledger.has_logits:  # answers without logits bring their own
            history = training_history(self.answer, self.scorer, ledger)
            self.confidence = fit_confidence(self.answer, self.scorer, ledger, history)
        return self

    @one_thread()
    def fit_seeds(
        self, held_out: Ledger, seeds: Sequence[int], allow_split: str | None = None
    ) -> list["Policy"]:
        """One fitted policy per seed of the scorer, or one in all where no fit is random.

        The answer is fitted once, and all seeds of a corrector are trained together.

        Warns:
            FewSamplesWarning: The scorer is likely to overfit; with what to use instead.
        """
        check_fit(self.scorer, held_out)
        ledger = self._held_out(held_out, allow_split)
        answer, scorers, _ = fit_parts(self.answer, self.scorer, ledger, seeds)
        policies = [Policy(self.scorer, self.answer) for _ in scorers]
        for policy, scorer in zip(policies, scorers, strict=True):
            policy._take_over(answer, scorer, held_out)
        return policies

    @one_thread()
    def tune(
        self,
        val: Ledger,
        thresholds: str = DEFAULT,
        points: int = POINTS,
        allow_split: str | None = None,
    ) -> Self:
        """Choose thresholds over the whole range of budgets, and store them.

        Args:
            val: Data that neither the network nor the answer and the scorer were fitted on.
                Without labels, `shared`, `geometric` and `smooth` thresholds can be had, and the
                accuracies of the operating points are nan.
            thresholds: Name of the threshold method; `geometric` is the paper's.
            points: How many operating points to store. Those that cost more than another one and
                are clearly less accurate on val are left out.
            allow_split: Another split's name, to tune on that one knowingly.
        """
        found = self.replay(val, "val", allow_split)
        unseen = val.split != "held_out"
        self._points = found.operating_points(thresholds, points, unseen)
        self.selected = self.guarantee = None
        self.record("tune", val)
        return self

    def with_points(self, points: OperatingPoints) -> Self:
        """This policy with these operating points, none of them chosen, and no guarantee."""
        view = copy(self)
        view._points, view.selected, view.guarantee = points, None, None
        return view

    def at(self, budget: float | None = None, max_drop: float | None = None) -> Self:
        """This policy at one of its operating points.

        Args:
            budget: Mean cost as a share of the network without exits; gives the point with the
                highest val cost that is not above it. Where more compute makes answers worse,
                that is less than the budget, since `tune` stores no points beyond.
            max_drop: Accuracy that may be lost on val against the full network; gives the
                cheapest such point.

        Raises:
            BudgetError: No point satisfies it; the message says what is possible.
        """
        if (budget is None) == (max_drop is None):
            raise ConfigError("give either `budget` or `max_drop`")
        if budget is not None:
            return self.at_point(self.points.for_budget(budget))
        assert max_drop is not None
        return self.at_point(self.points.for_accuracy(max_drop))

    def nearest(self, budget: float) -> Self:
        """This policy at the point for a budget, or at its cheapest where the budget is lower."""
        return self.at_point(self.points.nearest(budget))

    def at_point(self, index: int) -> Self:
        """This policy at the operating point with this number, cheapest first.

        Warns:
            GuaranteeWarning: The point before was certified, and the new one is not.
        """
        chosen = copy(self)
        if not isinstance(index, int) or not -len(self.points) <= index < len(self.points):
            raise BudgetError(
                f"the number of an operating point must lie in 0..{len(self.points) - 1}, got "
                f"{index!r}"
            )
        chosen.selected = index % len(self.points)
        if self.guarantee is not None and chosen.selected != self.selected:
            chosen.guarantee = None
            warnings.warn(
                f"operating point {self.selected} is certified ({self.guarantee}), and point "
                f"{chosen.selected} is not: certify the policy again for what you need",
                GuaranteeWarning,
                stacklevel=3,
            )
        return chosen

    @property
    def is_tuned(self) -> bool:
        """Whether there are operating points."""
        return self._points is not None

    @property
    def points(self) -> OperatingPoints:
        """The operating points that `tune` stored, cheapest first on val."""
        if self._points is None:
            raise NotFittedError("this policy has no operating points; call tune(val) first")
        return self._points

    @property
    def thresholds(self) -> Array:
        """`[M]` float64, of the chosen operating point."""
        points = self.points  # raises where there are none to choose from
        if self.selected is None:
            raise NotFittedError(
                "this policy has no operating point yet; choose one, for instance with "
                "policy.at(budget=0.5)"
            )
        chosen: Array = points.thresholds[self.selected]
        return chosen

    def view(self, ledger: Ledger) -> Ledger:
        """A ledger with the exits that this policy decides at, if it has more of them."""
        if ledger.exits == self.exits or not set(self.exits) <= set(ledger.exits):
            return ledger
        return ledger.keep_exits([ledger.exits.index(kept) for kept in self.exits])

    @property
    def decider(self) -> Decider:
        """This policy at its operating point, prepared to decide; made when it is first needed.

        Raises:
            NotFittedError: There is no operating point.
        """
        parts = self.answer, self.scorer, self._points, self.selected
        if self._decider is None or any(
            a is not b for a, b in zip(parts, self._decides_by, strict=True)
        ):
            self._decider = Decider(self.answer, self.scorer, self.thresholds, self.history_type)
            self._decides_by = parts
        return self._decider

    @overload
    def start(self, items: None = None, normalise: Normalise | None = None) -> Session: ...

    @overload
    def start(self, items: int, normalise: Normalise | None = None) -> BatchSession: ...

    def start(
        self, items: int | None = None, normalise: Normalise | None = None
    ) -> Session | BatchSession:
        """A session for one item whose stages arrive over time, or for many in step.

        Args:
            items: How many items run in step; None for a single one. See `offramp.session`.
            normalise: Brings an answer into the form that is compared; that of the ledgers.
        """
        decider, width = self.decider, self.num_classes
        assert width is not None
        if items is None:
            return Session(decider, width, normalise)
        check.whole("items", items, least=1)
        return BatchSession(decider, width, items, normalise)

    def decide(self, ledger: Ledger) -> Array:
        """The exit at which each sample stops, `[N]`; any split may be asked about."""
        return self._replayed(self.check_partner(ledger)).exits

    def replay(
        self, ledger: Ledger, split: str = "test", allow_split: str | None = None
    ) -> Replay:
        """Replay this policy on a ledger: exits taken, right or wrong, costs, budget curve.

        Args:
            ledger: Recorded from this policy's network.
            split: The split that is needed: `val` to tune on, `test` to measure on.
            allow_split: Another split's name, to use that one knowingly; with it, samples that
                the policy has already used are accepted too.
        """
        Ledger.require(split, ledger)
        ledger.require_split(split, allow_split)
        ledger = self.check_partner(ledger)
        if allow_split is None:
            self.check_unseen(ledger, step="tune" if split == "val" else "measure")
        return self._replayed(ledger)

    def _replayed(self, ledger: Ledger) -> Replay:
        thresholds = None if self._points is None else self._points.thresholds
        found = replay(self.answer, self.scorer, ledger)
        return replace(found, thresholds=thresholds, selected=self.selected)

    @property
    def reference_cost(self) -> float:
        """Cost of the network without exits; the mean of held_out where samples differ."""
        return self._fitted_costs.mean_reference

    @property
    def _fitted_costs(self) -> Costs:
        if self.cost_model is None:
            raise NotFittedError("this policy is not fitted; call fit(held_out) first")
        return self.cost_model

    @property
    def cost_shares(self) -> Array:
        """`[M]` float64: costs with answer and scorer, as shares of the full network's cost.

        Seconds depend on where samples leave, and are given for the chosen operating point. Where
        costs differ from sample to sample, the mean sample of held_out counts.
        """
        costs = self._fitted_costs
        assert self.num_classes is not None
        parts = self.answer, self.scorer, costs, self.num_classes
        price = price_of(*parts, self.batch_times, self.history_type)
        if self.selected is None:
            return price.shares
        chosen = slice(self.selected, self.selected + 1)
        shares: Array = price.at(self.points.thresholds[chosen], self.points.shares[chosen])[0]
        return shares

    def save(self, folder: str | Path, name: str | None = None, data: str | None = None) -> Path:
        """Write the policy as a folder, atomically; return its path.

        Args:
            folder: Where to write; a policy that is there is replaced.
            name: What to call it; that of its scorer and answer by default.
            data: Where its ledgers are, for the record.
        """
        return saved.save(self, folder, name, data)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a policy that `save` wrote; it decides bitwise as before.

        Raises:
            FileFormatError: The folder is missing, truncated, foreign, of an unknown version, or
                names an answer or a scorer that is not defined here.
        """
        return saved.load(cls, folder)

    def fingerprint(self) -> str:
        """A hash of everything that was learned, and of the operating points."""
        return saved.fingerprint(self)

    @staticmethod
    def _held_out(held_out: Ledger, allow_split: str | None) -> Ledger:
        held_out.require_split("held_out", allow_split)
        return held_out.as_split("held_out")

    def _take_over(self, answer: Answer, scorer: Scorer, held_out: Ledger) -> None:
        """Become the policy of this fitted answer and scorer; what was tuned before is gone."""
        self.answer, self.scorer, self.network = answer, scorer, held_out.network
        self.cost_model, self.num_classes = held_out.cost_model.mean(), held_out.num_classes
        self.batch_times = held_out.batch_times
        self.history_type = held_out.history_type
        self.exits = held_out.exits
        self._points = self.selected = self.guarantee = self.confidence = self.made = None
        self.uses, self.seen = [], {}
        self.record("fit", held_out)

    def check_partner(self, ledger: Ledger) -> Ledger:
        """The ledger with this policy's exits; it must be of its network and have its costs."""
        fitted, ledger = self._fitted_costs, self.view(ledger)
        given, exits = ledger.cost_model, fitted.num_exits
        if self.history_type is not ledger.history_type:
            raise LedgerError(
                f"this policy was fitted for ledgers of {self.history_type.name}, and the "
                f"{ledger.split} ledger is one of {ledger.history_type.name}"
            )
        if (exits, self.num_classes) != (ledger.num_exits, ledger.num_classes):
            raise LedgerError(
                f"this policy was fitted for {exits} exits and {self.num_classes} classes, and "
                f"the {ledger.split} ledger has {ledger.num_exits} and {ledger.num_classes}"
            )
        # Where costs differ from sample to sample, their means differ from split to split.
        if fitted.unit != given.unit if given.by_sample else fitted != given:
            raise LedgerError(
                f"this policy was fitted with other costs ({fitted.unit}) than the {ledger.split} "
                f"ledger has ({given.unit}): give all ledgers the same exits, costs and unit"
            )
        ledger.require_network(self.network)
        return ledger
