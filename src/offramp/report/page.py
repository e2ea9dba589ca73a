"""One self-contained HTML page: interactive charts, tables, and what was run.

The charts are drawn by the scripts in page_charts/, one file per part of the page; charts.js has
what they share. The page around them is in page_template/.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from offramp.errors import FileFormatError
from offramp.evaluation.results import Comparison, MethodResult
from offramp.evaluation.verdict import verdict
from offramp.files import plain, write_text
from offramp.imports import require
from offramp.report.figures import (
    PALETTE,
    LineStyle,
    curve_band,
    exit_band,
    line_style,
    shown_first,
)
from offramp.report.pictures import SampleStrip, data_url, image_url
from offramp.report.tables import ResultTable, comparison_tables


@dataclass(frozen=True)
class Section:
    """One section of a page.

    Attributes:
        title: Its heading.
        comparison: From `compare` or `Comparison.from_json`; shown with curves, budget slider,
            per-exit diagnostics, hopeless samples and tables.
        note: Plain text under the heading.
        tables: Further tables, shown as they are.
        figures: Further SVG files, embedded as images.
        samples: Pictures of hopeless samples.
    """

    title: str
    comparison: Comparison | None = None
    note: str = ""
    tables: Sequence[ResultTable] = ()
    figures: Sequence[Path] = ()
    samples: SampleStrip | None = None


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
    charted = {n: page_data(s.comparison) for n, s in enumerate(sections) if s.comparison}
    scripts = _scripts() if charted else []
    markup = require("markupsafe", extra="report").Markup
    html = _template().render(
        title=title,
        version=version("offramp"),
        policy=_content_policy(scripts),
        sections=sections,
        provenance=groups_of(provenance),
        style=markup(_style()),
        logo=markup((TEMPLATE / "logo.svg").read_text(encoding="utf-8")),
        icon=svg_url(TEMPLATE / "logo.svg"),
        data=markup(embedded_json(charted)),
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
    shown = percent, svg_url, image_url, shown_first, comparison_tables, settings_of, sentences
    environment.filters |= {each.__name__: each for each in shown}
    return environment.get_template("page.html")


Group = tuple[str, list[tuple[str, str]]]
"""A heading, which may be empty, and rows of a name and a text."""


def groups_of(values: Mapping[str, Any]) -> list[Group]:
    """Single values first, then one group per nested mapping."""
    nested = {key: value for key, value in values.items() if isinstance(value, Mapping) and value}
    single = [(str(k), text_of(v)) for k, v in values.items() if k not in nested and v is not None]
    groups: list[Group] = [("", single)] if single else []
    return groups + [(str(key), list(_rows(value))) for key, value in nested.items()]


def _rows(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _rows(value, f"{prefix}{key}.")
        elif value is not None:  # settings that were not set are left out
            yield f"{prefix}{key}", text_of(value)


def text_of(value: Any) -> str:  # noqa: ANN401 - any plain value
    """One value as text: lists in one line, lists of mappings with one line each.

    Example:
        >>> print(text_of([{"step": "fit", "seconds": 1.5}, {"step": "tune", "seconds": 2}]))
        step fit · seconds 1.5
        step tune · seconds 2
    """
    if isinstance(value, Mapping):
        return " · ".join(f"{key} {text_of(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        is_nested = any(isinstance(inner, Mapping) for inner in value)
        return ("\n" if is_nested else ", ").join(map(text_of, value)) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)


def settings_of(comparison: Comparison) -> list[Group]:
    """What was compared, and how each method was set, in one line."""

    def show(value: Any) -> str:  # noqa: ANN401
        if isinstance(value, Mapping) and "name" in value:
            inner = ", ".join(f"{key}={text_of(v)}" for key, v in value["settings"].items())
            return f"{value['name']}({inner})"
        return text_of(value)

    methods = {}
    for method in comparison.methods:
        texts = [f"{key} {show(value)}" for key, value in method.settings.items()]
        methods[method.label] = " · ".join([*texts, f"{method.seconds:.1f} s"])
    return groups_of({**comparison.setting, "methods": methods})


def sentences(comparison: Comparison) -> list[str]:
    """The verdict, and what is to be noted: what a reader sees first."""
    return [text for text in (verdict(comparison), *comparison.notes) if text]


def percent(share: float, digits: int = 1) -> str:
    """Percent with a narrow space before the sign, as in the charts."""
    return f"{100 * share:.{digits}f}\u202f%"


def svg_url(path: str | Path) -> str:
    """An SVG file as a data URL: in an image, no script can run."""
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"there is no figure at {path}")
    content = path.read_bytes()
    if b"<svg" not in content:
        raise FileFormatError(f"{path} is not an SVG file; a page shows SVG figures only")
    return data_url("image/svg+xml", content)
