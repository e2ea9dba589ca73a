"""Speed of the search for thresholds, against the same ascent written as loops.

Run: python benchmarks/thresholds.py
"""

import time
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from offramp import MaxProbability, synthetic
from offramp.answers import CurrentExit
from offramp.replay import replay
from offramp.thresholds import exits_taken, optimize
from offramp.thresholds.optimized import optimized_sweep
from offramp.thresholds.tuning import measure

Result = TypeVar("Result")
Rows = list[list[float]]


def timed(job: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds of this process, and the result; the machine may be busy with other things."""
    start = time.process_time()
    result = job()
    return time.process_time() - start, result


def ascend_in_loops(scores: Rows, correct: Rows, costs: list[float], price: float) -> list[float]:
    """Coordinate ascent for one price from all exits closed, as one would write it first."""
    last = len(costs) - 1
    thresholds = [float("inf")] * last
    while True:
        before = list(thresholds)
        for m in reversed(range(last)):
            reaching = []
            for row, right in zip(scores, correct, strict=True):
                if any(row[j] >= thresholds[j] for j in range(m)):
                    continue
                onward = (j for j in range(m + 1, last) if row[j] >= thresholds[j])
                later = next(onward, last)
                gain = right[m] - right[later] - price * (costs[m] - costs[later])
                reaching.append((row[m], gain))
            reaching.sort(reverse=True)
            total, best, cut = 0.0, 0.0, float("inf")
            for score, gain in reaching:
                total += gain
                if total > best + 1e-9:
                    best, cut = total, score
            thresholds[m] = cut
        if thresholds == before:
            return thresholds


def value(scores: Tensor, correct: Tensor, costs: Tensor, found: Tensor) -> tuple[float, float]:
    """Accuracy and mean cost."""
    means, accuracies, _ = measure(exits_taken(scores, found[None]), correct, costs)
    return float(accuracies), float(means)


def main() -> None:
    """One budget, one price, and a whole curve, on 10,000 x 10."""
    ledger = synthetic.ledgers(seed=0, samples=10_000, exits=10)["val"]
    found = replay(CurrentExit(), MaxProbability(), ledger)
    arrays = found.scores, found.correct, ledger.costs / ledger.reference_cost
    for budget in (0.25, 0.5, 0.75):
        seconds, best = timed(lambda b=budget: optimize(*arrays, budget=b))  # type: ignore[misc]
        accuracy, cost = value(*arrays, best)
        print(f"one budget, 10,000 x 10: {seconds:.2f} s; {accuracy:.4f} at {cost:.4f}")
    price = 0.5
    fast, one = timed(lambda: optimize(*arrays, price=price, smoothing=0))
    lists = found.scores.tolist(), found.correct.double().tolist(), arrays[2].tolist()
    slow, looped = timed(lambda: ascend_in_loops(*lists, price))
    other = arrays[0].new_tensor([*looped, float("-inf")]).double()
    gains = [a - price * c for a, c in (value(*arrays, one), value(*arrays, other))]
    print(
        f"one price from three starts: {fast:.2f} s, loops from one start {slow:.2f} s, "
        f"{slow / fast:.0f}x faster; value {gains[0]:.4f}, loops {gains[1]:.4f}"
    )
    seconds, points = timed(lambda: optimized_sweep(*arrays, 201))
    print(f"operating points over the whole range, 10,000 x 10: {seconds:.2f} s, {len(points)}")


if __name__ == "__main__":
    main()
