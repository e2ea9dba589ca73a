"""A case: one network, tested on one set of data, with everything that is known of it."""

from dataclasses import dataclass

from offramp.evaluation import Comparison
from offramp.flow.steps import CompareStep
from offramp.flow.study import Subject
from offramp.flow.workshop import Workshop
from offramp.ledger import Ledger, Partition
from offramp.methods import Method

__all__ = ["Case", "CaseResult"]


@dataclass(frozen=True)
class Case:
    """One network on one test set.

    Args:
        name: For folders and messages.
        title: For the report.
        paper: Heading in the paper's table to set it beside.
        note: For the report.
        subject: The network.
        target: The domain that is tested on, where there are domains.
        comparison: The step that compares the methods.
    """

    name: str
    title: str
    paper: str | None
    note: str
    subject: Subject
    target: str | None
    comparison: CompareStep

    def ledgers(self, workshop: Workshop) -> dict[str, Ledger]:
        """The three ledgers by split."""
        loaded = (each.load(workshop) for each in self.comparison.ledgers)
        return dict(zip(Partition._fields, loaded, strict=True))


@dataclass(frozen=True)
class CaseResult:
    """What an analysis gets of a case.

    Args:
        case: Which.
        ledgers: By split.
        comparison: Of its methods.
        methods: Those, unfitted.
        workshop: For data, where they are at hand.
    """

    case: Case
    ledgers: dict[str, Ledger]
    comparison: Comparison
    methods: list[Method]
    workshop: Workshop
