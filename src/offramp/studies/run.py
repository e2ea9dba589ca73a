"""`run`: a whole study, from data to a page, doing only what is not done yet."""

import csv
import io
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from offramp.evaluation import Comparison
from offramp.report import Section, Table, write_comparison, write_page
from offramp.storage import check_target, write_text
from offramp.studies.cache import Cache, alone_in, declare_done, is_whole, read_done, versions
from offramp.studies.context import Narrator, Workshop
from offramp.studies.paper import beside_paper, paper_tables
from offramp.studies.plan import Plan, make_plan
from offramp.studies.results import Case, Findings, hopeless_strip
from offramp.studies.steps import Step
from offramp.studies.study import Study, read_study


def write_results(plan: Plan, workshop: Workshop, out: Path) -> list[Path]:
    """Write the report and everything beside it; return all paths.

    Nothing in these files depends on the clock: that is in `timings.json`.
    """
    written: list[Path] = []
    sections = [_first_section(plan.study)]
    for case in plan.cases:
        section = _case_section(plan, case, workshop)
        assert section.comparison is not None
        written += write_comparison(section.comparison, out / case.name, page=False)[0]
        written += _write_tables(section.tables, out / case.name, "paper")
        sections.append(section)
    for step in plan.analyses:
        findings = step.load(workshop)
        written += _write_tables(findings.tables, out / step.name, step.name)
        sections.append(_analysis_section(findings))
    about = provenance(plan)
    written.append(write_text(out / "study.json", json.dumps(about, indent=1) + "\n"))
    page = write_page(out / "report.html", _page_title(plan.study), sections, about)
    return [page, *written]


def _page_title(study: Study) -> str:
    return study.title if study.scale is None else f"{study.title} ({study.scale} scale)"


def _first_section(study: Study) -> Section:
    parts = [study.about, study.report.note]
    if study.report.paper is not None:
        table = paper_tables().get(study.report.paper)
        parts.append(
            f"It repeats the paper's {study.report.paper}, which is a figure: the paper prints no "
            "numbers to set beside."
            if table is None
            else f"It repeats the paper's {study.report.paper}: {table['caption']}"
        )
    return Section("About", note=" ".join(part for part in parts if part))


def _case_section(plan: Plan, case: Case, workshop: Workshop) -> Section:
    comparison = case.comparison.load(workshop)
    strip = hopeless_strip(case, case.ledgers(workshop)["test"], workshop)
    beside = paper_beside(plan, case, workshop)
    return Section(case.title, comparison, case.note or _note(case), beside, samples=strip)


def paper_beside(plan: Plan, case: Case, workshop: Workshop) -> list[Table]:
    """The paper's figures and those of a case side by side, where the paper prints any."""
    label = plan.study.report.paper
    if label is None:
        return []
    comparison = case.comparison.load(workshop)
    table = beside_paper(comparison, label, case.paper, case.name, case.title)
    return [] if table is None else [table]


def _note(case: Case) -> str:
    first = case.comparison.ledgers[0]
    trained = getattr(first, "trained", None)
    return "" if trained is None else f"Trained here: {trained.title}."


def _analysis_section(findings: Findings) -> Section:
    return Section(
        findings.title,
        note=findings.note,
        tables=findings.tables,
        figures=findings.figures,
        samples=findings.samples,
    )


def _write_tables(tables: Sequence[Table], folder: Path, stem: str) -> list[Path]:
    if not tables:
        return []
    forms = {
        "md": "\n\n".join(table.markdown() for table in tables),
        "tex": "\n\n".join(table.latex() for table in tables),
        "csv": "\n".join(_csv(table) for table in tables),
    }
    return [write_text(folder / f"{stem}.{kind}", text + "\n") for kind, text in forms.items()]


def _csv(table: Table) -> str:
    """The cells as they are shown, under the title."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([table.title])
    writer.writerow(table.columns)
    writer.writerows([[cell.text for cell in row] for row in table.rows])
    return out.getvalue()


def configuration(study: Study) -> dict[str, Any]:
    """The resolved configuration, every default filled in, as JSON values."""
    plain = asdict(replace(study, folder=Path()))
    del plain["folder"], plain["changes"]
    plain["networks"] = {each.pop("name"): _kept(each) for each in plain.pop("subjects")}
    return dict(json.loads(json.dumps(plain)))


def _kept(subject: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in subject.items() if value not in (None, "")}


def provenance(plan: Plan) -> dict[str, Any]:
    """What was run: configuration, seeds, versions, fingerprints, the command."""
    study = plan.study
    seeds = {
        subject.name: {"data": subject.data.seed, "train": subject.train.seed}
        for subject in study.subjects
        if subject.data is not None and subject.train is not None
    }
    return {
        "command": _command(study),
        "configuration": configuration(study),
        "seeds": {**seeds, "correctors": list(range(study.compare.seeds)), "resampling": 0},
        "versions": versions(),
        "steps": {f"{step.kind}: {step.title}": step.fingerprint for step in plan.steps},
        "timings": "in timings.json, beside this page",
    }


def _command(study: Study) -> str:
    """The command that does the same again."""
    shipped = study.folder == Path(str(files("offramp"))) / "studies"
    parts = ["offramp", *(("study", study.name) if shipped else ("run", f"{study.name}.toml"))]
    if shipped and study.name == "demo":
        parts = ["offramp", "demo"]
    if study.scale is not None:
        parts += ["--scale", study.scale]
    for key, value in study.changes.items():
        parts += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join(parts)


def write_timings(plan: Plan, workshop: Workshop, out: Path) -> Path:
    """Write how long each step took when it was done, whichever run did it."""
    found: dict[str, Any] = {}
    for step in plan.steps:
        done = read_done(step.place(workshop.cache)) or {}
        entry = {key: done.get(key) for key in ("seconds", "threads", "versions")}
        history = step.place(workshop.cache) / "history.jsonl"
        if history.is_file():
            # `seconds` are those of the last run alone, and a training may have been resumed.
            epochs = map(json.loads, history.read_text(encoding="utf-8").splitlines())
            entry["epochs_seconds"] = sum(epoch.get("seconds", 0.0) for epoch in epochs)
        methods = step.place(workshop.cache) / "seconds.json"
        if methods.is_file():
            entry["methods"] = json.loads(methods.read_text(encoding="utf-8"))
        found[f"{step.kind}: {step.title}"] = entry
    return write_text(out / "timings.json", json.dumps(found, indent=1) + "\n")


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
