"""Ledgers: the outputs of every exit on one split, with costs, and labels where they are known."""

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from offramp import check
from offramp.arrays import AnyArray, Array, as_numpy, float32
from offramp.batch_times import BatchTimes
from offramp.costs import Costs, carried_on
from offramp.errors import LedgerError
from offramp.ledger.answers import (
    Confidences,
    Normalise,
    answer_table,
    named_as,
    padded_costs,
    right_by_vote,
)
from offramp.ledger.checks import (
    WITHOUT_LABELS,
    Names,
    SampleIds,
    checked_ids,
    checked_labels,
    checked_lengths,
    checked_logits,
    checked_names,
    checked_outputs,
    checked_right,
    costs_of,
    joined_exits,
)
from offramp.ledger.chunks import cut, row_slices, stratified_cut
from offramp.ledger.history import AnswerHistory, ConfidenceHistory, History, VoteHistory
from offramp.ledger.origin import SPLITS, SampleOrigin, digest
from offramp.targets import correctness


class Partition(NamedTuple):
    """One ledger cut into the three splits that fitting, tuning and testing need."""

    held_out: "Ledger"
    val: "Ledger"
    test: "Ledger"


class Ledger(SampleOrigin):
    """The outputs of every exit on one split, with labels, costs and origin.

    There are two types: `Ledger(...)` makes a `LogitLedger`, and `from_answers` an `AnswerLedger`.

    Args:
        logits: `[N, M, K]` raw logits (not probabilities), an array or a tensor of any float type;
            or a list, tuple or dict of M of them, `[N, K]` each, in the order of the exits.
        labels: `[N]` integer classes in `0..K-1`, or names that are among `class_names`; None
            where nobody knows them yet: then what needs none still works, and everything else
            raises.
        costs: `Costs`, or plain increasing cumulative costs `[M]`, which mean `relative`. Where
            they differ from sample to sample, `[N, M]`; budgets are then shares of the mean cost
            of going to the end. `BatchTimes`, where batches shrink and seconds are counted.
        split: `train`, `held_out`, `val`, `test`, or `all` for data to be partitioned.
        sample_ids: `[N]` distinct ids, all strings or all integers; with them, splits that share
            a sample are noticed.
        network: Fingerprint (any text) of the network that made the logits; with it, ledgers and
            policies of different networks cannot be mixed.
        class_names: `[K]` names, in the order of the logits.
        recorded_on: Device and precision that the network ran on, for reports.
        groups: `[N]` names, strings or integers, of what belongs together, such as the question
            that several samples answer. A group is never cut apart: splits, folds, intervals and
            guarantees go by groups.
        lengths: `[N]`, how many exits each sample has, where some end before the last. What stands
            at the exits after its end is ignored: the sample keeps its last answer and its cost.

    Attributes:
        history_type: How scorers read the outputs; see `history`.

    Example:
        >>> logits = np.random.default_rng(0).normal(size=(8, 3, 4))
        >>> ledger = Ledger(logits, [0, 1, 2, 3] * 2, [0.2, 0.5, 1.0], split="val")
        >>> ledger
        Ledger(split='val', 8 samples, 3 exits, 4 classes, relative costs)
        >>> ledger.keep_exits([0, 2]).costs
        array([0.2, 1. ])
    """

    history_type: ClassVar[type[History]]
    full_right: Array | None = None
    positive: Array | None = None  # bool [N, M+1]: see `from_answers`; the label's stands last
    _identifying: ClassVar[slice] = slice(1)  # exits that identify samples without names

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ANN401
        """As `pathlib.Path` does: the type is chosen where the caller has not."""
        return super().__new__(LogitLedger if cls is Ledger else cls)  # type: ignore[return-value]

    def __init__(  # noqa: PLR0913 - all but the first three by name
        self,
        logits: AnyArray,
        labels: AnyArray | Sequence[int] | None,
        costs: Costs | BatchTimes | AnyArray | Sequence[float],
        *,
        split: str,
        sample_ids: SampleIds | None = None,
        network: str | None = None,
        class_names: Sequence[str] | None = None,
        recorded_on: str | None = None,
        groups: SampleIds | None = None,
        lengths: AnyArray | Sequence[int] | None = None,
    ) -> None:
        check.one_of("split", split, SPLITS, LedgerError)
        self.split = split
        self.network = network
        self.recorded_on = recorded_on
        outputs, self._labels = self._checked(logits, labels, class_names)
        samples, exits, classes = outputs.shape
        self.lengths = checked_lengths(lengths, samples, exits)
        self._stored = carried_on(outputs, self.lengths)
        self.batch_times = costs if isinstance(costs, BatchTimes) else None
        self.cost_model = costs_of(costs, self.lengths, samples, exits)
        self.sample_ids = checked_ids(sample_ids, samples)
        self.groups = checked_names("groups", groups, samples)
        self.class_names = None if class_names is None else list(class_names)
        # A view of some rows or exits keeps the stored array and picks from it chunk by chunk,
        # so that a partition of a memory-mapped ledger never becomes a second one in memory.
        self._rows: Array | None = None
        self._hashes: Array | None = None
        self._right: Array | None = None
        self._exits: Array | None = None
        self.exits = tuple(range(exits))
        if class_names is not None and len(class_names) != classes:
            raise LedgerError(
                f"`class_names` must name the {classes} classes, got {len(class_names)}"
            )

    @staticmethod
    def from_answers(  # noqa: PLR0913 - all but the first by name
        answers: Any = None,  # noqa: ANN401 - answers of any kind
        *,
        costs: Any,  # noqa: ANN401 - checked where costs are made
        split: str,
        confidence: Any = None,  # noqa: ANN401
        log_confidence: Any = None,  # noqa: ANN401
        labels: Sequence[Any] | None = None,
        correct: Any = None,  # noqa: ANN401
        features: Any = None,  # noqa: ANN401
        mask: Any = None,  # noqa: ANN401
        groups: SampleIds | None = None,
        unit: str = "relative",
        normalise: Normalise | None = None,
        sample_ids: SampleIds | None = None,
        network: str | None = None,
        reference: str = "last",
        positive: Any = None,  # noqa: ANN401
        stage_names: Sequence[str] | None = None,
    ) -> "AnswerLedger":
        """A ledger of anything that answers in stages, without logits.

        The models of a cascade, checkpoints of a chain of thought, answers drawn one by one. Rows
        of different lengths are samples that end early; a missing stage in between (None or NaN)
        repeats the one before.

        Args:
            answers: `[N, M]`, of any kind; they are compared with `==`, after `normalise`. None
                where only `correct` is known: then nothing can tell whether stages agree.
            costs: Cumulative, `[M]` or `[N, M]`, in `unit`; or `Costs`.
            split: As for `Ledger`.
            confidence: `[N, M]`, the probability of being right that each stage states. Samples
                of one model need none: their votes count (`MajorityVote`, `scorers.Settled`).
            log_confidence: Instead: its logarithm.
            labels: `[N]`, the right answers; compared as answers are.
            correct: Instead: `[N, M]`, whether each answer is right. Without either, the ledger
                has no labels.
            features: `[N, M, F]`, whatever else a stop rule may read; of the order of one.
            mask: bool `[N, M]`, whether a sample has a stage, where rows do not differ in
                length.
            groups: As for `Ledger`.
            unit: Of plain costs: `tokens`, `dollars`, `seconds`, `macs` or `relative`.
            normalise: Brings an answer into the form that is compared, such as `str.lower`.
            sample_ids: As for `Ledger`.
            network: A text that names what answered; as for `Ledger`.
            reference: What accuracies are held against: the `last` stage, or the `vote` of all
                stages, for samples of one model.
            positive: An answer, such as "yes", whose precision or recall is to be guaranteed.
            stage_names: `[M]`, what warnings call the stages; they are not kept.

        Raises:
            LedgerError: With the sample and the stage.

        Example:
            >>> ledger = Ledger.from_answers(
            ...     [["4", "4 "], ["7", "9"], ["5"]],
            ...     confidence=[[0.9, 0.95], [0.4, 0.8], [0.99]],
            ...     labels=["4", "9", "5"],
            ...     costs=[[10, 40], [12, 60], [8]],
            ...     unit="tokens",
            ...     split="test",
            ...     normalise=str.strip,
            ... )
            >>> ledger
            Ledger(split='test', 3 samples, 2 stages of answers, tokens costs)
            >>> ledger.labels.tolist(), ledger.lengths.tolist()
            ([[True, True], [False, True], [True, True]], [2, 2, 1])
        """
        stated = Confidences.of(confidence, log_confidence, mask, answers)
        outputs, right = answer_table(
            answers, stated, labels, correct, features, normalise, stage_names
        )
        if not isinstance(costs, Costs | BatchTimes):
            costs = Costs.from_cumulative(padded_costs(costs, stated), unit)
        check.one_of("reference", reference, ("last", "vote"), LedgerError)
        ledger_type = ConfidenceLedger if answers is None else AnswerLedger
        if confidence is None and log_confidence is None:
            ledger_type = VoteLedger
        ledger = ledger_type(
            outputs,
            right,
            costs,
            split=split,
            sample_ids=sample_ids,
            network=network,
            groups=groups,
            lengths=stated.lengths,
        )
        if right is not None and reference == "vote":
            ledger.full_right = right_by_vote(outputs, right, stated.lengths)
        if positive is not None:
            ledger.positive = named_as(positive, answers, labels, stated, normalise)
        return ledger

    @property
    def has_labels(self) -> bool:
        """Whether the true classes are known."""
        return self._labels is not None

    @property
    def labels(self) -> Array:
        """`[N]`, the true classes; bool `[N, M]`, which stages are right, of answers.

        Raises:
            LedgerError: There are none; the message says what works without.
        """
        if self._labels is None:
            raise LedgerError(f"this {self.split} ledger has no labels, {WITHOUT_LABELS}")
        return self._labels

    @property
    def num_exits(self) -> int:
        """M."""
        return self.cost_model.num_exits

    @property
    def num_classes(self) -> int:
        """K; of answers, how many numbers there are per stage."""
        return int(self._stored.shape[2])

    @property
    def dtype(self) -> np.dtype[Any]:
        """How the outputs are stored."""
        return self._stored.dtype

    @property
    def costs(self) -> Array:
        """`[M]` float64: cumulative cost of answering at each exit, in the ledger's unit.

        It is the mean sample's, where costs differ from sample to sample.
        """
        return self.cost_model.mean().cumulative

    @property
    def cumulative_costs(self) -> Array:
        """`[M]` float64 as `costs`, or `[N, M]` where they differ from sample to sample."""
        return self.cost_model.cumulative

    @property
    def unit(self) -> str:
        """`macs`, `seconds`, `tokens`, `dollars`, `trees` or `relative`."""
        return self.cost_model.unit

    @property
    def reference_cost(self) -> float:
        """Cost of the network without exits, to which budgets are relative."""
        return self.cost_model.mean_reference

    @property
    def logits(self) -> Array:
        """`[N, M, K]` as stored; copies only where this ledger is a view of another one.

        Raises:
            LedgerError: This ledger holds answers without logits.
        """
        if not self.has_logits:
            raise LedgerError(
                f"this {self.split} ledger has no logits: it holds {self.history_type.name}"
            )
        return self.outputs

    @property
    def outputs(self) -> Array:
        """What the exits put out: `logits`, or what `from_answers` made of answers."""
        return self._pick(slice(None))

    @property
    def has_logits(self) -> bool:
        """Whether this is a `LogitLedger`."""
        return self.history_type.has_logits

    @property
    def heads_correct(self) -> Array:
        """Whether each exit is right by itself, before any `Answer`: bool `[N, M]`."""
        raise NotImplementedError

    @property
    def full_correct(self) -> Array:
        """Whether the network without exits is right, bool `[N]`: what losses are against.

        That is the last exit; of answers, the last stage even where it is left out, or the vote of
        all stages, if the ledger was made so.
        """
        return self.heads_correct[:, -1] if self.full_right is None else self.full_right

    def history(self, answers: Array | None = None) -> History:
        """All exits, with what would be answered at each `[N, M, K]`; by default, their own."""
        outputs = self.outputs
        answers = outputs if answers is None else answers
        history = self.history_type(outputs, answers, lengths=self.lengths)
        history.groups = self.group_numbers
        return history

    def __len__(self) -> int:
        return len(self._stored if self._rows is None else self._rows)

    def __repr__(self) -> str:
        unlabelled = "" if self.has_labels else ", no labels"
        grouped = "" if self.groups is None else f" in {self.num_units:,} groups"
        return (
            f"Ledger(split={self.split!r}, {len(self):,} samples{grouped}, "
            f"{self.num_exits} {self._size_as_text}, {self.unit} costs{unlabelled})"
        )

    def chunks(self) -> Iterator[tuple[slice, Array]]:
        """Go through the samples in order, a few at a time.

        Yields:
            The slice of samples, and their logits in float32, `[n, M, K]`.
        """
        for rows in row_slices(len(self), self.num_exits * self.num_classes):
            yield rows, float32(self._pick(rows))

    def take(self, index: AnyArray | Sequence[int]) -> Self:
        """The samples with these numbers, in this order, or under a mask; nothing is copied."""
        index = as_numpy(index)
        if index.dtype == bool and index.shape == (len(self),):
            index = np.flatnonzero(index)
        if index.ndim != 1 or index.dtype.kind not in "iu" or not len(index):
            raise LedgerError(
                f"`index` must be sample numbers, or a mask of the {len(self)} samples, got "
                f"{index.dtype} of the shape {list(index.shape)}"
            )
        part = copy(self)
        part._hashes = part._right = None
        part._rows = index if self._rows is None else self._rows[index]
        part._labels = None if self._labels is None else self._labels[index]
        part.sample_ids = _names_at(self.sample_ids, index)
        part.groups = _names_at(self.groups, index)
        part.full_right = None if self.full_right is None else self.full_right[index]
        part.positive = None if self.positive is None else self.positive[index]
        part.lengths = None if self.lengths is None else self.lengths[index]
        part.cost_model = self.cost_model.take(index)
        return part

    def keep_exits(self, exits: Sequence[int]) -> Self:
        """The same ledger with these exits only, ascending; the logits are not copied.

        Heads of dropped exits cost nothing any more, and their stages count towards the next
        kept exit. The reference cost stays, so budgets mean the same. A policy that is fitted on
        what is kept knows these exits, and runs on the whole network without the others.
        """
        kept = [int(exit_index) for exit_index in exits]
        if kept != sorted(set(kept)) or not kept or kept[0] < 0 or kept[-1] >= self.num_exits:
            raise LedgerError(
                f"`exits` must be ascending numbers in 0..{self.num_exits - 1}, got {kept}"
            )
        if len(kept) == self.num_exits:
            return self
        part = copy(self)
        part._right = None
        index = np.array(kept)
        part._exits = index if self._exits is None else self._exits[index]
        part.exits = tuple(self.exits[exit_index] for exit_index in kept)
        part.cost_model = self.cost_model.keep(kept)
        part.batch_times = None if self.batch_times is None else self.batch_times.keep(kept)
        if self._labels is not None and self._labels.ndim == 2:  # of answers, by stage
            part._labels = self._labels[:, index]
            part.full_right = self.full_correct
        if self.positive is not None:
            part.positive = self.positive[:, [*kept, -1]]
        if self.lengths is not None:
            # The last answer of a sample stands at the first kept exit that is not before its end.
            before_its_end = (index < self.lengths[:, None] - 1).sum(axis=1)
            lengths = np.minimum(before_its_end + 1, len(kept))
            part.lengths = checked_lengths(lengths, len(self), len(kept))
        return part

    def with_costs(self, costs: Costs | BatchTimes) -> Self:
        """The same logits with other costs, such as the seconds of `Profile.at`.

        Args:
            costs: Of the exits of this ledger, or of all exits of its network.

        Example:
            >>> from offramp import synthetic
            >>> val = synthetic.ledgers(seed=0, exits=4)["val"]
            >>> val.with_costs(Costs((0.2, 0.2, 0.3, 0.3), (0.1,) * 4, unit="seconds")).unit
            'seconds'
        """
        exits = costs.stages.shape[0 if isinstance(costs, BatchTimes) else -1]
        if exits > self.num_exits and exits > self.exits[-1]:
            costs = costs.keep(self.exits)
        elif exits != self.num_exits:
            raise LedgerError(
                f"these costs are of {exits} exits, and the ledger has {self.num_exits}: measure "
                "the network that the ledger was recorded from"
            )
        part = copy(self)
        part.batch_times = costs if isinstance(costs, BatchTimes) else None
        part.cost_model = costs_of(costs, self.lengths, len(self), self.num_exits)
        return part

    def partition(
        self,
        held_out: float = 0.3,
        val: float = 0.3,
        test: float = 0.4,
        seed: int = 0,
        allow_split: str | None = None,
        stratify: bool = False,
    ) -> Partition:
        """Cut one ledger at random into held_out, val and test, for those with one file.

        Groups stay whole, and shares are then shares of the groups.

        Args:
            held_out: Share of the samples to fit answers and scorers on.
            val: Share to choose thresholds on.
            test: Share to report figures on; the shares sum to one.
            seed: The same seed gives the same parts.
            allow_split: Name of this ledger's split, to cut up a ledger that is not `all`.
            stratify: Whether every part gets its share of every class; not with groups.
        """
        self.require_split("all", allow_split)
        shares = (held_out, val, test)
        if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
            raise LedgerError(f"the shares must be positive and sum to one, got {shares}")
        ends = [held_out, held_out + val]
        if stratify and self.groups is not None:
            raise LedgerError("groups stay whole, and cannot be cut by classes: leave it out")
        if stratify:
            pieces = stratified_cut(self.labels, ends, seed)
        else:
            pieces = cut(len(self), ends, seed, self.group_numbers)
        if not all(map(len, pieces)):
            units = "samples" if self.groups is None else "groups"
            raise LedgerError(f"{self.num_units} {units} are too few for shares of {shares}")
        whole = self._with_known_origin()
        return Partition(
            *(
                whole.take(piece).as_split(name)
                for piece, name in zip(pieces, Partition._fields, strict=True)
            )
        )

    def halves(
        self, share: float = 0.5, seed: int = 0, allow_split: str | None = None
    ) -> tuple[Self, Self]:
        """Cut one ledger at random into held_out and val, where the test data is another file.

        Groups stay whole.

        Args:
            share: Of the samples, or of the groups, that held_out gets.
            seed: The same seed gives the same parts.
            allow_split: Name of this ledger's split, to cut up a ledger that is not `train`.

        Example:
            >>> from offramp import synthetic
            >>> train = synthetic.ledgers(seed=0, samples=100)["val"].as_split("train")
            >>> [len(part) for part in train.halves()]
            [50, 50]
        """
        self.require_split("train", allow_split)
        check.within("share", share, 0, 1, ends="()")
        pieces = cut(len(self), [share], seed, self.group_numbers)
        if not all(map(len, pieces)):
            raise LedgerError(f"{self.num_units} samples or groups are too few for two parts")
        first, second = (self.take(piece) for piece in pieces)
        return first.as_split("held_out"), second.as_split("val")

    def _contents(self) -> Iterator[bytes]:
        for rows in row_slices(len(self), self.num_classes):
            stored = self._stored[rows if self._rows is None else self._rows[rows]]
            yield from (row.tobytes() for row in float32(stored[:, self._identifying]))

    def save(self, folder: str | Path) -> Path:
        """Write the ledger as a folder, atomically; return its path."""
        from offramp.ledger import saved

        return saved.save(self, folder)

    @staticmethod
    def load(path: str | Path, split: str | None = None, network: str | None = None) -> "Ledger":
        """Read a saved ledger (memory-mapped), a plain `.npz`, or a table of answers.

        Args:
            path: A folder that `save` wrote, or an `.npz` with `logits` `[N, M, K]`, `labels`
                `[N]` where they are known, and cumulative `costs` `[M]` or `[N, M]`; or, instead,
                `stage_costs`, `head_costs`, and optionally `reference_cost` and `unit`;
                optionally `sample_ids`, `groups`, `lengths`, and `network`, a text that all files
                of one network share. For answers without logits, an `.npz` with the arguments of
                `from_answers`, or a `.jsonl` or `.parquet` file with a row per sample: lists
                `answers`, `confidence` or `log_confidence`, `correct`, `features`, `costs` or, of
                a cascade, `model_costs` (what each model alone has cost), and single values
                `label`, `group`, `id`, `unit`, `network`.
            split: Needed for a file; for a folder it must be its own.
            network: Fingerprint of the network, for a file that does not name it.

        Raises:
            FileFormatError: The file is missing, truncated, foreign or of an unknown version.
            LedgerError: The arrays are not a ledger's.
        """
        from offramp.ledger import reading

        return reading.load(Path(path), split, network)

    def _pick(self, rows: slice) -> Array:
        """Stored outputs of some samples, `[n, M, K]`."""
        picked = self._stored[rows if self._rows is None else self._rows[rows]]
        return picked if self._exits is None else self._outputs_at(picked, self._exits)

    def as_split(self, split: str) -> Self:
        """The same samples under the name of another split."""
        view = copy(self)
        view.split = split
        return view

    def _with_known_origin(self) -> Self:
        """Ids and a fingerprint for a ledger without, so that its parts know each other."""
        whole = copy(self)
        if whole.sample_ids is None:
            whole.sample_ids = list(range(len(self)))
        if whole.network is None:
            first = next(self.chunks())[1][:64]
            whole.network = "content-" + digest(first.tobytes())
        return whole

    @staticmethod
    def _checked(
        outputs: AnyArray, labels: AnyArray | None, class_names: Sequence[str] | None
    ) -> tuple[Array, Array | None]:
        """The outputs `[N, M, K]` and labels, or an error that says what is wrong with them."""
        raise NotImplementedError

    def _outputs_at(self, outputs: Array, exits: Array) -> Array:
        """Outputs `[n, M, K]` with these exits only."""
        return outputs.take(exits, axis=1)  # indexing would leave the exits outermost in memory

    @property
    def _size_as_text(self) -> str:
        """The noun that the number of exits stands before, and how wide they are."""
        raise NotImplementedError


