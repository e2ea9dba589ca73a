"""Tables of figures: a command writes them as JSON, and pages show them.

    python tools/figures.py                     # write the tables into all pages (make figures)
    python tools/figures.py --check             # name the pages that are older than their figures
    python tools/figures.py --measure docs/figures/overhead.json -- python benchmarks/overhead.py

`--measure` runs a command and keeps every Markdown table that it prints, with the command, the
machine, the date and the commit. Add `--from FILE` for a command that writes its tables to a file.
A page shows a table between two comments, and a third one says where the figures come from:

    <!-- figures docs/figures/overhead.json observe -->
    <!-- end -->
    <!-- measured docs/figures/overhead.json -->
"""

import argparse
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from offramp import compare, synthetic
from offramp.errors import FewSamplesWarning
from offramp.files import write_text
from offramp.machine import machine_name
from offramp.methods import find_methods

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"(<!-- figures (\S+) (\S+) -->\n).*?<!-- end -->", re.DOTALL)
NEXT_LINE = re.compile(r"\n\s*")
MEASURED = re.compile(r"(<!-- measured (\S+) -->).*")

METHODS = ("temperature", "eefp", "eefp-no-history", "ccct", "eefp-logistic", "break-even")
METHOD_LABELS = [method.label for method in find_methods(METHODS, num_classes=10)]
"""Methods whose figures pages show; a page is older than a method that gives other figures now."""

TOLERANCE = 0.005  # of the figures of a method: other machines round otherwise

Table = dict[str, Any]
"""`columns`, `align` (as Markdown writes it), `rows`, and until it is kept its `source`."""


def pages(root: Path = ROOT) -> list[Path]:
    """All pages that may show figures."""
    found = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("paper/**/*.md")]
    return sorted(found)


def tables_in(text: str) -> dict[str, Table]:
    r"""Every Markdown table of a text, with a name from the heading or the title before it.

    Example:
        >>> text = "## Time per row\n\n| model | ms |\n|---|---:|\n| all trees | 1.7 |\n"
        >>> tables_in(text)["time-per-row"]["rows"]
        [['all trees', '1.7']]
    """
    title, found, block = "table", dict[str, Table](), list[str]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            block.append(line)
            continue
        if len(block) > 2:
            name = slug(title)
            while name in found:
                stem, _, number = name.rpartition("--")
                name = f"{stem}--{int(number) + 1}" if stem else f"{name}--2"
            header, align, *rows = (cells(line) for line in block)
            source = "\n".join(block)
            found[name] = {"columns": header, "align": align, "rows": rows, "source": source}
        block = []
        if heading := re.match(r"#+ (.*)|\*\*(.+?)\*\*$", line):
            title = heading[1] or heading[2]
    return found


