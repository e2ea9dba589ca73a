"""`run`: a whole study, from data to a page, doing only what is not done yet."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offramp.evaluation import Comparison
from offramp.flow.cache import Cache, alone_in, declare_done, is_whole, read_done
from offramp.flow.outputs import configuration, paper_beside, write_results, write_timings
from offramp.flow.plan import Plan, make_plan
from offramp.flow.progress import Narrator
from offramp.flow.steps import Step
from offramp.flow.study import Study, read_study
from offramp.flow.workshop import Workshop
from offramp.report import Table
from offramp.storage import check_target

__all__ = ["PlannedStep", "RunResult", "plan_run", "run"]


@dataclass(frozen=True)
class PlannedStep:
    """One line of a plan.

    Attributes:
        kind: `network`, `ledger`, `comparison`, `analysis` or `report`.
        title: What is worked on.
        is_done: Whether the result is there, so that nothing will be done.
        place: Where the result is, or will be.
        writes: What will be written there.
    """

    kind: str
    title: str
    is_done: bool
    place: Path
    writes: str


@dataclass(frozen=True)
class RunResult:
    """What a run left behind.

    Attributes:
        folder: With the page, the tables and the figures.
        report: The page.
        done: Titles of the steps that this run really did; empty if all was there already.
        comparisons: By case.
        tables: Beyond the comparisons, by case or analysis: the paper's figures beside those
            measured here, and what analyses found.
    """

    folder: Path
    report: Path
    done: list[str]
    comparisons: dict[str, Comparison]
    tables: dict[str, list[Table]]


def run(
    study: str | Path | Study,
    out: str | Path | None = None,
    *,
    scale: str | None = None,
    changes: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    cache: str | Path | None = None,
    progress: bool = True,
) -> RunResult:
    """Run a study: data, networks, training, ledgers, methods, evaluation, report.

    Every step is kept under the fingerprint of what went into it, so that a second run does
    nothing and a changed setting repeats only what depends on it. Killed at any moment, the same
    call goes on and ends with the same result.

    Args:
        study: Path of a TOML file, or a `Study` that was read before.
        out: Where the results go; default `runs/NAME`.
        scale: Which of the file's scales.
        changes: Values in place of those in the file, by dotted key: `{"train.epochs": 2}`.
        only: Names of networks, where not all of the study's are wanted.
        cache: Where steps are kept; default the environment variable `OFFRAMP_CACHE`, or
            `runs/cache`.
        progress: Whether to say what is being done, on stderr.

    Raises:
        ConfigError: A mistake in the file; the message names it.
        DataError: Data are missing; raised before anything is trained.
    """
    made, workshop = _laid_out(study, scale, changes, only, cache, progress)
    folder = _out(made.study, out)
    check_target(folder)
    done: list[str] = []
    if not _is_reported(made, folder, workshop.cache):
        made.check(workshop)
        done = [*_do_steps(made, workshop), *_report(made, workshop, folder)]
    else:
        workshop.narrator.say("everything is there already; nothing was done")
    return RunResult(
        folder,
        folder / "report.html",
        done,
        {case.name: case.comparison.load(workshop) for case in made.cases},
        _tables(made, workshop),
    )


def plan_run(
    study: str | Path | Study,
    out: str | Path | None = None,
    *,
    scale: str | None = None,
    changes: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    cache: str | Path | None = None,
) -> list[PlannedStep]:
    """What `run` would do with the same arguments; nothing is run or written."""
    made, workshop = _laid_out(study, scale, changes, only, cache, progress=False)
    folder = _out(made.study, out)
    steps = [
        PlannedStep(
            step.kind,
            step.title,
            step.is_done(workshop.cache),
            step.place(workshop.cache),
            step.writes,
        )
        for step in made.steps
    ]
    writes = "report.html, tables, figures, study.json, timings.json"
    report = PlannedStep(
        "report", made.study.title, _is_reported(made, folder, workshop.cache), folder, writes
    )
    return [*steps, report]


def _laid_out(
    study: str | Path | Study,
    scale: str | None,
    changes: Mapping[str, Any] | None,
    only: Sequence[str],
    cache: str | Path | None,
    progress: bool,
) -> tuple[Plan, Workshop]:
    read = study if isinstance(study, Study) else read_study(study, scale, changes)
    read = read.only(only) if only else read
    workshop = Workshop(Cache(cache), Narrator(progress))
    return make_plan(read, workshop), workshop


def _out(study: Study, out: str | Path | None) -> Path:
    scale = "" if study.scale is None else f"-{study.scale}"
    return Path("runs") / f"{study.name}{scale}" if out is None else Path(out)


def _do_steps(plan: Plan, workshop: Workshop) -> list[str]:
    done = []
    steps = plan.steps
    for number, step in enumerate(steps, start=1):
        name = f"{step.kind}: {step.title}"
        if step.is_done(workshop.cache):
            workshop.narrator.say(f"[{number}/{len(steps) + 1}] {name} (there already)")
            continue
        workshop.narrator.say(f"[{number}/{len(steps) + 1}] {name}")
        if _do(step, workshop):
            done.append(name)
    return done


def _do(step: Step, workshop: Workshop) -> bool:
    """Do one step; False if another process did it in the meantime."""
    place = step.place(workshop.cache)
    with alone_in(place, workshop.narrator.say):
        if step.is_done(workshop.cache):
            return False
        start = time.perf_counter()
        kept = step.run(workshop, place)
        declare_done(place, kept, step.settings(), time.perf_counter() - start)
    return True


def _report(plan: Plan, workshop: Workshop, folder: Path) -> list[str]:
    total = len(plan.steps) + 1
    workshop.narrator.say(f"[{total}/{total}] report: {plan.study.title}")
    start = time.perf_counter()
    written = write_results(plan, workshop, folder)
    write_timings(plan, workshop, folder)
    settings = {"fingerprint": plan.fingerprint, "study": configuration(plan.study)}
    declare_done(folder, written, settings, time.perf_counter() - start)
    return [f"report: {plan.study.title}"]


def _tables(plan: Plan, workshop: Workshop) -> dict[str, list[Table]]:
    found = {case.name: paper_beside(plan, case, workshop) for case in plan.cases}
    return found | {step.name: list(step.load(workshop).tables) for step in plan.analyses}


def _is_reported(plan: Plan, folder: Path, cache: Cache) -> bool:
    """Whether the folder holds this report, and the results behind it are still there."""
    done = read_done(folder)
    if done is None or done["settings"].get("fingerprint") != plan.fingerprint:
        return False
    behind = (*(case.comparison for case in plan.cases), *plan.analyses)
    return is_whole(folder) and all(step.is_done(cache) for step in behind)
