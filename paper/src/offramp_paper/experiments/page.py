"""The page of an experiment: its comparisons, with the paper's figures beside ours."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offramp.cli.console import out
from offramp.data import Data
from offramp.errors import OfframpError
from offramp.made import versions
from offramp.report import (
    ResultTable,
    Section,
    comparison_tables,
    hopeless_strip,
    sample_strip,
    verdicts,
    write_page,
)
from offramp_paper.experiments.network import First, is_here
from offramp_paper.experiments.printed import about_table, beside_paper
from offramp_paper.experiments.run import Analysis, Result, Run, write_tables


def report(
    run: Run,
    title: str,
    about: str | None,
    results: Sequence[Result],
    table: str | None = None,
    analysis: Analysis | None = None,
    note: str = "",
) -> None:
    """Write the page of an experiment, and print its main tables.

    Args:
        run: The experiment.
        title: Of the page.
        about: Whose first paragraph opens the page: the script's docstring.
        results: A section each.
        table: Label of the paper's table or figure that is repeated.
        analysis: A section of its own.
        note: For the reader.
    """
    parts = (first_paragraph(about), run.missing, note, about_table(table))
    opening = " ".join(part for part in parts if part)
    quoted = {each.place: _quoted(each, table) for each in results}

    def make(place: Path) -> None:
        sections = [Section("About", note=opening)]
        for each in results:
            tables = quoted[each.place]
            write_tables(tables, each.place, "paper")
            strip = hopeless_strip(each.recorded.ledgers["test"], _images(run, each))
            text = each.recorded.network.note
            sections.append(Section(each.title, each.comparison, text, tables, samples=strip))
        if analysis is not None:
            sections.append(_section(run, results[0], analysis))
        origin = _provenance(run, results)
        content = {"title": title, "about": opening, **origin}
        (place / "study.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        heading = f"{title} ({run.options.scale} scale)"
        write_page(place / "report.html", heading, sections, origin)

    found = None if analysis is None else asdict(analysis)
    texts = [[each.place, each.title, each.recorded.network.note] for each in results]
    run.made(run.folder, [title, opening, texts, found], make)
    if run.processes.is_main:
        _show(results, quoted, analysis)
        out.print(f"report: {run.folder / 'report.html'}", soft_wrap=True)


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((text or "").split("\n\n")[0].split())


def _quoted(result: Result, table: str | None) -> list[ResultTable]:
    heading = result.recorded.network.heading
    found = beside_paper(result.comparison, table, heading, result.recorded.name, result.title)
    return [] if found is None else [found]


def _section(run: Run, first: Result, analysis: Analysis) -> Section:
    test, strip = first.recorded.ledgers["test"], None
    if analysis.rows:
        note = "The samples of the tables, in their order."
        strip = sample_strip(test, _images(run, first), analysis.rows, note)
    return Section(analysis.title, note=analysis.note, tables=analysis.tables, samples=strip)


def _images(run: Run, result: Result) -> Data | None:
    """The test data of a result, if they are on this machine."""
    network = result.recorded.network
    if not network.data or not is_here(network.data):
        return None
    try:
        test = run.splits(network, result.recorded.target).test
    except OfframpError:  # an experiment must not fail for want of pictures
        return None
    return test.samples if isinstance(test, First) else test


def _provenance(run: Run, results: Sequence[Result]) -> dict[str, Any]:
    """What was run: command, networks, versions and devices."""
    recorded = {each.recorded.name: each.recorded for each in results}
    networks = {name: each.network.described() for name, each in recorded.items()}
    return {
        "command": run.command,
        "networks": json.loads(json.dumps(networks)),
        "recorded on": {
            name: str(each.ledgers["test"].recorded_on) for name, each in recorded.items()
        },
        "versions": versions(),
    }


def _show(
    results: Sequence[Result],
    quoted: Mapping[Path, Sequence[ResultTable]],
    analysis: Analysis | None,
) -> None:
    for each in results:
        out.rule(each.title)
        for table in (*comparison_tables(each.comparison)[:2], *quoted[each.place]):
            out.show(table)
        for sentence in verdicts(each.comparison):
            out.print(sentence)
    if analysis is not None:
        out.rule(analysis.title)
        for table in analysis.tables:
            out.show(table)
