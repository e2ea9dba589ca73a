"""The commands `run`, `studies` and `study`."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from offramp.cli.console import out
from offramp.cli.options import Device, complete_studies, there
from offramp.errors import ConfigError
from offramp.registry import STUDIES, or_known

if TYPE_CHECKING:
    from offramp.studies import PlannedStep, RunResult

Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for the results. Default: runs/NAME.")
]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Folder of the cache, which all studies share. Default: OFFRAMP_CACHE, or "
        "runs/cache.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Only print the steps: which are done, and which would run."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value of the file, such as train.epochs=2 for all networks, or "
        "networks.NAME.train.epochs=2 for one.",
    ),
]
Only = Annotated[str, typer.Option(help="Comma-separated networks of the study; default all.")]


def run_command(
    study: Annotated[
        Path, typer.Argument(metavar="STUDY.toml", callback=there, help="A study file.")
    ],
    folder: Out = None,
    scale: Annotated[str | None, typer.Option(help="One of the file's scales.")] = None,
    changes: Changes = None,
    only: Only = "",
    cache: CacheFolder = None,
    device: Device = "auto",
    dry_run: DryRun = False,
) -> None:
    """Run a study: data, network, training, ledgers, policies, evaluation, report.

    The result of every step is cached under a fingerprint of its inputs and settings: a second
    run does nothing, and a changed setting repeats only the steps that depend on it. A run that
    was killed is resumed by the same command. docs/studies.md lists the keys of a study file.
    """
    _run(study, folder, scale, changes, only, cache, device, dry_run)


def study_command(
    name: Annotated[
        str, typer.Argument(autocompletion=complete_studies, help="One of `offramp studies`.")
    ],
    scale: Annotated[
        Literal["paper", "small"],
        typer.Option(help="The paper's full settings, or a size for a laptop."),
    ] = "small",
    folder: Out = None,
    changes: Changes = None,
    only: Only = "",
    cache: CacheFolder = None,
    device: Device = "auto",
    dry_run: DryRun = False,
) -> None:
    """Run one of the paper's experiments by name; the report shows the paper's figures beside."""
    _run(_study_file(name), folder, scale, changes, only, cache, device, dry_run)


def studies_command(cache: CacheFolder = None) -> None:
    """List the paper's experiments, what they need, and what of that is available here."""
    from offramp.studies.catalogue import list_studies

    for study in list_studies(cache):
        out.print(study.name, style="bold")
        out.print(f"  {study.about}")
        for each in study.scales:
            out.print(f"    {each.scale}: {each.needs} ({each.state})")
    notes = (
        "offramp study NAME --scale small|paper runs one of them. Data are looked for below the "
        "folder in OFFRAMP_DATA. The paper scale needs GPUs and was not run: its configuration is "
        "tested up to the first training step."
    )
    out.print(notes)


def _study_file(name: str) -> Path:
    if name not in STUDIES:
        raise ConfigError(f"there is no study `{name}`{or_known(name, (*STUDIES, 'demo'))}")
    from offramp.studies import find_study

    return find_study(name)


def _run(
    study: Path,
    folder: Path | None,
    scale: str | None,
    changes: list[str] | None,
    only: str,
    cache: Path | None,
    device: str,
    dry_run: bool,
) -> None:
    from offramp.machine import find_device
    from offramp.studies import plan_run, run
    from offramp.training.processes import Processes

    chosen: dict[str, Any] = {
        "scale": scale,
        "changes": dict(_change(text) for text in changes or ()),
        "only": [name.strip() for name in only.split(",") if name.strip()],
        "cache": cache,
    }
    if dry_run:
        _show_plan(plan_run(study, folder, **chosen))
        return
    result = run(study, folder, device=device, **chosen)
    if Processes.here(find_device(device)).is_main:
        _show(result)


def _change(text: str) -> tuple[str, Any]:
    """Key and value of `train.epochs=2`; what is not a TOML value is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes KEY=VALUE, such as train.epochs=2, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _show_plan(steps: "list[PlannedStep]") -> None:
    for number, step in enumerate(steps, start=1):
        state = "done" if step.is_done else "to do"
        out.print(f"{number:3}. {state:5}  {step.kind:10}  {step.title}")
        out.print(f"{'':12}{step.place}/: {step.writes}")
    left = sum(not step.is_done for step in steps)
    out.print(f"{left} of {len(steps)} steps to do")


def _show(result: "RunResult") -> None:
    from offramp.report import comparison_tables, verdicts

    for name, comparison in result.comparisons.items():
        out.rule(name)
        # All the other tables are in the report.
        for table in (comparison_tables(comparison)[0], *result.tables[name]):
            out.show(table)
        for sentence in verdicts(comparison):
            out.print(sentence)
    for name, found in result.tables.items():
        if name not in result.comparisons:
            out.rule(name)
            for table in found:
                out.show(table)
    out.print(f"report: {result.report}")
