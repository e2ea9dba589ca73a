"""`run`: a whole study, from data to a page, doing only what is not done yet."""

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from offramp.evaluation import Comparison
from offramp.files import check_target, write_text
from offramp.machine import describe_device, find_device
from offramp.report import ResultTable, Section, write_comparison, write_page
from offramp.studies.cache import Cache, alone_in, declare_done, is_whole, read_done, versions
from offramp.studies.context import Context
from offramp.studies.paper import beside_paper, paper_tables
from offramp.studies.pipeline import Pipeline, make_pipeline
from offramp.studies.results import Experiment, hopeless_strip
from offramp.studies.steps import RecordStep, Step, TrainStep
from offramp.studies.study import Study, read_study
from offramp.training.processes import Processes


@dataclass(frozen=True)
class PlannedStep:
    """One step that `run` would take.

    Attributes:
        kind: `network`, `ledger`, `comparison`, `analysis` or `report`.
        title: What the step works on.
        is_done: Whether the result is there already.
        place: The folder of the result.
        writes: What is written there.
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
        done: Titles of the steps that this run did; empty if everything was there already.
        comparisons: By experiment.
        tables: Beyond the comparisons: the paper's figures beside those measured here, by
            experiment, and the tables of the analyses, by analysis.
    """

    folder: Path
    report: Path
    done: list[str]
    comparisons: dict[str, Comparison]
    tables: dict[str, list[ResultTable]]


def run(
    study: str | Path | Study,
    out: str | Path | None = None,
    *,
    scale: str | None = None,
    changes: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    cache: str | Path | None = None,
    device: str = "auto",
    progress: bool = True,
) -> RunResult:
    """Run a study: data, networks, training, ledgers, methods, evaluation, report.

    The result of every step is cached under a fingerprint of its inputs and settings: a second
    run does nothing, and a changed setting repeats only the steps that depend on it. A run that
    was killed is resumed by the same call and ends with the same result. Under `torchrun` or
    `accelerate launch` the processes share training and recording. All else is done by the first
    of them, which alone takes locks and writes.

    Args:
        study: Path of a TOML file, or a `Study` that was read before.
        out: Folder for the results; default `runs/NAME`.
        scale: Which of the file's scales.
        changes: Values in place of those in the file, by dotted key: `{"train.epochs": 2}` for all
            networks, `networks.NAME.train.epochs` for one.
        only: Names of the networks to run; default all of the study's.
        cache: Folder of the cache; default the environment variable `OFFRAMP_CACHE`, or
            `runs/cache`.
        device: Where networks are trained and recorded: `cpu`, `cuda`, `cuda:1`, `mps`, ...
            `auto`: what the file says under `train.device`, by default a GPU if there is one. A
            cached result is taken wherever it was computed.
        progress: Whether to show progress on stderr.

    Raises:
        ConfigError: A mistake in the file; the message names it.
        DataError: Data are missing; raised before anything is trained.
    """
    processes = Processes.here(find_device(device))
    context = Context(Cache(cache), progress and processes.is_main, processes, device)
    pipeline = _pipeline(study, scale, changes, only, context)
    context.say(f"running {pipeline.study.name} on {_device(pipeline.study, context)}")
    folder = _folder(pipeline.study, out)
    check_target(folder)
    done: list[str] = []
    if processes.first(lambda: _is_reported(pipeline, folder, context.cache)):
        context.say("everything is there already; nothing was done")
    else:
        processes.first(lambda: pipeline.check(context))
        done = _do_steps(pipeline, context)
        done += processes.first(lambda: _report(pipeline, context, folder))
    comparisons = {each.name: each.comparison.load(context) for each in pipeline.experiments}
    tables = {each.name: _beside_paper(pipeline, each, context) for each in pipeline.experiments}
    tables |= {step.name: list(step.load(context).tables) for step in pipeline.analyses}
    return RunResult(folder, folder / "report.html", done, comparisons, tables)


def plan_run(
    study: str | Path | Study,
    out: str | Path | None = None,
    *,
    scale: str | None = None,
    changes: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    cache: str | Path | None = None,
) -> list[PlannedStep]:
    """The steps that `run` would take with the same arguments; nothing is run or written."""
    context = Context(Cache(cache), shown=False)
    pipeline = _pipeline(study, scale, changes, only, context)
    folder, kept = _folder(pipeline.study, out), context.cache
    steps = [
        PlannedStep(step.kind, step.title, step.is_done(kept), step.place(kept), step.writes)
        for step in pipeline.steps
    ]
    is_done = _is_reported(pipeline, folder, kept)
    writes = "report.html, tables, figures, study.json, timings.json"
    return [*steps, PlannedStep("report", pipeline.study.title, is_done, folder, writes)]


