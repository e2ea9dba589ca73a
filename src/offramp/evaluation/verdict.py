"""What a comparison comes to: its best methods beside what needs no look at any sample."""

from dataclasses import dataclass

from offramp.evaluation.bootstrap import Interval, for_all
from offramp.evaluation.columns import accuracy_key, share_text
from offramp.evaluation.results import BEST_FIXED, FIXED, FIXED_MIX, FULL, Comparison, MethodResult
from offramp.evaluation.worse_exits import points


@dataclass(frozen=True)
class BestAt:
    """The most accurate method at a budget, beside fixed exits at the same cost.

    Its intervals hold for all methods at once, since the best of several owes something to luck.
    """

    budget: float
    method: MethodResult
    over_mix: Interval  # of two fixed exits, one of which answers, chosen at random
    over_best_fixed: Interval
    over_full: Interval  # the full network

    @property
    def name(self) -> str:
        """The method with its thresholds."""
        if ":" in self.method.name or self.method.thresholds == "chosen":
            return self.method.label
        return f"{self.method.label} ({self.method.thresholds} thresholds)"


def best_methods(comparison: Comparison) -> list[BestAt]:
    """By budget; empty for comparisons of older versions, which know no fixed exits."""
    found = []
    for budget in comparison.budgets:
        key = accuracy_key(budget)
        best = max(comparison.methods, key=lambda method: method.figures[key].value)
        if any(key not in best.differences.get(name, {}) for name in FIXED):
            return []
        gaps = {
            name: for_all(best.differences[name][key], len(comparison.methods)) for name in FIXED
        }
        found.append(BestAt(budget, best, gaps[FIXED_MIX], gaps[BEST_FIXED], gaps[FULL]))
    return found


def verdict(comparison: Comparison) -> str:
    """One or two sentences: whether any method is better than a random mix of two fixed exits.

    Example:
        >>> from offramp import compare, synthetic
        >>> splits = synthetic.ledgers(seed=0, samples=500)
        >>> table = compare(**splits, methods=["baseline"], budgets=[0.5], progress=False)
        >>> verdict(table)
        'Early exits are worth it here: at 50% of the cost, Baseline (geometric thresholds)...'
    """
    rows = best_methods(comparison)
    if not rows:
        return ""
    count = len(comparison.methods)
    best = f", the best of {count} methods," if count > 1 else ""
    mix = "a random mix of two fixed exits"
    wins = [row for row in rows if row.over_mix.is_gain]
    if not wins:
        top = max(rows, key=lambda row: row.over_mix.value)
        if all(row.over_mix.is_loss for row in rows):
            best = top.name if count == 1 else f"even the best of {count} methods"
            text = f"Early exits are not worth it here: {best} is clearly worse than {mix}"
        else:
            text = f"No method is clearly better than {mix}, which looks at no sample"
        gap = points(top.over_mix)
        return f"{text}. {top.name} comes nearest: {gap}, at {_at(top)}."
    top = max(wins, key=lambda row: row.over_mix.value)
    text = (
        f"Early exits are worth it here: at {_at(top)}, {top.name}{best} gains "
        f"{points(top.over_mix)} over {mix}, and {points(top.over_full)} against the full network."
    )
    others = [share_text(row.budget) for row in rows if row not in wins]
    if others:
        text += f" At {' and '.join(others)}, no method is clearly better than the mix."
    return text


def _at(row: BestAt) -> str:
    cost = row.method.figures[accuracy_key(row.budget)].cost
    return f"{share_text(row.budget if cost is None else cost)} of the cost"
