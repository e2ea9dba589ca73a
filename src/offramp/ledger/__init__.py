"""Ledgers: every exit's logits on one split, with labels and costs; checked, cut and saved."""

from offramp.ledger.files import has_ledger, load_ledgers
from offramp.ledger.ledger import Ledger, Partition

__all__ = ["Ledger", "Partition", "has_ledger", "load_ledgers"]
