"""What the charts of a page are drawn from: a comparison's own JSON, and bands over its seeds."""

import json
from dataclasses import asdict
from typing import Any

from offramp.evaluation.comparison import Comparison, MethodResult
from offramp.evaluation.values import plain
from offramp.report.bands import curve_band, exit_band
from offramp.report.palette import look_of

__all__ = ["embedded_json", "page_data"]

EXIT_FIGURES = ("accuracy", "ece", "eefp", "augrc", "nll")
PLOTTED = ("ece", "eefp", "augrc")


def page_data(comparison: Comparison) -> dict[str, Any]:
    """Plain values for one section of the page.

    Example:
        >>> from offramp import compare, synthetic
        >>> table = compare(**synthetic.ledgers(samples=200), methods=["baseline"], resamples=10)
        >>> page_data(table)["methods"][0]["points"]["budgets"][49]
        0.5
    """
    first = comparison.methods[0].diagnostics
    data: dict[str, Any] = plain(
        {
            "samples": comparison.setting["samples"]["test"],
            "hopeless": first.hopeless_count,
            "references": asdict(comparison.references),
            "methods": [_method(n, method) for n, method in enumerate(comparison.methods)],
        }
    )
    return data


def _method(number: int, method: MethodResult) -> dict[str, Any]:
    colour, dash = look_of(number)
    return {
        "name": method.name,
        "label": method.label,
        "colour": colour,
        "dash": dash,
        "seeds": len(method.curves),
        "curve": asdict(curve_band(method)),
        "bands": {figure: asdict(exit_band(method, figure)) for figure in PLOTTED},
        "exits": {figure: getattr(method.exits[0], figure) for figure in EXIT_FIGURES},
        "points": asdict(method.diagnostics.points),
        "reliability": asdict(method.diagnostics.reliability),
        "histograms": asdict(method.diagnostics.histograms),
    }


def embedded_json(value: Any) -> str:  # noqa: ANN401 - JSON is recursive
    r"""JSON that stays data inside a script element, whatever text it holds.

    Example:
        >>> print(embedded_json({"label": "</script><b>&\u2028"}))
        {"label":"\u003c/script\u003e\u003cb\u003e\u0026\u2028"}
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # escapes all but ASCII
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
