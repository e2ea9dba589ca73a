"""Writing what a study found: tables, figures, one page, and what was run."""

import csv
import io
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from offramp.flow.cache import read_done, versions
from offramp.flow.case import Case
from offramp.flow.findings import Findings
from offramp.flow.paper import beside_paper, paper_tables
from offramp.flow.pictures import hopeless_strip
from offramp.flow.plan import Plan
from offramp.flow.study import Study
from offramp.flow.workshop import Workshop
from offramp.report import Section, Table, write_comparison, write_page
from offramp.storage import write_text

__all__ = ["configuration", "paper_beside", "write_results", "write_timings"]


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
