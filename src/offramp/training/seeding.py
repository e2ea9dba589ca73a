"""Randomness as a function of the seed and the place in a run, so that nothing is to restore."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["generator_at", "kept_randomness", "seed_everything"]


def seed_at(*place: int | str) -> int:
    """A seed of 63 bits for a place, such as `(seed, "order", phase, epoch)`."""
    digest = hashlib.blake2b(repr(place).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def generator_at(*place: int | str) -> torch.Generator:
    """A generator for a place.

    Example:
        >>> first, again = (torch.randperm(9, generator=generator_at(0, "order")) for _ in "ab")
        >>> torch.equal(first, again)
        True
    """
    return torch.Generator().manual_seed(seed_at(*place))


def seed_everything(*place: int | str) -> None:
    """Seed torch, numpy and `random` for a place: dropout, and whatever a data set draws from."""
    number = seed_at(*place)
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)


@contextmanager
def kept_randomness() -> Iterator[None]:
    """Give the caller's random states back afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