def _pipeline(
    study: str | Path | Study,
    scale: str | None,
    changes: Mapping[str, Any] | None,
    only: Sequence[str],
    context: Context,
) -> Pipeline:
    read = study if isinstance(study, Study) else read_study(study, scale, changes)
    return make_pipeline(read.only(only) if only else read, context)


def _device(study: Study, context: Context) -> str:
    """Where the networks of a study are trained; raises if there is no such device."""
    names = {context.device_for(each.train) for each in study.networks if each.train is not None}
    found = {describe_device(find_device(name)) for name in names or {"cpu"}}
    return ", ".join(sorted(found))


def _folder(study: Study, out: str | Path | None) -> Path:
    scale = "" if study.scale is None else f"-{study.scale}"
    return Path("runs") / f"{study.name}{scale}" if out is None else Path(out)


def _is_reported(pipeline: Pipeline, folder: Path, cache: Cache) -> bool:
    """Whether the folder holds this report, and the results behind it are still there."""
    done = read_done(folder)
    if done is None or done["settings"].get("fingerprint") != pipeline.fingerprint:
        return False
    behind = (*(each.comparison for each in pipeline.experiments), *pipeline.analyses)
    return is_whole(folder) and all(step.is_done(cache) for step in behind)


def _do_steps(pipeline: Pipeline, context: Context) -> list[str]:
    done = []
    steps = pipeline.steps
    for number, step in enumerate(steps, start=1):
        name = f"{step.kind}: {step.title}"
        is_done = context.processes.first(partial(step.is_done, context.cache))
        context.say(f"[{number}/{len(steps) + 1}] {name}{' (done already)' * is_done}")
        if not is_done and _do(step, context):
            done.append(name)
    return done


def _do(step: Step, context: Context) -> bool:
    """Do one step; False if another run has done it in the meantime."""
    place, processes = step.place(context.cache), context.processes
    with ExitStack() as lock:

        def is_done() -> bool:
            lock.enter_context(alone_in(place, context.say))
            return step.is_done(context.cache)

        if processes.first(is_done):
            return False
        start = time.perf_counter()
        files = step.run(context, place) if step.is_shared or processes.is_main else []
        seconds = time.perf_counter() - start
        processes.first(lambda: declare_done(place, files, step.settings(), seconds))
    return True


def _report(pipeline: Pipeline, context: Context, folder: Path) -> list[str]:
    total = len(pipeline.steps) + 1
    context.say(f"[{total}/{total}] report: {pipeline.study.title}")
    start = time.perf_counter()
    written = _write_results(pipeline, context, folder)
    _write_timings(pipeline, context, folder)
    settings = {"fingerprint": pipeline.fingerprint, "study": _configuration(pipeline.study)}
    declare_done(folder, written, settings, time.perf_counter() - start)
    return [f"report: {pipeline.study.title}"]


def _write_results(pipeline: Pipeline, context: Context, folder: Path) -> list[Path]:
    """Write the page and everything beside it but `timings.json`, the only file with times."""
    study, written = pipeline.study, list[Path]()
    sections = [_first_section(study)]
    for experiment in pipeline.experiments:
        section = _experiment_section(pipeline, experiment, context)
        assert section.comparison is not None
        place = folder / experiment.name
        written += write_comparison(section.comparison, place, page=False)[0]
        written += _write_tables(section.tables, place, "paper")
        sections.append(section)
    for step in pipeline.analyses:
        section = step.load(context)
        written += _write_tables(section.tables, folder / step.name, step.name)
        sections.append(section)
    about = _provenance(pipeline, context)
    written.append(write_text(folder / "study.json", json.dumps(about, indent=1) + "\n"))
    title = study.title if study.scale is None else f"{study.title} ({study.scale} scale)"
    return [write_page(folder / "report.html", title, sections, about), *written]


def _first_section(study: Study) -> Section:
    texts = [study.about, study.report.note]
    if study.report.paper is not None:
        table = paper_tables().get(study.report.paper)
        texts.append(
            f"It repeats the paper's {study.report.paper}, a figure for which the paper prints no "
            "numbers."
            if table is None
            else f"It repeats the paper's {study.report.paper}: {table['caption']}"
        )
    return Section("About", note=" ".join(text for text in texts if text))


