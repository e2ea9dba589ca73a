"""The sections of a page, and what the template shows of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offramp.errors import FileFormatError
from offramp.evaluation.results import Comparison
from offramp.report.lines import shown_first
from offramp.report.pictures import SampleStrip, data_url, image_url
from offramp.report.tables import ResultTable, comparison_tables

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


def described(settings: Mapping[str, Any], seconds: float) -> str:
    """A method's settings as one line.

    Example:
        >>> scorer = {"name": "Corrector", "settings": {"k": 5}}
        >>> described({"scorer": scorer, "thresholds": "geometric"}, 2.0)
        'scorer Corrector(k=5) · thresholds geometric · 2.0 s'
    """

    def show(value: Any) -> str:  # noqa: ANN401
        if isinstance(value, Mapping) and "name" in value:
            inner = ", ".join(f"{key}={text_of(v)}" for key, v in value["settings"].items())
            return f"{value['name']}({inner})"
        return text_of(value)

    texts = [f"{key} {show(value)}" for key, value in settings.items()]
    return " · ".join([*texts, f"{seconds:.1f} s"])


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


@dataclass(frozen=True)
class View:
    """What the template needs of a section, besides the section itself.

    Attributes:
        number: Counted from 0; the page's code finds the section's data by it.
        section: The section.
        figures: Name and data URL of each.
        samples: Caption and data URL of each picture.
        tables: The tables of the comparison, if there is one.
        drawn: How many of its methods are drawn at first.
        settings: What was compared, and how each method was set.
    """

    number: int
    section: Section
    figures: list[tuple[str, str]]
    samples: list[tuple[str, str]]
    tables: Sequence[ResultTable] = ()
    drawn: int = 0
    settings: Sequence[Group] = ()


def view_of(number: int, section: Section) -> View:
    """Prepare a section for the template."""
    strip, comparison = section.samples, section.comparison
    pictures = [] if strip is None else zip(strip.captions, strip.images, strict=True)
    view = View(
        number,
        section,
        [(Path(figure).stem, svg_url(figure)) for figure in section.figures],
        [(str(caption), image_url(image)) for caption, image in pictures],
    )
    if comparison is None:
        return view
    methods = {
        method.label: described(method.settings, method.seconds) for method in comparison.methods
    }
    return replace(
        view,
        tables=comparison_tables(comparison),
        drawn=len(shown_first(comparison)),
        settings=groups_of({**comparison.setting, "methods": methods}),
    )


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
