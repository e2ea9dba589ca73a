"""Speed of everything that starts from saved logits, each against a stated reference.

Run: python benchmarks/posthoc.py
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from offramp import Corrector, MaxProbability, Policy, compare, synthetic
from offramp.evaluation.curve import curve_of
from offramp.ledger import Ledger
from offramp.scorers import History, corrector
from offramp.tracing import Trace


def best_of[Result](runs: int, job: Callable[[], Result]) -> tuple[float, Result]:
    """Shortest time of several runs, and the last result."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        result = job()
        times.append(time.perf_counter() - start)
    return min(times), result