def _experiment_section(pipeline: Pipeline, experiment: Experiment, context: Context) -> Section:
    first = experiment.comparison.ledgers[0]
    trained = f"Trained here: {first.trained.title}." if isinstance(first, RecordStep) else ""
    return Section(
        experiment.title,
        experiment.comparison.load(context),
        experiment.note or trained,
        _beside_paper(pipeline, experiment, context),
        samples=hopeless_strip(experiment, experiment.ledgers(context)["test"], context),
    )


def _beside_paper(
    pipeline: Pipeline, experiment: Experiment, context: Context
) -> list[ResultTable]:
    """The paper's figures beside those of an experiment, where the paper prints any."""
    label = pipeline.study.report.paper
    if label is None:
        return []
    comparison = experiment.comparison.load(context)
    table = beside_paper(comparison, label, experiment.paper, experiment.name, experiment.title)
    return [] if table is None else [table]


def _write_tables(tables: Sequence[ResultTable], folder: Path, stem: str) -> list[Path]:
    if not tables:
        return []
    forms = {
        "md": "\n\n".join(table.markdown() for table in tables),
        "csv": "\n".join(table.csv() for table in tables),
    }
    return [write_text(folder / f"{stem}.{kind}", text + "\n") for kind, text in forms.items()]


def _configuration(study: Study) -> dict[str, Any]:
    """The resolved configuration, with every default filled in, as JSON values."""
    configuration = asdict(replace(study, folder=Path()))
    del configuration["folder"], configuration["changes"]
    configuration["networks"] = {
        entry.pop("name"): {key: value for key, value in entry.items() if value not in (None, "")}
        for entry in configuration["networks"]
    }
    return dict(json.loads(json.dumps(configuration)))


def _provenance(pipeline: Pipeline, context: Context) -> dict[str, Any]:
    """What was run: command, configuration, seeds, versions, devices and fingerprints."""
    study = pipeline.study
    seeds = {
        entry.name: {"data": entry.data.seed, "train": entry.train.seed}
        for entry in study.networks
        if entry.data is not None and entry.train is not None
    }
    return {
        "command": _command(study),
        "configuration": _configuration(study),
        "seeds": {**seeds, "correctors": list(range(study.compare.seeds)), "resampling": 0},
        "versions": versions(),
        "devices": dict(_devices(pipeline, context)),
        "steps": {f"{step.kind}: {step.title}": step.fingerprint for step in pipeline.steps},
        "timings": "in timings.json, beside this page",
    }


def _devices(pipeline: Pipeline, context: Context) -> Iterator[tuple[str, str]]:
    """Where and in which precision each network was trained and recorded."""
    for step in pipeline.steps:
        if isinstance(step, TrainStep):
            file = step.place(context.cache) / "train.json"
            found = json.loads(file.read_text(encoding="utf-8"))
            # Older runs in the cache do not say it.
            yield f"network: {step.title}", f"{found.get('device')}, {found['precision']}"
        elif isinstance(step, RecordStep):
            yield f"ledger: {step.title}", str(step.load(context).recorded_on)


def _command(study: Study) -> str:
    """The command that repeats the run."""
    words = ["offramp", "run", f"{study.name}.toml"]
    if study.folder == Path(str(files("offramp"))) / "studies":
        words = ["offramp", *(["demo"] if study.name == "demo" else ["study", study.name])]
    if study.scale is not None:
        words += ["--scale", study.scale]
    for key, value in study.changes.items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join(words)


def _write_timings(pipeline: Pipeline, context: Context, folder: Path) -> Path:
    """Write how long each step took, whichever run did it."""
    found: dict[str, Any] = {}
    for step in pipeline.steps:
        place = step.place(context.cache)
        done = read_done(place) or {}
        entry = {key: done.get(key) for key in ("seconds", "threads", "versions")}
        history = place / "history.jsonl"
        if history.is_file():
            # `seconds` are those of the last run alone, and training may have been resumed.
            epochs = map(json.loads, history.read_text(encoding="utf-8").splitlines())
            entry["epochs_seconds"] = sum(epoch.get("seconds", 0.0) for epoch in epochs)
        methods = place / "seconds.json"
        if methods.is_file():
            entry["methods"] = json.loads(methods.read_text(encoding="utf-8"))
        found[f"{step.kind}: {step.title}"] = entry
    return write_text(folder / "timings.json", json.dumps(found, indent=1) + "\n")
