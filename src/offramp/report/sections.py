"""The parts of a page, and what its template needs to know of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offramp.evaluation.comparison import Comparison
from offramp.report.pictures import SampleStrip, image_url, svg_url
from offramp.report.provenance import Group, described, groups_of
from offramp.report.tables import Table, tables

__all__ = ["Section", "View", "view_of"]


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


@dataclass(frozen=True)
class View:
    """What the template needs of a section."""

    number: int
    section: Section
    figures: list[tuple[str, str]]  # name and data URL
    samples: list[tuple[str, str]]  # caption and data URL

    @property
    def paragraphs(self) -> list[str]:
        """The note, cut at empty lines."""
        return [part for part in self.section.note.split("\n\n") if part.strip()]

    @property
    def comparison(self) -> Comparison:
        """The section's comparison; only asked for where there is one."""
        assert self.section.comparison is not None
        return self.section.comparison

    @property
    def tables(self) -> list[Table]:
        """The comparison's own tables."""
        return tables(self.comparison)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The figures at the top."""
        setting, full = self.comparison.setting, self.comparison.references.full
        return [
            ("full network accuracy", percent(full.accuracy, 2)),
            ("hopeless samples", percent(self.comparison.references.hopeless_share)),
            ("methods", str(len(self.comparison.methods))),
            ("exits", str(setting["exits"])),
            ("classes", f"{setting['classes']:,}"),
            ("test samples", f"{setting['samples']['test']:,}"),
        ]

    @property
    def settings(self) -> list[Group]:
        """What was compared, and how each method was set."""
        methods = {m.label: described(m.settings, m.seconds) for m in self.comparison.methods}
        return groups_of({**self.comparison.setting, "methods": methods})

    @property
    def seeds(self) -> int:
        """Seeds of the methods whose fit is random; one where none is."""
        return max(len(method.curves) for method in self.comparison.methods)

    @property
    def band_sentence(self) -> str:
        """What the bands are."""
        if self.seeds == 1:
            return ""
        return f"Bands are one standard deviation over {self.seeds} seeds of the fit."

    @property
    def seed_phrase(self) -> str:
        """Said where only one of several seeds is shown."""
        return "" if self.seeds == 1 else ", with the first of the seeds"

    @property
    def stated_phrase(self) -> str:
        """What the number in brackets is, where any scorer states a probability."""
        points = [method.diagnostics.points for method in self.comparison.methods]
        known = any(point.stated is not None for point in points)
        return ", here as a score and, where the scorer has one, as a probability" if known else ""

    @property
    def hopeless_sentence(self) -> str:
        """How many there are."""
        count = self.comparison.methods[0].diagnostics.hopeless_count
        samples = self.comparison.setting["samples"]["test"]
        if count == 0:
            return f"Each of the {samples:,} test samples is answered rightly at some exit."
        return (
            f"{count:,} of the {samples:,} test samples ({percent(count / samples)}) are answered "
            "wrongly at every exit. Whatever is spent on them is spent for nothing, so a good "
            "rule gives them up early: below the dashed line, they get less than other samples."
        )


def percent(share: float, digits: int = 1) -> str:
    """With a narrow space before the sign, as the charts write it."""
    return f"{100 * share:.{digits}f}\u202f%"


def view_of(number: int, section: Section) -> View:
    r"""Prepare a section for the template.

    Example:
        >>> view_of(0, Section("Digits", note="One.\n\nTwo.")).paragraphs
        ['One.', 'Two.']
    """
    strip = section.samples
    pictures = [] if strip is None else zip(strip.captions, strip.images, strict=True)
    return View(
        number,
        section,
        [(Path(figure).stem, svg_url(figure)) for figure in section.figures],
        [(str(caption), image_url(image)) for caption, image in pictures],
    )
