"""A random order of samples that depends on a seed and on their ids, and on nothing else."""

import hashlib
from collections.abc import Sequence

__all__ = ["shuffled"]


def shuffled(ids: Sequence[str], seed: int) -> list[int]:
    """Positions of the ids in an order fixed by the seed.

    Every id is hashed together with the seed, and the hashes are sorted. So the order is the
    same in every process, on every machine and with every version of numpy and torch, and a
    sample's place among the others does not change when files are listed in another order.

    Args:
        ids: Distinct ids.
        seed: The same seed gives the same order.

    Example:
        >>> shuffled(["a", "b", "c", "d"], seed=0)
        [3, 0, 2, 1]
    """
    keys = [hashlib.sha256(f"{seed}:{name}".encode()).digest() for name in ids]
    return sorted(range(len(keys)), key=keys.__getitem__)
