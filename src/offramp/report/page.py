"""One self-contained HTML page: interactive charts, tables, and what was run.

The charts are drawn by the scripts in page_charts/, one file per part of the page; charts.js has
what they share. The page around them is in page_template/.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from offramp.evaluation.results import Comparison, MethodResult
from offramp.files import plain, write_text
from offramp.imports import require
from offramp.report.lines import (
    PALETTE,
    LineStyle,
    curve_band,
    exit_band,
    line_style,
    shown_first,
)
from offramp.report.sections import Section, groups_of, percent, svg_url, view_of

EXIT_FIGURES = ("accuracy", "ece", "eefp", "augrc", "nll")
PLOTTED = ("ece", "eefp", "augrc")


def page_data(comparison: Comparison) -> dict[str, Any]:
    """The values of one comparison that the charts show, as plain values."""
    first = comparison.methods[0].diagnostics
    shown = [method.name for method in shown_first(comparison)]
    hidden = [method.name for method in comparison.methods if method.name not in shown]
    styles = {name: line_style(number) for number, name in enumerate([*shown, *hidden])}
    data: dict[str, Any] = plain(
        {
            "kind": comparison.history_type.name,
            "samples": comparison.setting["samples"]["test"],
            "hopeless": first.hopeless_count,
            "references": asdict(comparison.references),
            "methods": [_method(m, styles[m.name]) for m in comparison.methods],
            "hidden": hidden,
            "reference": _reference([method.name for method in comparison.methods]),
        }
    )
    return data


def _reference(names: Sequence[str]) -> int:
    """The place of the baseline, with any thresholds if need be, or of the first method.

    Example:
        >>> _reference(["eefp", "baseline:smooth"]), _reference(["eefp", "margin"])
        (1, 0)
    """
    found = [place for place, name in enumerate(names) if name.partition(":")[0] == "baseline"]
    return names.index("baseline") if "baseline" in names else (found or [0])[0]


def _method(method: MethodResult, style: LineStyle) -> dict[str, Any]:
    return {
        "name": method.name,
        "label": method.label,
        **style._asdict(),
        "seeds": len(method.curves),
        "curve": asdict(curve_band(method)),
        "bands": {figure: asdict(exit_band(method, figure)) for figure in PLOTTED},
        "exits": {figure: getattr(method.exits[0], figure) for figure in EXIT_FIGURES},
        "points": asdict(method.diagnostics.points),
        "reliability": asdict(method.diagnostics.reliability),
        "histograms": asdict(method.diagnostics.histograms),
    }


def embedded_json(value: Any) -> str:  # noqa: ANN401 - JSON is recursive
    r"""JSON that stays data inside a script element, whatever its texts contain."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # escapes all but ASCII
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


CHARTS, TEMPLATE = (Path(__file__).parent / name for name in ("page_charts", "page_template"))
SCRIPTS = (
    *("charts.js", "tradeoff.js", "budget.js", "exits.js", "hopeless.js"),
    *("comparison.js", "main.js"),
)


def write_page(
    path: str | Path,
    title: str,
    sections: Sequence[Section],
    provenance: Mapping[str, Any],
) -> Path:
    """Write the page, one file that works offline, and return its path.

    Args:
        path: Of the HTML file; its folder is created if needed.
        title: Of the page.
        sections: In the order in which they are shown.
        provenance: Configuration, seeds, versions, commands: plain values, nested as you like,
            shown at the end under "What was run".

    Raises:
        MissingExtraError: jinja2 or plotly is not installed.

    Example:
        >>> import tempfile
        >>> from offramp import compare, synthetic
        >>> table = compare(**synthetic.ledgers(samples=200), methods=["baseline"], resamples=10)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = write_page(f"{folder}/report.html", "Mine", [Section("A", table)], {})
        ...     "<h1>Mine</h1>" in page.read_text()
        True
    """
    views = [view_of(number, section) for number, section in enumerate(sections)]
    charted = {view.number: view.section.comparison for view in views}
    scripts = _scripts() if any(charted.values()) else []
    markup = require("markupsafe", extra="report").Markup
    html = _template().render(
        title=title,
        version=version("offramp"),
        policy=_content_policy(scripts),
        sections=views,
        provenance=groups_of(provenance),
        style=markup(_style()),
        logo=markup((TEMPLATE / "logo.svg").read_text(encoding="utf-8")),
        icon=svg_url(TEMPLATE / "logo.svg"),
        data=markup(embedded_json({n: page_data(c) for n, c in charted.items() if c})),
        scripts=[markup(script) for script in scripts],
    )
    return write_text(Path(path), html)


def _scripts() -> list[str]:
    """The plotting library, and the page's own code in a scope of its own."""
    own = "\n".join((CHARTS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    library: str = require("plotly.offline", extra="report").get_plotlyjs()
    return [library, f'"use strict";\n{{\n{own}}}\n']


def _style() -> str:
    colours = "".join(
        f"--m{number}: light-dark({light}, {dark});"
        for number, (light, dark) in enumerate(PALETTE)
    )
    return f":root {{ {colours} }}\n" + (TEMPLATE / "page.css").read_text(encoding="utf-8")


def _content_policy(scripts: Sequence[str]) -> str:
    """A content security policy: these scripts run, and nothing is requested."""
    hashes = [b64encode(sha256(s.encode("utf-8")).digest()).decode("ascii") for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _template() -> Any:  # noqa: ANN401 - jinja2 is optional
    jinja = require("jinja2", extra="report")
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(TEMPLATE),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment.get_template("page.html")
