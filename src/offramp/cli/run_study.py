"""The sub-commands `run`, `studies`, `study` and `demo`: parse, and one public call."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from offramp import studies
from offramp.cli.console import out
from offramp.errors import ConfigError
from offramp.report import tables, verdicts
from offramp.studies import PlannedStep, RunResult, plan_run, run
from offramp.studies.catalogue import list_studies

Out = Annotated[
    Path | None, typer.Option("--out", help="Where the results go. Default: runs/NAME.")
]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Where the results of steps are kept, for all studies together. Default: "
        "OFFRAMP_CACHE, or runs/cache.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan: what is there, what would be done.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a value of the file, such as train.epochs=2."
    ),
]
Only = Annotated[
    str, typer.Option(help="Comma-separated networks of the study, where not all are wanted.")
]


def run_command(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="A study file.")],
    folder: Out = None,
    scale: Annotated[str | None, typer.Option(help="One of the file's scales.")] = None,
    changes: Changes = None,
    only: Only = "",
    cache: CacheFolder = None,
    dry_run: DryRun = False,
) -> None:
    """Run a study: data, network, training, ledgers, policies, evaluation, report.

    Every step is kept under the fingerprint of what went into it: a second run does nothing, and
    a changed setting repeats only what depends on it. Killed at any moment, the same command goes
    on to the same result. docs/studies.md lists the keys of a study file.
    """
    _run(study, folder, scale, changes, only, cache, dry_run)


def study_command(
    name: Annotated[str, typer.Argument(help="One of `offramp studies`.")],
    scale: Annotated[
        Literal["paper", "small"],
        typer.Option(help="The paper's full settings, or what a laptop can do."),
    ] = "small",
    folder: Out = None,
    changes: Changes = None,
    only: Only = "",
    cache: CacheFolder = None,
    dry_run: DryRun = False,
) -> None:
    """Run one of the paper's experiments by name, with the paper's own figures beside it."""
    _run(studies.find_study(name), folder, scale, changes, only, cache, dry_run)


def studies_command(cache: CacheFolder = None) -> None:
    """List the paper's experiments: what they need, and what of it is at hand."""
    for study in list_studies(cache):
        out.print(study.name, style="bold", highlight=False)
        out.print(f"  {study.about}", markup=False, highlight=False, soft_wrap=True)
        for each in study.scales:
            text = f"    {each.scale}: {each.needs} ({each.state})"
            out.print(text, markup=False, highlight=False, soft_wrap=True)
    notes = (
        "offramp study NAME --scale small|paper runs one. Data are looked for below the folder "
        "in OFFRAMP_DATA. The paper scale needs GPUs and was not run: its configuration is "
        "checked up to the first training step."
    )
    out.print(notes, highlight=False, soft_wrap=True)


def demo_command(
    folder: Annotated[Path, typer.Option("--out", help="Where to write.")] = Path("runs/demo"),
    changes: Changes = None,
    only: Only = "",
    cache: CacheFolder = None,
    dry_run: DryRun = False,
) -> None:
    """Train a network with exits from nothing, and compare exit methods on it and a real one.

    The first network learns images that are made on the spot; of the second, a nine-exit
    CIFAR-100 network, the logits come with the package. An ordinary study: see studies/demo.toml.
    """
    _run(studies.find_study("demo"), folder, None, changes, only, cache, dry_run)


def _run(
    study: Path,
    folder: Path | None,
    scale: str | None,
    changes: list[str] | None,
    only: str,
    cache: Path | None,
    dry_run: bool,
) -> None:
    chosen: dict[str, Any] = {
        "scale": scale,
        "changes": dict(_change(text) for text in changes or ()),
        "only": [name.strip() for name in only.split(",") if name.strip()],
        "cache": cache,
    }
    if dry_run:
        _show_plan(plan_run(study, folder, **chosen))
    else:
        _show(run(study, folder, **chosen))


def _change(text: str) -> tuple[str, Any]:
    """`train.epochs=2` as a key and a value; what is no TOML value is a text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes KEY=VALUE, such as train.epochs=2, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _show_plan(steps: list[PlannedStep]) -> None:
    for number, step in enumerate(steps, start=1):
        state = "there already" if step.is_done else "to do"
        text = f"{number:3}. {state:13}  {step.kind:10}  {step.title}"
        out.print(text, markup=False, highlight=False, soft_wrap=True)
        where = f"{'':20}{step.place}/: {step.writes}"
        out.print(where, markup=False, highlight=False, soft_wrap=True)
    left = sum(not step.is_done for step in steps)
    out.print(f"{left} of {len(steps)} steps to do", highlight=False)


def _show(result: RunResult) -> None:
    for name, comparison in result.comparisons.items():
        out.rule(name)
        # All the other tables are in the report.
        for table in (tables(comparison)[0], *result.tables[name]):
            out.print(table.rich())
        for sentence in verdicts(comparison):
            out.print(sentence, markup=False, highlight=False)
    for name, found in result.tables.items():
        if name not in result.comparisons:
            out.rule(name)
            for table in found:
                out.print(table.rich())
    out.print(f"report: {result.report}", markup=False, highlight=False, soft_wrap=True)
