"""The commands `inspect` and `report`."""

from pathlib import Path
from typing import Annotated

import typer

from offramp.cli.console import note, out
from offramp.cli.options import there


def inspect_command(
    path: Annotated[Path, typer.Argument(metavar="PATH", callback=there)],
    accept: Annotated[bool, typer.Option("--accept")] = False,
) -> None:
    """Describe a ledger, policy, network or export: sizes, costs, accuracy per exit, origin.

    Of any other folder, all of these below it are listed. Tensors, graphs and the JSON next to
    them are compared with their checksums, tensors above 1 GiB by this command alone; a file that
    was changed is an error.

    Args:
        path: Ledger, .npz file, policy, network, export, or a folder with any of them.
        accept: Take JSON below PATH as right that was changed by hand or has no checksum.
    """
    from offramp import files, report

    for changed in files.accept(path) if accept else ():
        note(f"accepted {changed}")
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
