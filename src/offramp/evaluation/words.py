"""What the stages of a ledger are called: exits of a network, models of a cascade, stages."""

from dataclasses import dataclass

from offramp.costs import Costs
from offramp.ledger import Ledger


@dataclass(frozen=True)
class Words:
    """Names of things, for sentences."""

    stage: str  # where one may stop
    full: str  # what accuracies are held against
    whole: str  # what costs are shares of
    subject: str  # what is or is not worth it

    @property
    def stages(self) -> str:
        """Several of them."""
        return f"{self.stage}s"

    def of(self, text: str) -> str:
        """A text about a network, in these words."""
        if self is NETWORK:
            return text
        for old, new in (
            ("Early exits are", self.subject),
            ("early exits are", self.subject[0].lower() + self.subject[1:]),
            ("the network without exits", self.whole),
            ("full network", self.full),
            ("of the network", f"of the {self.full}"),
            ("exit", self.stage),
        ):
            text = text.replace(old, new)
        return text


NETWORK = Words("exit", "full network", "the network without exits", "Early exits are")
CASCADE = Words("model", "last model", "the last model alone", "A cascade is")
STAGES = Words("stage", "whole chain", "going to the end", "Stopping early is")


def words_for(ledger: Ledger) -> Words:
    """How to speak of a ledger.

    Example:
        >>> from offramp import synthetic
        >>> words_for(synthetic.cascade(seed=0)["test"]).full
        'last model'
    """
    return words_of(ledger.has_logits, ledger.cost_model)


def words_of(has_logits: bool, costs: Costs) -> Words:
    """How to speak of what has such outputs and costs."""
    if has_logits:
        return NETWORK
    return CASCADE if costs.is_cascade else STAGES
