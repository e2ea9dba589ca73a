"""What a comparison says, in sentences that are made from its figures."""

from offramp.evaluation.comparison import Comparison, accuracy_key
from offramp.evaluation.resampling import Interval

__all__ = ["verdicts"]


def verdicts(comparison: Comparison, rival: str = "temperature") -> list[str]:
    """One sentence per method on its accuracy against a rival's, at every budget.

    Example:
        >>> from offramp import compare, synthetic
        >>> table = compare(**synthetic.ledgers(samples=500), methods=["baseline", "temperature"])
        >>> verdicts(table)[0].startswith("Baseline against temperature: ")
        True
    """
    found = []
    for method in comparison.methods:
        if rival in method.differences:
            gaps = method.differences[rival]
            parts = [
                f"{_word(gaps[accuracy_key(budget)])} at {budget:.0%}"
                for budget in comparison.budgets
            ]
            found.append(f"{method.label} against {rival}: {', '.join(parts)}.")
    return found


def _word(gap: Interval) -> str:
    points = 100 * gap.value
    if not gap.is_clear:
        return f"no clear difference ({round(points, 2) + 0.0:+.2f} points)"
    return f"{'better' if points > 0 else 'worse'} by {abs(points):.2f} points"
