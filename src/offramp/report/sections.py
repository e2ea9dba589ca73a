"""The sections of a page, and what the template shows of them."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offramp.errors import ConfigError, FileFormatError
from offramp.evaluation.results import Comparison
from offramp.extras import require
from offramp.report.figures import shown_first
from offramp.report.tables import ResultTable, comparison_tables

Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class SampleStrip:
    """Pictures of samples with a caption each.

    Attributes:
        images: uint8 `[n, H, W, C]` with one, three or four channels.
        captions: One per image, such as the label and the prediction.
        note: What these samples are.

    Example:
        >>> strip = SampleStrip(np.zeros((2, 8, 8, 3), np.uint8), ["cat, predicted dog", "owl"])
        >>> len(strip.images)
        2
    """

    images: Images
    captions: Sequence[str]
    note: str = ""

    def __post_init__(self) -> None:
        images = np.asarray(self.images)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3, 4):
            raise ConfigError(
                "`images` of a SampleStrip must be uint8 [n, H, W, C] with 1, 3 or 4 channels, "
                f"got {images.dtype} {list(images.shape)}"
            )
        if len(images) != len(self.captions):
            raise ConfigError(
                f"a SampleStrip needs one caption per image, got {len(self.captions)} for "
                f"{len(images)} images"
            )


def image_url(image: Images) -> str:
    """A PNG of one image `[H, W, C]`, as a data URL."""
    pillow: Any = require("PIL.Image", extra="report")
    file = BytesIO()
    pillow.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).save(file, "PNG")
    return _url("image/png", file.getvalue())


def svg_url(path: str | Path) -> str:
    """An SVG file as a data URL: in an image, no script can run."""
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"there is no figure at {path}")
    content = path.read_bytes()
    if b"<svg" not in content:
        raise FileFormatError(f"{path} is not an SVG file; a page shows SVG figures only")
    return _url("image/svg+xml", content)


def _url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{b64encode(content).decode('ascii')}"


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
    """What the template needs of a section."""

    number: int
    section: Section
    figures: list[tuple[str, str]]  # name and data URL
    samples: list[tuple[str, str]]  # caption and data URL

    @property
    def paragraphs(self) -> list[str]:
        """The note, split at empty lines."""
        return [text for text in self.section.note.split("\n\n") if text.strip()]

    @property
    def comparison(self) -> Comparison:
        """The section's comparison, where there is one."""
        assert self.section.comparison is not None
        return self.section.comparison

    @property
    def tables(self) -> list[ResultTable]:
        """The comparison's own tables."""
        return comparison_tables(self.comparison)

    @property
    def tells_ways(self) -> bool:
        """Whether samples stop in two ways: sure or hopeless, as answers without logits do."""
        return bool(self.comparison.setting.get("kind", "logits") != "logits")

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The figures at the top."""
        setting, full = self.comparison.setting, self.comparison.references.full
        classes = [] if self.tells_ways else [("classes", f"{setting['classes']:,}")]
        return [
            ("full network accuracy", percent(full.accuracy, 2)),
            ("hopeless samples", percent(self.comparison.references.hopeless_share)),
            ("methods", str(len(self.comparison.methods))),
            ("exits", str(setting["exits"])),
            *classes,
            ("test samples", f"{setting['samples']['test']:,}"),
        ]

    @property
    def settings(self) -> list[Group]:
        """What was compared, and how each method was set."""
        methods = {m.label: described(m.settings, m.seconds) for m in self.comparison.methods}
        return groups_of({**self.comparison.setting, "methods": methods})

    @property
    def curves_sentence(self) -> str:
        """How many methods are drawn, where not all are."""
        shown, total = len(shown_first(self.comparison)), len(self.comparison.methods)
        if shown == total:
            return ""
        return f"{shown} of {total} methods are drawn; a click on a name above shows or hides it."

    @property
    def seeds(self) -> int:
        """The number of seeds of methods whose fit is random, or one."""
        return max(len(method.curves) for method in self.comparison.methods)

    @property
    def band_sentence(self) -> str:
        """What the bands are."""
        if self.seeds == 1:
            return ""
        return f"Bands are one standard deviation over {self.seeds} seeds of the fit."

    @property
    def seed_phrase(self) -> str:
        """A remark where only one of several seeds is shown."""
        return "" if self.seeds == 1 else ", for the first seed"

    @property
    def stated_phrase(self) -> str:
        """What the second number is, where any scorer states a probability."""
        points = [method.diagnostics.points for method in self.comparison.methods]
        known = any(point.stated is not None for point in points)
        return (
            ", shown as a score and, if the scorer states one, as a probability" if known else ""
        )

    @property
    def hopeless_sentence(self) -> str:
        """How many samples are hopeless."""
        count = self.comparison.methods[0].diagnostics.hopeless_count
        samples = self.comparison.setting["samples"]["test"]
        if count == 0:
            return f"Each of the {samples:,} test samples is answered correctly at some exit."
        return (
            f"{count:,} of the {samples:,} test samples ({percent(count / samples)}) are answered "
            "wrongly at every exit. Compute spent on them is wasted, and a good rule gives them "
            "up early: below the dashed line, they cost less than other samples."
        )


def percent(share: float, digits: int = 1) -> str:
    """Percent with a narrow space before the sign, as in the charts."""
    return f"{100 * share:.{digits}f}\u202f%"


def view_of(number: int, section: Section) -> View:
    r"""Prepare a section for the template."""
    strip = section.samples
    pictures = [] if strip is None else zip(strip.captions, strip.images, strict=True)
    return View(
        number,
        section,
        [(Path(figure).stem, svg_url(figure)) for figure in section.figures],
        [(str(caption), image_url(image)) for caption, image in pictures],
    )
