"""Run experiments at small scale and write their results and figures below paper/docs/.

Nothing is made twice: a second run only writes the pages again. (The networks train for hours.)

    python tools/publish_studies.py                # all of the paper's
    python tools/publish_studies.py msdnet-cifar100 other-methods
    OFFRAMP_DATA=runs python tools/publish_studies.py strong-networks
"""

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import figures

from offramp.evaluation import Comparison
from offramp.report import comparison_tables, read_comparison
from offramp_paper.experiments import NAMES
from offramp_paper.experiments.command import study

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "paper" / "docs"
# Experiments on networks that were trained before have pages of their own.
PLACES = {"strong-networks": "strong-networks.md", "beyond-strong-networks": "networks/index.md"}
SHOWN = ("methods", "versus-temperature", "versus-baseline", "exits")
# Where there are many methods, each network has a page, with these tables.
MANY = ("methods", "versus-baseline", "reachable-gap", "exits")


def main() -> None:
    """Run the experiments and write their pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = [name for name in NAMES if name not in PLACES]
    parser.add_argument("names", nargs="*", default=usual, help="of `offramp studies`")
    for name in parser.parse_args().names:
        study([name])
        page = RESULTS / PLACES.get(name, f"studies/{name}.md")
        page.parent.mkdir(exist_ok=True)
        Experiment(name).write(page)


class Experiment:
    """What an experiment left in its folder."""

    def __init__(self, name: str) -> None:
        self.name, self.folder = name, Path("runs") / f"{name}-small"
        self.about: dict[str, Any] = json.loads((self.folder / "study.json").read_text())
        self.networks: dict[str, dict[str, Any]] = self.about["networks"]
        known = {"paper.md", "comparison.md"}
        tables = sorted(self.folder.glob("*/*.md"))
        self.analyses = [path.read_text().rstrip() for path in tables if path.name not in known]

    def write(self, page: Path) -> None:
        """Write the page of the experiment, and where there are many methods those of networks."""
        scale = "" if self.name in PLACES else ", small scale"
        blocks = [
            f"# {self.about['title']}{scale}",
            f"Measured on {date.today()} with `{self.about['command']}`.",
            self.about["about"],
            *([self.summary()] if self.name == "strong-networks" else []),
            *self.analyses,
        ]
        if page.name == "index.md":
            links = [f"[{each['title']}]({name}.md)" for name, each in self.networks.items()]
            blocks.append(f"All methods, network by network: {', '.join(links)}.")
            for name in self.networks:
                self.save(page.with_name(f"{name}.md"), self.network_page(name, page))
        elif not self.analyses or self.name == "strong-networks":
            for name in self.networks:
                blocks += self.section(name, page)
        else:
            blocks += [self.quoted(name) for name in self.networks]
        self.save(page, blocks)

    def comparison(self, name: str) -> Comparison:
        """The comparison on a network."""
        return read_comparison(self.folder / name)[0]

    def quoted(self, name: str) -> str:
        """The paper's figures beside those of a network, or nothing."""
        path = self.folder / name / "paper.md"
        return path.read_text().rstrip() if path.is_file() else ""

    def section(self, name: str, page: Path) -> list[str]:
        """One network: its figures beside the paper's, the curves, and tables of the methods."""
        picture = published(self.folder / name / "comparison.svg", page, f"{page.stem}-{name}.svg")
        return [
            f"## {self.networks[name]['title']}",
            self.quoted(name),
            f"![Cost and accuracy, ECE and EEFP per exit]({picture})",
            *tables(self.comparison(name), SHOWN),
        ]

    def network_page(self, name: str, index: Path) -> list[str]:
        """All methods on one network, on a page of its own."""
        picture = published(self.folder / name / "gains.svg", index, f"{name}.svg")
        return [
            f"# Beyond the paper: {self.networks[name]['title']}",
            f"Measured on {date.today()} with `{self.about['command']}`; "
            "[all networks](index.md).",
            f"![What every method gains over the baseline]({picture})",
            *tables(self.comparison(name), MANY),
        ]

    def save(self, page: Path, blocks: list[str]) -> None:
        """Write a page, and its tables as JSON."""
        text = "\n\n".join(block for block in blocks if block) + "\n"
        stem = str(page.relative_to(RESULTS).with_suffix("")).replace("/", "-")
        place = f"paper/figures/{stem}.json"
        figures.keep(ROOT / place, self.about["command"], figures.tables_in(text))
        page.write_text(figures.referred(text, place), encoding="utf-8")

    def summary(self) -> str:
        """All networks in one table."""
        rows = [
            "| network | accuracy at the exits (%) | ECE, after temperature scaling | hopeless |",
            "| --- | --- | ---: | ---: |",
        ]
        for name, network in self.networks.items():
            found = self.comparison(name)
            accuracies = ", ".join(f"{100 * each.accuracy:.1f}" for each in found.references.fixed)
            errors = [found[method].figures["ece"].value for method in ("baseline", "temperature")]
            cells = (
                network["title"],
                accuracies,
                ", ".join(f"{error:.3f}" for error in errors),
                f"{found.references.hopeless_share:.0%}",
            )
            rows.append(f"| {' | '.join(cells)} |")
        return "\n".join(rows)


def tables(comparison: Comparison, names: tuple[str, ...]) -> list[str]:
    """Some tables of a comparison as Markdown."""
    found = comparison_tables(comparison)
    return [table.markdown() for table in found if table.name in names]


def published(drawn: Path, page: Path, name: str) -> str:
    """Copy a figure beside a page, unless the same is there; return the name to link to."""
    content, target = drawn.read_bytes(), page.with_name(name)
    for other in sorted(target.parent.glob("*.svg")):
        if other != target and other.read_bytes() == content:
            target.unlink(missing_ok=True)
            return other.name
    target.write_bytes(content)
    return target.name


if __name__ == "__main__":
    main()
