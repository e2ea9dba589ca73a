"""Which samples a policy has used for what, so that no step sees samples of another step."""

from dataclasses import dataclass

import numpy as np

from offramp.arrays import Array
from offramp.errors import SplitError
from offramp.ledger import Ledger


@dataclass(frozen=True)
class SplitUse:
    """One use of a split by a policy: which step, which split, which samples."""

    step: str
    split: str
    samples: int
    data_fingerprint: str | None


class SplitUses:
    """What a policy remembers of the ledgers that it was made from.

    Attributes:
        uses: Every use of a split so far.
        seen: By step, hashes of the samples that it has used.
    """

    def __init__(self) -> None:
        self.uses: list[SplitUse] = []
        self.seen: dict[str, Array] = {}

    def record(self, step: str, ledger: Ledger, split: str | None = None) -> None:
        """Note that a step has used these samples, so that no other one does unnoticed.

        `split` says where they come from, if not from the ledger's split alone.
        """
        use = SplitUse(step, split or ledger.split, len(ledger), ledger.data_fingerprint)
        self.uses = [*self.uses, use]
        self.seen = {**self.seen, step: ledger.sample_hashes()}

    def check_unseen(self, ledger: Ledger, step: str) -> None:
        """Raise if other steps have used samples of this ledger.

        Raises:
            SplitError: With the number of such samples and the step.
        """
        hashes = ledger.sample_hashes()
        # Without ids, samples are known by their logits, and a data set may hold a few twins.
        named = ledger.sample_ids is not None or ledger.groups is not None
        allowed = 0 if named else len(ledger) // 100
        for used_by, seen in self.seen.items():
            shared = int(np.isin(hashes, seen).sum())
            if used_by != step and shared > allowed:
                knowingly = f", or say allow_split={ledger.split!r}" * (step != "certify")
                raise SplitError(
                    f"{shared} of the {len(ledger)} samples of this {ledger.split} ledger were "
                    f"already used to {used_by} this policy; use other samples{knowingly}"
                )