class LogitLedger(Ledger):
    """The logits of every exit: what `Ledger(...)` makes."""

    history_type = History

    @property
    def heads_correct(self) -> Array:
        """Whether the logits of each exit are largest at the label: bool `[N, M]`."""
        if self._right is None:
            predictions = np.concatenate([part.argmax(axis=2) for _, part in self.chunks()])
            self._right = correctness(predictions, self.labels)
        return self._right

    @staticmethod
    def _checked(
        outputs: AnyArray, labels: AnyArray | None, class_names: Sequence[str] | None
    ) -> tuple[Array, Array | None]:
        logits = checked_logits(joined_exits(outputs, labels))
        if labels is None:
            return logits, None
        samples, _, classes = logits.shape
        return logits, checked_labels(labels, samples, classes, class_names)

    @property
    def _size_as_text(self) -> str:
        return f"exits, {self.num_classes} classes"


class AnswerLedger(Ledger):
    """Answers with confidences and without logits: what `Ledger.from_answers` makes.

    The outputs `[N, M, 2+F]` say how sure each stage is, as log-odds of being right, which stage
    was the first to give the same answer, and F features. Labels are bool `[N, M]`.
    """

    history_type = AnswerHistory
    _identifying = slice(None)  # two samples share a confidence more easily than logits

    @property
    def heads_correct(self) -> Array:
        """Whether each stage is right: bool `[N, M]`."""
        return self.labels

    @staticmethod
    def _checked(
        outputs: AnyArray, labels: AnyArray | None, class_names: Sequence[str] | None
    ) -> tuple[Array, Array | None]:
        checked = checked_outputs(outputs)
        return checked, None if labels is None else checked_right(labels, checked.shape[:2])

    def _outputs_at(self, outputs: Array, exits: Array) -> Array:
        kept = super()._outputs_at(outputs, exits)
        first = kept[..., 1]
        kept[..., 1] = (first[:, :, None] == first[:, None, :]).argmax(axis=2)  # of those kept
        return kept

    @property
    def _size_as_text(self) -> str:
        features = f", {self.num_classes - 2} features" if self.num_classes > 2 else ""
        return f"stages of {self.history_type.name}{features}"


class VoteLedger(AnswerLedger):
    """Answers that state no confidence, such as samples of one model: they can only vote."""

    history_type = VoteHistory


class ConfidenceLedger(AnswerLedger):
    """Confidences of answers that are not known: nothing can tell whether stages agree."""

    history_type = ConfidenceHistory


def _names_at(names: Names | None, index: Array) -> Names | None:
    """The names of some samples."""
    picked: list[Any] | None = None if names is None else [names[i] for i in index.tolist()]
    return picked
