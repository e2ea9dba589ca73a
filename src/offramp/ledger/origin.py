"""Where samples come from, and what a policy has used them for, so that nothing is mixed up."""

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from offramp.arrays import Array
from offramp.errors import LedgerError, OriginError, OriginWarning, SplitError

SPLITS = ("train", "held_out", "val", "test", "all")


def digest(content: str | bytes) -> str:
    """A fingerprint."""
    raw = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


class SampleOrigin:
    """What a ledger knows of its samples: split, network, ids and groups.

    Attributes:
        split: One of `SPLITS`.
        network: A text that names the network, or None.
        sample_ids: `[N]`, or None.
        groups: `[N]`, names of what belongs together, or None.
    """

    split: str
    network: str | None
    sample_ids: list[str] | list[int] | None
    groups: list[str] | list[int] | None
    _hashes: Array | None

    def __len__(self) -> int:
        raise NotImplementedError

    def _contents(self) -> Iterator[bytes]:
        """What tells a sample from others, where nobody has named it."""
        raise NotImplementedError

    @property
    def group_numbers(self) -> Array | None:
        """`[N]`: the number of each sample's group, from 0 on; None where there are none."""
        if self.groups is None:
            return None
        numbers: dict[str | int, int] = {}
        return np.array([numbers.setdefault(name, len(numbers)) for name in self.groups])

    @property
    def num_units(self) -> int:
        """How many independent units there are: groups, or samples where there are none."""
        return len(self) if self.groups is None else len(set(self.groups))

    @property
    def data_fingerprint(self) -> str | None:
        """Fingerprint of the sample ids, or None where they are not known."""
        return None if self.sample_ids is None else digest("\n".join(map(str, self.sample_ids)))

    def sample_hashes(self) -> Array:
        """A number per sample, int64 `[N]`, by which samples are distinguished.

        From the groups, the sample ids, or, where neither are known, from the first exit's logits.
        Labels are left out: a sample without its label is the same sample.
        """
        if self._hashes is None:
            names = self.sample_ids if self.groups is None else self.groups
            keys = map(str, names) if names is not None else self._contents()
            raw = (key.encode() if isinstance(key, str) else key for key in keys)
            digests = (hashlib.blake2b(key, digest_size=8).digest() for key in raw)
            numbers = [int.from_bytes(digest) >> 1 for digest in digests]
            self._hashes = np.array(numbers, dtype=np.int64)
        return self._hashes

    @classmethod
    def require(cls, name: str, given: object) -> None:
        """Raise `LedgerError` unless an argument is a ledger, and say how to make one."""
        if not isinstance(given, cls):
            split = name if name in SPLITS else "all"
            raise LedgerError(
                f"`{name}` must be a Ledger, got {type(given).__name__}; make one: "
                f"offramp.Ledger(logits, labels, costs, split={split!r})"
            )

    def require_split(self, wanted: str, allow_split: str | None = None) -> None:
        """Raise unless this is the wanted split, or the one that the caller allows instead.

        Raises:
            SplitError: With the words that would allow it, where the step takes them.
        """
        if self.split not in (wanted, allow_split):
            raise SplitError(
                f"this step needs the split {wanted!r}, and the ledger is {self.split!r}; where a "
                f"step takes another one knowingly, it takes allow_split={self.split!r}"
            )

    def require_network(self, network: str | None) -> None:
        """Raise if this ledger comes from another network; warn where that cannot be known.

        Raises:
            OriginError: The fingerprints differ.
        """
        if network is None or self.network is None:
            warnings.warn(
                f"this {self.split} ledger or its partner does not say which network made it, so "
                "mixing up networks would go unnoticed; pass network='...' to Ledger",
                OriginWarning,
                stacklevel=3,
            )
        elif self.network != network:
            raise OriginError(
                f"this {self.split} ledger is from the network {self.network!r}, and its partner "
                f"from {network!r}; record both with the same weights"
            )


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

    def record(self, step: str, ledger: SampleOrigin, split: str | None = None) -> None:
        """Note that a step has used these samples, so that no other one does unnoticed.

        `split` says where they come from, if not from the ledger's split alone.
        """
        use = SplitUse(step, split or ledger.split, len(ledger), ledger.data_fingerprint)
        self.uses = [*self.uses, use]
        self.seen = {**self.seen, step: ledger.sample_hashes()}

    def check_unseen(self, ledger: SampleOrigin, step: str) -> None:
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
