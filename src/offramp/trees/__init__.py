"""Boosted trees and forests, which answer in stages: after every round of trees.

`record` makes a ledger of them, `measure` says what the rounds cost in seconds, `early_stop`
certifies a margin for LightGBM's own early stop, and `TreeRunner` puts a policy to work.
"""

from typing import TYPE_CHECKING

from offramp.imports import import_when_asked

if TYPE_CHECKING:
    from offramp.trees.margin import EarlyStop, early_stop
    from offramp.trees.models import TreeModel, tree_model
    from offramp.trees.record import measure, record
    from offramp.trees.runner import TreeOutput, TreeRunner

__all__ = [
    "EarlyStop",
    "TreeModel",
    "TreeOutput",
    "TreeRunner",
    "early_stop",
    "measure",
    "record",
    "tree_model",
]

import_when_asked(__name__)
