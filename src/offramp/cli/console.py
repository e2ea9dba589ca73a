"""The consoles of the command line: results go to stdout, everything else to stderr."""

import sys

from rich.console import Console

# Where the output goes to a file, tables need not fold to the width of a terminal.
out = Console(width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True, width=None if sys.stderr.isatty() else 140)