def cells(line: str) -> list[str]:
    r"""The texts of one row.

    Example:
        >>> cells("| a | 1 \\| 2 | |")
        ['a', '1 \\| 2', '']
    """
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def slug(title: str) -> str:
    """A title as a name.

    Example:
        >>> slug("EfficientNet-Lite0, 64 px: `Runner`")
        'efficientnet-lite0-64-px-runner'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower())[:60].strip("-") or "table"


def markdown(table: Table) -> str:
    """A table as a page shows it.

    Example:
        >>> print(markdown({"columns": ["a"], "align": ["---:"], "rows": [["1"]]}))
        | a |
        |---:|
        | 1 |
    """
    lines = [row(table["columns"]), f"|{'|'.join(table['align'])}|", *map(row, table["rows"])]
    return "\n".join(lines)


def row(texts: list[str]) -> str:
    """One row, where an empty cell is one space wide."""
    return "|" + "|".join(f" {text} " if text else " " for text in texts) + "|"


def filled(text: str, root: Path = ROOT) -> str:
    """A page with its tables as the JSON files have them.

    Raises:
        SystemExit: A page names a file or a table that is not there.
    """

    def table(match: re.Match[str]) -> str:
        found = read(match[2], root)["tables"]
        if match[3] not in found:
            raise SystemExit(f"{match[2]} has no table {match[3]!r}, but {', '.join(found)}")
        return f"{match[1]}{markdown(found[match[3]])}\n<!-- end -->"

    def source(match: re.Match[str]) -> str:
        about = read(match[2], root)
        where = f"{about['date']}, {about['machine']}, commit {about['commit']}"
        older = f" {about['older']}" if "older" in about else ""
        return f"{match[1]} *Measured: {where}; `{about['command']}`.{older}*"

    return MEASURED.sub(source, TABLE.sub(table, text))


def read(place: str, root: Path) -> dict[str, Any]:
    """A JSON file of figures."""
    path = root / place
    if not path.is_file():
        raise SystemExit(f"there is no {place}: write it with tools/figures.py --measure {place}")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def as_json(figures: dict[str, Any]) -> str:
    """JSON with a line for each row of a table, so that a change of one figure is one line.

    Example:
        >>> print(as_json({"rows": [["all trees", "1.7"]]}), end="")
        {
         "rows": [
          ["all trees", "1.7"]
         ]
        }
    """
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    innermost = re.compile(r"\[\s+((?:\"(?:[^\"\\]|\\.)*\",?\s+)+)\]")
    joined = innermost.sub(lambda found: f"[{re.sub(NEXT_LINE, ' ', found[1]).strip()}]", text)
    return f"{joined}\n"


def signatures() -> dict[str, list[float]]:
    """By label, what methods give on a made-up network: EEFP, and accuracy at half of the compute.

    They stand in each file of figures that shows the method. So a test notices when a method has
    changed since a page was measured, and not when its code was only moved.
    """
    splits = synthetic.ledgers(seed=0, samples=400, exits=5, classes=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSamplesWarning)
        found = compare(
            **splits, methods=METHODS, budgets=[0.5], seeds=1, resamples=2, progress=False
        )
    return {
        method.label: [round(method.figures[key].value, 3) for key in ("eefp", "accuracy@0.5")]
        for method in found.methods
    }


def changed(about: dict[str, Any], now: dict[str, list[float]]) -> list[str]:
    """The methods in the tables of a file that gave other figures, or none, when it was written.

    Example:
        >>> about = {"tables": {"t": {"rows": [["CCCT", "66"]]}}, "methods": {"CCCT": [0.8, 0.66]}}
        >>> changed(about, {"CCCT": [0.801, 0.66], "EEFP": [0.8, 0.6]})
        []
        >>> changed(about, {"CCCT": [0.82, 0.66]})
        ['CCCT']
    """
    before = about.get("methods", {})
    return [
        label
        for label in shown(about["tables"], now)
        if np.abs(np.subtract(now[label], before.get(label, np.inf))).max() > TOLERANCE
    ]


def shown(tables: dict[str, Table], labels: Iterable[str]) -> list[str]:
    """Which of these labels are in tables."""
    rows = [row for table in tables.values() for row in table["rows"]]
    cells = {cell for row in rows for cell in row}
    return [label for label in labels if label in cells]


def measure(place: Path, command: list[str], file: Path | None) -> None:
    """Run a command, show what it prints, and keep its tables."""
    printed = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            sys.stdout.write(line)
            printed.append(line)
    if run.returncode:
        raise SystemExit(f"the command failed with {run.returncode}; {place} was not written")
    tables = tables_in(file.read_text() if file else "".join(printed))
    if not tables:
        raise SystemExit(f"the command printed no table; {place} was not written")
    keep(place, " ".join(command), tables)
    print(f"{place}: {', '.join(tables)}")


def keep(place: Path, command: str, tables: dict[str, Table]) -> None:
    """Write tables as JSON, with where they come from."""
    commit = ["git", "rev-parse", "--short", "HEAD"]
    about: dict[str, Any] = {
        "command": command,
        "date": str(date.today()),
        "machine": machine_name(),
        "commit": subprocess.check_output(commit, text=True, cwd=ROOT).strip(),
    }
    if shown(tables, METHOD_LABELS):
        now = signatures()
        about["methods"] = {label: now[label] for label in shown(tables, now)}
    parts = "columns", "align", "rows"
    kept = {name: {part: table[part] for part in parts} for name, table in tables.items()}
    place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, as_json(about | {"tables": kept}))


def referred(text: str, place: str) -> str:
    r"""A page that a command has written, with a reference at each of its tables.

    Example:
        >>> print(referred("## Costs\n\n| a | b |\n|---|---|\n| x | 1 |", "figures.json"))
        ## Costs
        <BLANKLINE>
        <!-- figures figures.json costs -->
        | a | b |
        |---|---|
        | x | 1 |
        <!-- end -->
    """
    for name, table in tables_in(text).items():
        shown = f"<!-- figures {place} {name} -->\n{markdown(table)}\n<!-- end -->"
        text = text.replace(table["source"], shown, 1)
    return text


def main() -> None:
    """Write the tables into the pages, check them, or measure."""
    first, *_, notes = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=notes, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if a page would"
    )
    parser.add_argument("--measure", type=Path, metavar="JSON", help="run a command, keep tables")
    parser.add_argument("--from", dest="file", type=Path, help="file that the command writes")
    parser.add_argument("command", nargs="*", help="behind --: what to run")
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.command, options.file)
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            stale.append(str(page.relative_to(ROOT)))
            if not options.check:
                page.write_text(new, encoding="utf-8")
    if stale:
        print(f"{'stale' if options.check else 'written'}: {', '.join(stale)}")
    if options.check and stale:
        raise SystemExit("run make figures")


if __name__ == "__main__":
    main()
