"""The consoles of the command line: results go to stdout, everything else to stderr.

`--json` turns the results of any command into one JSON document, `--quiet` silences stderr but for
errors, and `--verbose` shows there what the library logs.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from offramp.errors import OfframpError
from offramp.progress import PLAIN, WIDTH
from offramp.progress import console as err

if TYPE_CHECKING:
    from offramp.report import ResultTable

__all__ = ["configured", "err", "note", "out"]

logger = logging.getLogger("offramp")


class Results(Console):
    """Where results are printed, or with `--json` gathered."""

    gathered: dict[str, Any] | None = None  # None: they are printed at once

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as in rich
        """Print, or gather as lines of text."""
        if self.gathered is None:
            super().print(*objects, **options)
            return
        lines = "\n".join(map(str, objects)).splitlines()
        self.gathered.setdefault("text", []).extend(line.strip() for line in lines if line.strip())

    def show(self, table: "ResultTable") -> None:
        """Print a table, or gather its rows."""
        if self.gathered is None:
            super().print(table.rich(), soft_wrap=False)
            return
        texts = [[cell.text for cell in row] for row in table.rows]
        content: dict[str, Any] = {"name": table.name, "title": table.title}
        if any(table.columns):
            rows = [dict(zip(table.columns, row, strict=True)) for row in texts]
            content |= {"rows": rows, "caption": table.caption}
        else:
            content["facts"] = {row[0]: row[1] for row in texts}
        self.gathered.setdefault("tables", []).append(content)

    def give(self, **values: Any) -> None:  # noqa: ANN401 - JSON values
        """Numbers and paths behind what is printed, for `--json` only."""
        if self.gathered is not None:
            from offramp.files import plain

            self.gathered |= {name: plain(value) for name, value in values.items()}


out = Results(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=True, **PLAIN)


def note(text: str, style: str | None = None) -> None:
    """One line on stderr."""
    err.print(text, style=style, soft_wrap=True)


@contextmanager
def configured(command: str, as_json: bool, quiet: bool, verbose: bool) -> Iterator[None]:
    """Print the results of a command as its common options say."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
    before, start = logger.level, time.perf_counter()
    out.gathered = {"command": command} if as_json else None
    err.quiet = quiet
    if verbose:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield
    except (OfframpError, OSError, ImportError):
        out.gathered = None  # an error is no result
        raise
    else:
        logger.debug("%s took %.1f s", command, time.perf_counter() - start)
    finally:
        gathered, out.gathered, err.quiet = out.gathered, None, False
        logger.removeHandler(handler)
        logger.setLevel(before)
        if gathered is not None and len(gathered) > 1:
            out.print(json.dumps(gathered, indent=1, default=str), soft_wrap=True)
