"""The commands `inspect` and `report`."""

from pathlib import Path
from typing import Annotated

import typer

from offramp.cli.console import out
from offramp.cli.options import there


def inspect_command(
    path: Annotated[Path, typer.Argument(metavar="PATH", callback=there)],
) -> None:
    """Describe a ledger, policy, network or export: sizes, costs, accuracy per exit, origin.

    Of any other folder, all of these below it are listed. Tensors and graphs are compared with
    their checksums, those above 1 GiB by this command alone; a damaged file is an error. The JSON
    next to them, which holds the checksums, has none itself.

    Args:
        path: Ledger, .npz file, policy, network, export, or a folder with any of them.
    """
    from offramp import report

    for table in report.inspect(path):
        out.show(table)


def report_command(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...")],
    path: Annotated[Path, typer.Option("--out")] = Path("report.html"),
    title: str = "Exit methods compared",
) -> None:
    """Write one self-contained HTML page from saved comparisons and benchmarks.

    The page works offline. It shows cost-accuracy curves, a budget slider for two methods side by
    side, calibration and scores exit by exit, hopeless samples, tables, and what was run; and
    accuracy over milliseconds.

    Args:
        folders: Folders that `offramp compare` wrote, or their comparison.json; and folders that
            `offramp bench --out` wrote.
        path: Path of the page.
        title: Title of the page.
    """
    from offramp.report import Section, bench_section, read_comparison, write_page

    sections, origins = [], {}
    for folder in folders:
        if (folder / "bench.json").is_file():
            sections.append(bench_section(folder))
            continue
        comparison, origin = read_comparison(folder)
        name = (folder if folder.is_dir() else folder.parent).resolve().name
        sections.append(Section(name.removesuffix("-comparison"), comparison))
        origins[str(folder)] = origin
    write_page(path, title, sections, origins)
    out.print(f"written to {path}")
