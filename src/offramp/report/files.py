"""Writing a comparison to a folder, in every form, and reading it back."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offramp.errors import FileFormatError, MissingExtraError
from offramp.evaluation.columns import accuracy_key
from offramp.evaluation.results import FIXED, PAIR_MIX, RIVALS, Comparison, MethodResult
from offramp.files import read_sealed, restore, write_sealed, write_text
from offramp.made import versions
from offramp.report.figures import plot_comparison, plot_gains
from offramp.report.page import Section, sentences, write_page
from offramp.report.tables import Reference, comparison_tables, reference_points


def write_comparison(
    comparison: Comparison,
    folder: str | Path,
    provenance: Mapping[str, Any] | None = None,
    page: bool = True,
) -> tuple[list[Path], str | None]:
    """Write tables as Markdown, CSV and JSON, figures as SVG and PDF, and a page.

    Args:
        comparison: From `compare`.
        folder: Created if needed.
        provenance: What was run, as plain values; the versions are added to it.
        page: Whether to write `report.html`, which has five megabytes.

    Returns:
        The paths, and a sentence that says what could not be drawn, if anything.
    """
    folder = Path(folder)
    found = comparison_tables(comparison)
    texts = [*sentences(comparison), *(table.markdown() for table in found)]
    origin = {"provenance": dict(provenance or {}), "versions": versions()}
    paths = [
        write_text(folder / "comparison.md", "\n\n".join(texts) + "\n"),
        write_text(folder / "comparison.csv", tidy_csv(comparison)),
        write_sealed(
            folder / "comparison.json",
            json.loads(json.dumps({**origin, **comparison.to_json()}, default=str)),
        ),
    ]
    name = folder.resolve().name.removesuffix("-comparison")
    title = f"{name}: exit methods compared"
    try:
        for form in ("svg", "pdf"):
            paths.append(plot_comparison(comparison, folder / f"comparison.{form}"))
        if any("baseline" in method.differences for method in comparison.methods):
            for form in ("svg", "pdf"):
                paths.append(plot_gains(comparison, folder / f"gains.{form}"))
        if page:
            sections = [Section("Comparison", comparison)]
            paths.append(write_page(folder / "report.html", title, sections, _shown(origin)))
    except MissingExtraError as error:
        return paths, f"no figure and no page were drawn: {error}"
    return paths, None


def read_comparison(path: str | Path) -> tuple[Comparison, dict[str, Any]]:
    """Read what `write_comparison` wrote.

    Args:
        path: The folder, or its `comparison.json`.

    Returns:
        The comparison, and what was run.

    Raises:
        FileFormatError: There is no complete comparison here.
    """
    path = Path(path)
    file = path / "comparison.json" if path.is_dir() else path
    if not file.is_file() or file.suffix != ".json":
        raise FileFormatError(
            f"there is no comparison at {file}; give a folder that `offramp compare` wrote"
        )
    values = read_sealed(file)
    try:
        return Comparison.from_json(values), _shown(values)
    except FileFormatError as error:  # which does not know the file
        raise FileFormatError(f"{file}: {error}") from None


def tidy_csv(comparison: Comparison) -> str:
    """One row per method or reference and figure; accuracies as shares, empty where unknown."""
    out = io.StringIO()
    rivals = [*RIVALS, *FIXED, *[PAIR_MIX] * bool(comparison.references.pair_mixes)]
    gaps = [f"{end}_{rival}" for rival in rivals for end in ("minus", "low", "high")]
    columns = ["method", "label", "figure", "value", "spread", "cost", "among_best", *gaps]
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for method in comparison.methods:
        writer.writerows(_method_rows(method))
    for name, _, points in reference_points(comparison):
        for budget, point in zip(comparison.budgets, points, strict=True):
            writer.writerow(_reference_row(name, accuracy_key(budget), point))
    for fixed in comparison.references.fixed:
        writer.writerow(_reference_row(f"exit-{fixed.exit_index}", "accuracy", fixed))
    return out.getvalue()


def _method_rows(method: MethodResult) -> Iterator[dict[str, Any]]:
    for column, figure in method.figures.items():
        row: dict[str, Any] = {"method": method.name, "label": method.label, "figure": column}
        row |= asdict(figure) | {"among_best": int(figure.among_best)}
        for rival, found in method.differences.items():
            if column in found:
                gap = found[column]
                row |= {f"minus_{rival}": gap.value, f"low_{rival}": gap.low}
                row[f"high_{rival}"] = gap.high
        yield row


def _reference_row(name: str, figure: str, point: Reference) -> dict[str, Any]:
    return {"method": name, "figure": figure, "value": point.accuracy, "cost": point.cost}


def _shown(origin: Mapping[str, Any]) -> dict[str, Any]:
    """What was run, as it is shown: the versions come last."""
    kept = {
        key: restore(dict[str, Any], origin.get(key, {})) for key in ("provenance", "versions")
    }
    return {**kept["provenance"], "versions": kept["versions"]}
