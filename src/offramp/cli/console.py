"""The consoles of the command line: results go to stdout, everything else to stderr."""

import sys

from rich.console import Console

from offramp.progress import PLAIN, WIDTH
from offramp.progress import console as err

__all__ = ["err", "out"]

out = Console(width=None if sys.stdout.isatty() else WIDTH, **PLAIN)
