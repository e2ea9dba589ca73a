"""The sub-command `doctor`, and what `offramp` alone says."""

import sys

from rich.console import Console
from rich.markup import escape

from offramp.doctor import examine

__all__ = ["doctor_command", "welcome"]

out = Console(width=None if sys.stdout.isatty() else 140)

WELCOME = """\
[bold]offramp[/bold]: early-exit neural networks, and when to stop. What next?

[bold]Just looking[/bold]
  offramp demo                              trains, compares and writes a report, in about a minute
[bold]You have logits of every exit[/bold] (an .npz with logits, labels and costs)
  offramp advise logits.npz                 are early exits worth it here?
  offramp compare logits.npz                methods side by side
  offramp fit logits.npz --budget 0.5       a policy for half of the compute
[bold]You have a model, or want to train one[/bold]
  offramp train --data cluttered-digits --network convnet --epochs 8 --out runs/digits
  offramp record runs/digits                then compare and fit with runs/digits/ledgers
[bold]You have a network and a policy[/bold]
  offramp predict runs/digits policy/ photo.png          also: bench, export, serve
[bold]You want the paper's experiments[/bold]
  offramp studies                           lists them; offramp study NAME runs one

offramp --help lists all commands, offramp doctor says what is installed and what is missing, and
offramp --install-completion completes names with the Tab key."""


def welcome() -> None:
    """Say what to do next, by what one has."""
    out.print(WELCOME, highlight=False, soft_wrap=True)


def doctor_command() -> None:
    """Say what is installed, what this machine can do, which data are here, what is missing.

    Nothing is changed, and no optional library is imported.
    """
    for section, findings in examine().items():
        out.print(section, style="bold", highlight=False)
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            mark = "[green]+[/green]" if finding.good else "[yellow]-[/yellow]"
            text = f"  {mark} {escape(finding.what):{width}}  {escape(finding.found)}"
            out.print(text, highlight=False, soft_wrap=True)
