"""Run the studies at small scale and write what they found below docs/results/.

Every step is cached, so that a second run only writes the pages again (networks train for hours):

    python tools/publish_studies.py                # all of them
    python tools/publish_studies.py msdnet-cifar100 other-methods
"""

import argparse
import json
import shutil
from datetime import date
from pathlib import Path

from offramp import studies
from offramp.report import comparison_tables
from offramp.studies import RunResult, run

RESULTS = Path(__file__).parents[1] / "docs" / "results"
TARGET = RESULTS / "studies"
SHOWN = ("methods", "versus-temperature", "versus-baseline", "exits")
LONG = {"beyond": ("methods", "versus-baseline", "closed-gap", "exits")}
"""Studies with so many methods that every network has a page of its own, and what is on it; they
have a folder beside that of the others."""


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="of `offramp studies`; all by default")
    names = parser.parse_args().names or studies.NAMES
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in names:
        result = run(studies.find_study(name), scale="small")
        if name not in LONG:
            (TARGET / f"{name}.md").write_text(page(name, result), encoding="utf-8")
            continue
        (RESULTS / name).mkdir(exist_ok=True)
        (RESULTS / name / "index.md").write_text(page(name, result), encoding="utf-8")
        for experiment in result.comparisons:
            text = network_page(name, experiment, result)
            (RESULTS / name / f"{experiment}.md").write_text(text, encoding="utf-8")


def page(name: str, result: RunResult) -> str:
    """A study as Markdown."""
    about = json.loads((result.folder / "study.json").read_text(encoding="utf-8"))
    settings = about["configuration"]
    parts = [
        f"# {settings['title']}, small scale",
        settings["about"],
        f"Measured on {date.today()} with `{about['command']}`.{training(result)}",
        settings["report"]["note"],
    ]
    experiments = result.comparisons
    for analysis in result.tables.keys() - experiments.keys():
        parts += [table.markdown() for table in result.tables[analysis]]
    networks = settings["networks"]
    if name in LONG:
        links = [f"[{titles(result)[experiment]}]({experiment}.md)" for experiment in experiments]
        parts.append(f"All methods, network by network: {', '.join(links)}.")
        return "\n\n".join(part for part in parts if part) + "\n"
    for experiment in experiments:
        if not settings["report"]["analyses"]:
            parts += section(
                name, experiment, networks.get(experiment, {}).get("title") or experiment, result
            )
        else:
            parts += [table.markdown() for table in result.tables[experiment]]
    return "\n\n".join(part for part in parts if part) + "\n"


def section(name: str, experiment: str, title: str, result: RunResult) -> list[str]:
    """One network: the paper's figures beside, the methods, and a figure of the curves."""
    picture = f"{name}-{experiment}.svg"
    shutil.copyfile(result.folder / experiment / "comparison.svg", TARGET / picture)
    shown = [
        table for table in comparison_tables(result.comparisons[experiment]) if table.name in SHOWN
    ]
    return [
        f"## {title}",
        *(table.markdown() for table in result.tables[experiment]),
        f"![Cost and accuracy, ECE and EEFP per exit]({picture})",
        *(table.markdown() for table in shown),
    ]


def network_page(name: str, experiment: str, result: RunResult) -> str:
    """All methods on one network of a long study."""
    picture = f"{experiment}.svg"
    shutil.copyfile(result.folder / experiment / "gains.svg", RESULTS / name / picture)
    shown = [
        table
        for table in comparison_tables(result.comparisons[experiment])
        if table.name in LONG[name]
    ]
    about = json.loads((result.folder / "study.json").read_text(encoding="utf-8"))
    parts = [
        f"# {about['configuration']['title']}: {titles(result)[experiment]}",
        f"Measured on {date.today()} with `{about['command']}`; [all networks](index.md).",
        f"![What every method gains over the baseline]({picture})",
        *(table.markdown() for table in shown),
    ]
    return "\n\n".join(parts) + "\n"


def titles(result: RunResult) -> dict[str, str]:
    """What the networks of a long study are called: its analysis has a row for each."""
    (analysis,) = result.tables.keys() - result.comparisons.keys()
    names = [row[0].text for row in result.tables[analysis][0].rows]
    return dict(zip(result.comparisons, names, strict=True))


def training(result: RunResult) -> str:
    """How long the networks behind it trained."""
    timings = json.loads((result.folder / "timings.json").read_text(encoding="utf-8"))
    found = []
    for step, entry in timings.items():
        if step.startswith("network: ") and entry["seconds"]:
            spent = max(entry["seconds"], entry.get("epochs_seconds", 0.0))
            found.append(f"{step.removeprefix('network: ')} in {took(spent)}")
    return f" Networks trained before: {'; '.join(found)}." if found else ""


def took(seconds: float) -> str:
    """In words."""
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"


if __name__ == "__main__":
    main()
