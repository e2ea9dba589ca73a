"""What was timed: tables of profiles and benchmarks, and accuracy over milliseconds."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.errors import MissingExtraError
from offramp.files import read_sealed, restore, write_sealed, write_text
from offramp.imports import require
from offramp.report.figures import line_style, save_figure
from offramp.report.page import Section
from offramp.report.tables import Cell, ResultTable, cells

if TYPE_CHECKING:  # timing runs networks, and imports torch
    from offramp.timing.results import BenchRow, Profile


def profile_table(profile: "Profile") -> ResultTable:
    """Milliseconds per sample of stages and of the overhead of exits, by batch size."""

    def line(name: str, seconds: Sequence[float]) -> list[Cell]:
        each = zip(seconds, profile.sizes, strict=True)
        return cells(name, *(f"{1e3 * value / size:.3f}" for value, size in each))

    rows = [line("without exits", profile.full)]
    for column, exit_index in enumerate(profile.exits):
        rows.append(line(f"stage {exit_index}", [row[column] for row in profile.stages]))
        if exit_index != profile.exits[-1]:
            name = f"overhead of exit {exit_index}"
            rows.append(line(name, [row[column] for row in profile.overheads]))
    pairs = zip(profile.overheads, profile.overheads_reading_back, strict=True)
    more = [sum(back) - sum(own) for own, back in pairs]
    decisions = max(1, profile.num_exits - 1)
    rows.append(line("reading earlier exits", [seconds / decisions for seconds in more]))
    rows.append(cells("spread", *(f"{share:.0%}" for share in profile.spread)))
    return ResultTable(
        "profile",
        f"Milliseconds per sample: {profile.where}",
        ["batch", *map(str, profile.sizes)],
        rows,
        f"The overhead of an exit is its head and its decision ({profile.decided_by}); the last "
        "head counts with its stage. Reading earlier exits: the mean additional time of a "
        "decision that does. Best of all turns; spread: the additional time of the median turn.",
    )


def bench_table(rows: "Sequence[BenchRow]") -> ResultTable:
    """Milliseconds, shares and accuracies of everything that was timed."""
    from offramp.timing.results import WITHOUT

    lines = []
    for row in rows:
        predicted, expected = (
            "" if share is None else f"{share:.1%}" for share in (row.predicted, row.expected)
        )
        accuracy = "" if row.accuracy is None else f"{row.accuracy:.2%}"
        if row.labelled is not None:
            accuracy += f" of {row.labelled:,}"
        lines.append(
            cells(
                row.name,
                row.runtime,
                str(row.batch_size),
                f"{1e3 * row.seconds:.3f}",
                predicted,
                expected,
                f"{row.share:.1%}",
                accuracy,
            )
        )
    counts = {row.samples for row in rows if row.samples}
    timed = f" Times were measured on {_range(counts)} samples." if counts else ""
    return ResultTable(
        "bench",
        "Time per sample",
        ["", "runtime", "batch", "ms", "predicted", "for these", "measured", "accuracy"],
        lines,
        f"Predicted and measured: shares of the time {WITHOUT} in the same runtime; for these: "
        "the prediction for the exits at which these samples stopped. All took turns on the same "
        f"samples, and the best of three turns on each batch counts.{timed} Accuracies are of as "
        "many samples as they name.",
    )


def _range(counts: Collection[int]) -> str:
    least, most = min(counts), max(counts)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def plot_bench(rows: "Sequence[BenchRow]", path: str | Path) -> Path:
    """Draw accuracy over milliseconds: policies as curves, whatever else one could run as points.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figures = require("matplotlib.figure", extra="report")
    places = {(row.runtime, row.batch_size): None for row in rows if row.accuracy is not None}
    figure = figures.Figure(figsize=(4.5 * max(len(places), 1), 4), layout="constrained")
    panels = figure.subplots(1, max(len(places), 1), squeeze=False)[0]
    for panel, (runtime, size) in zip(panels, places, strict=False):
        here = [row for row in rows if (row.runtime, row.batch_size) == (runtime, size)]
        _draw(panel, here)
        panel.set(xlabel="milliseconds per sample", ylabel="accuracy (%)")
        panel.set_title(f"{runtime}, batch {size}")
        panel.legend(fontsize=8)
    return save_figure(figure, Path(path))


def _draw(panel: Any, rows: "Sequence[BenchRow]") -> None:  # noqa: ANN401 - matplotlib's axes
    def kind(row: "BenchRow") -> str:
        if row.predicted is not None:
            return "with exits"
        return "one exit alone" if row.name.endswith(" alone") else row.name

    for number, (label, group) in enumerate(groupby(rows, key=kind)):
        points = sorted((1e3 * row.seconds, 100 * (row.accuracy or 0.0)) for row in group)
        line = {"linestyle": "-" if number == 0 else "none", "label": label}
        panel.plot(*zip(*points, strict=True), **{**line_style(number + 1).matplotlib(), **line})


def bench_section(folder: str | Path) -> Section:
    """What `write_bench` wrote, as a section of a page.

    Raises:
        FileFormatError: The rows are damaged.
    """
    folder = Path(folder)
    rows, figure = read_bench(folder), folder / "bench.svg"
    figures = [figure] if figure.is_file() else []
    return Section(folder.resolve().name, tables=[bench_table(rows)], figures=figures)


def read_bench(folder: str | Path) -> "list[BenchRow]":
    """The rows that `write_bench` wrote.

    Raises:
        FileFormatError: They are damaged.
    """
    from offramp.timing.results import BenchRow

    file = Path(folder) / "bench.json"
    rows: list[BenchRow] = restore(list[BenchRow], read_sealed(file).get("rows"), str(file))
    return rows


def write_bench(rows: "Sequence[BenchRow]", folder: str | Path) -> tuple[list[Path], str | None]:
    """Write the table as Markdown and CSV, the rows as JSON and, with accuracies, the figure.

    Returns:
        The paths, and a sentence that says what could not be drawn, if anything.
    """
    folder, table = Path(folder), bench_table(rows)
    paths = [
        write_text(folder / "bench.md", table.markdown() + "\n"),
        write_text(folder / "bench.csv", table.csv()),
        write_sealed(folder / "bench.json", {"rows": [asdict(row) for row in rows]}),
    ]
    if not any(row.accuracy is not None for row in rows):
        return paths, None
    try:
        return [*paths, plot_bench(rows, folder / "bench.svg")], None
    except MissingExtraError as error:
        return paths, f"no figure was drawn: {error}"
