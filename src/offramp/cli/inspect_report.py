"""The commands `inspect` and `report`."""

from pathlib import Path
from typing import Annotated

import typer

from offramp import report
from offramp.cli.console import out
from offramp.report import Section, read_comparison, write_page


def inspect_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A ledger, .npz file, policy, network, export or folder of ledgers.",
        ),
    ],
) -> None:
    """Describe a ledger, policy, network or export: sizes, costs, accuracy per exit, origin."""
    for table in report.inspect(path):
        out.print(table.rich())


def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Folders that `offramp compare` wrote, or their comparison.json.",
        ),
    ],
    path: Annotated[Path, typer.Option("--out", help="Path of the page.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Exit methods compared",
) -> None:
    """Write one self-contained HTML page from saved comparisons.

    The page works offline. It shows cost-accuracy curves, a budget slider for two methods side by
    side, calibration and scores exit by exit, hopeless samples, tables, and what was run.
    """
    sections, origins = [], {}
    for folder in folders:
        comparison, origin = read_comparison(folder)
        name = (folder if folder.is_dir() else folder.parent).resolve().name
        sections.append(Section(name.removesuffix("-comparison"), comparison))
        origins[str(folder)] = origin
    write_page(path, title, sections, origins)
    out.print(f"written to {path}", soft_wrap=True)
