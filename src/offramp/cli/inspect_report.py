"""The commands `inspect`, `verify` and `report`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from offramp.cli.console import out
from offramp.cli.options import there


def inspect_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            callback=there,
            help="A ledger, .npz file, policy, network, export or folder of ledgers.",
        ),
    ],
) -> None:
    """Describe a ledger, policy, network or export: sizes, costs, accuracy per exit, origin."""
    from offramp import report

    for table in report.inspect(path):
        out.show(table)


def verify_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Ledgers, policies, networks, exports, runs or caches, or folders of them.",
        ),
    ],
) -> None:
    """Compare tensors and graphs with their checksums, and name those that are damaged.

    The JSON beside them, which holds the checksums, has none itself. Whatever is loaded is
    compared too, but for tensors above 1 GiB, which only this command reads as a whole. The exit
    code is 1 if anything is damaged.
    """
    from offramp.report.inspect import verify

    found = [file for folder in folders for file in verify(folder)]
    damaged = [file for file in found if file.damage is not None]
    unknown = [file for file in found if file.damage is None and not file.has_checksum]
    for file in damaged:
        out.print(f"DAMAGED  {file.damage}", soft_wrap=True)
    for file in unknown:
        out.print(f"unknown  {file.path} has no checksum; its size is right", soft_wrap=True)
    out.give(damaged=[str(file.path) for file in damaged], files=len(found))
    whole = len(found) - len(damaged) - len(unknown)
    size = decimal(sum(file.size for file in found))
    out.print(f"{whole} of {len(found)} tensor files and graphs are as written ({size} read)")
    if damaged:
        raise typer.Exit(1)


def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Folders that `offramp compare` wrote, or their comparison.json; and folders "
            "that `offramp bench --out` wrote.",
        ),
    ],
    path: Annotated[Path, typer.Option("--out", help="Path of the page.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Exit methods compared",
) -> None:
    """Write one self-contained HTML page from saved comparisons and benchmarks.

    The page works offline. It shows cost-accuracy curves, a budget slider for two methods side by
    side, calibration and scores exit by exit, hopeless samples, tables, and what was run; and
    accuracy over milliseconds.
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
    out.print(f"written to {path}", soft_wrap=True)
