"""Run the studies at small scale and write their results and figures below docs/results/.

Every step is cached: a second run only writes the pages again. (The networks train for hours.)

    python tools/publish_studies.py                # all of them
    python tools/publish_studies.py msdnet-cifar100 other-methods
    OFFRAMP_DATA=runs python tools/publish_studies.py docs/results/strong-networks.toml
"""

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

from offramp import studies
from offramp.report import comparison_tables
from offramp.studies import RunResult, run

RESULTS = Path(__file__).parents[1] / "docs" / "results"
TARGET = RESULTS / "studies"
SHOWN = ("methods", "versus-temperature", "versus-baseline", "exits")
# Studies with many methods have a folder of their own, with a page of these tables per network.
LONG = {"beyond": ("methods", "versus-baseline", "reachable-gap", "exits")}


def main() -> None:
    """Run the studies and write their pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="of `offramp studies`; all by default")
    names = parser.parse_args().names or studies.NAMES
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not name.endswith(".toml"):
            result = run(studies.find_study(name), scale="small")
            write(TARGET / f"{name}.md", page(name, result))
            continue
        result, stem = run(name), Path(name).stem
        if stem not in LONG:
            write(RESULTS / f"{stem}.md", file_page(name, result))
            continue
        write(RESULTS / stem / "index.md", long_page(name, result))
        for experiment in result.comparisons:
            write(RESULTS / stem / f"{experiment}.md", network_page(name, experiment, result))


def write(path: Path, text: str) -> None:
    """Write a page."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def command(name: str) -> str:
    """What measures a study that is in a file."""
    return f"OFFRAMP_DATA=runs offramp run {name}"


def opening(result: RunResult, scale: str, measured: str = "") -> tuple[dict[str, Any], list[str]]:
    """The settings of a study, and what its page begins with."""
    about = json.loads((result.folder / "study.json").read_text(encoding="utf-8"))
    settings = about["configuration"]
    return settings, [
        f"# {settings['title']}{scale}",
        settings["about"],
        f"Measured on {date.today()} with `{measured or about['command']}`.{training(result)}",
        settings["report"]["note"],
    ]


def file_page(name: str, result: RunResult) -> str:
    """A study of ledgers that were recorded before: its analyses, and every network's tables."""
    settings, blocks = opening(result, "", command(name))
    blocks.append(summary(settings, result))
    for experiment, comparison in result.comparisons.items():
        shown = [table for table in comparison_tables(comparison) if table.name in SHOWN]
        blocks += [
            f"## {settings['networks'][experiment]['title']}",
            *(table.markdown() for table in result.tables[experiment]),
            *(table.markdown() for table in shown),
        ]
    for analysis in result.tables.keys() - result.comparisons.keys():
        blocks += ["## Which metric ranks methods as their accuracy does?"]
        blocks += [table.markdown() for table in result.tables[analysis]]
    return "\n\n".join(block for block in blocks if block) + "\n"


def summary(settings: dict[str, Any], result: RunResult) -> str:
    """All networks of a study in one table."""
    rows = [
        "| network | accuracy at the exits (%) | ECE, and after temperature scaling | hopeless |",
        "| --- | --- | ---: | ---: |",
    ]
    for experiment, comparison in result.comparisons.items():
        ece = {each.name: each.figures["ece"].value for each in comparison.methods}
        fixed = comparison.references.fixed
        cells = (
            settings["networks"][experiment]["title"],
            ", ".join(f"{100 * each.accuracy:.1f}" for each in fixed),
            f"{ece['baseline']:.3f}, {ece['temperature']:.3f}",
            f"{comparison.references.hopeless_share:.0%}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def long_page(name: str, result: RunResult) -> str:
    """The analyses of a long study, and links to the pages of its networks."""
    settings, blocks = opening(result, "", command(name))
    for analysis in result.tables.keys() - result.comparisons.keys():
        blocks += [table.markdown() for table in result.tables[analysis]]
    networks = settings["networks"]
    links = [f"[{networks[each]['title']}]({each}.md)" for each in result.comparisons]
    blocks.append(f"All methods, network by network: {', '.join(links)}.")
    return "\n\n".join(block for block in blocks if block) + "\n"


def page(name: str, result: RunResult) -> str:
    """A study as Markdown."""
    settings, blocks = opening(result, ", small scale")
    experiments = result.comparisons
    for analysis in result.tables.keys() - experiments.keys():
        blocks += [table.markdown() for table in result.tables[analysis]]
    networks = settings["networks"]
    for experiment in experiments:
        if not settings["report"]["analyses"]:
            blocks += section(
                name, experiment, networks.get(experiment, {}).get("title") or experiment, result
            )
        else:
            blocks += [table.markdown() for table in result.tables[experiment]]
    return "\n\n".join(block for block in blocks if block) + "\n"


def section(name: str, experiment: str, title: str, result: RunResult) -> list[str]:
    """One network: its figures beside the paper's, the curves, and the tables of the methods."""
    drawn = result.folder / experiment / "comparison.svg"
    picture = published(drawn, TARGET / f"{name}-{experiment}.svg")
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
    stem = Path(name).stem
    drawn = result.folder / experiment / "gains.svg"
    picture = published(drawn, RESULTS / stem / f"{experiment}.svg")
    tables = comparison_tables(result.comparisons[experiment])
    about = json.loads((result.folder / "study.json").read_text(encoding="utf-8"))
    settings = about["configuration"]
    blocks = [
        f"# {settings['title']}: {settings['networks'][experiment]['title']}",
        f"Measured on {date.today()} with `{command(name)}`; [all networks](index.md).",
        f"![What every method gains over the baseline]({picture})",
        *(table.markdown() for table in tables if table.name in LONG[stem]),
    ]
    return "\n\n".join(blocks) + "\n"


def published(drawn: Path, target: Path) -> str:
    """Copy a figure, unless the same one is there already; return the name to link to."""
    content = drawn.read_bytes()
    for other in sorted(target.parent.glob("*.svg")):
        if other != target and other.read_bytes() == content:
            target.unlink(missing_ok=True)
            return other.name
    target.write_bytes(content)
    return target.name


def training(result: RunResult) -> str:
    """How long the networks of a study trained."""
    timings = json.loads((result.folder / "timings.json").read_text(encoding="utf-8"))
    found = []
    for step, entry in timings.items():
        if step.startswith("network: ") and entry["seconds"]:
            spent = max(entry["seconds"], entry.get("epochs_seconds", 0.0))
            found.append(f"{step.removeprefix('network: ')}, trained in {took(spent)}")
    return f" Networks: {'; '.join(found)}." if found else ""


def took(seconds: float) -> str:
    """A duration in words."""
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"


if __name__ == "__main__":
    main()
