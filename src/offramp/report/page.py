"""One self-contained HTML page: charts that can be asked, tables, and what was run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offramp.evaluation.comparison import Comparison
from offramp.extras import require
from offramp.report.pictures import SampleStrip, image_url, svg_url
from offramp.report.tables import Table, tables
from offramp.storage import write_text

__all__ = ["Section", "write_page"]

ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class Section:
    """One part of a page.

    Attributes:
        title: Its heading.
        comparison: From `compare`, or read back with `Comparison.from_json`; its curve, budget
            slider, per-exit diagnostics, hopeless samples and tables are shown.
        note: Plain text under the heading.
        tables: Further tables, shown as they are.
        figures: Further SVG files, embedded as images.
        samples: Pictures of hopeless samples.
    """

    title: str
    comparison: Comparison | None = None
    note: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Path] = ()
    samples: SampleStrip | None = None


def write_page(
    path: str | Path,
    title: str,
    sections: Sequence[Section],
    provenance: Mapping[str, Any],
) -> Path:
    """Write the page: one file that needs no network, and return its path.

    Args:
        path: Of the HTML file; its folder is created if needed.
        title: Of the page.
        sections: In the order shown.
        provenance: Configuration, seeds, versions, commands, timings: plain values, nested as
            you like, shown at the end under "What was run".

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
    html = _template().render(
        title=title,
        sections=[_view(number, section) for number, section in enumerate(sections)],
        provenance=provenance,
        style=(ASSETS / "page.css").read_text(encoding="utf-8"),
    )
    return write_text(Path(path), html)


@dataclass(frozen=True)
class _View:
    """What the template needs of a section."""

    number: int
    section: Section
    tables: list[Table]
    figures: list[tuple[str, str]]  # name and data URL
    samples: list[tuple[str, str]] = field(default_factory=list)  # caption and data URL


def _view(number: int, section: Section) -> _View:
    own = tables(section.comparison) if section.comparison is not None else []
    strip = section.samples
    return _View(
        number,
        section,
        [*section.tables, *own],
        [(Path(figure).stem, svg_url(figure)) for figure in section.figures],
        [(c, image_url(i)) for c, i in zip(strip.captions, strip.images, strict=True)]
        if strip is not None
        else [],
    )


def _template() -> Any:  # noqa: ANN401 - jinja2 is optional
    jinja = require("jinja2", extra="report")
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
