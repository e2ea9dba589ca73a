"""Ledgers: the outputs of every exit on one split, with labels and costs, checked and saved."""

from offramp.ledger.history import AnswerHistory, History
from offramp.ledger.ledger import AnswerLedger, Ledger, LogitLedger, Partition
from offramp.ledger.reading import has_ledger, load_ledgers

__all__ = [
    "AnswerHistory",
    "AnswerLedger",
    "History",
    "Ledger",
    "LogitLedger",
    "Partition",
    "has_ledger",
    "load_ledgers",
]
