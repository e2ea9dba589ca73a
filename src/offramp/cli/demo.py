"""The command `demo`."""

from pathlib import Path
from typing import Annotated

import typer

from offramp.cli.console import out
from offramp.cli.options import Device


def demo_command(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path(
        "runs/demo"
    ),
    device: Device = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", help="Few images and one epoch: all steps in seconds.")
    ] = False,
) -> None:
    """Train a small network with exits, and compare exit methods on it and on a real network.

    The small network is trained on generated images; the logits of the real one, a CIFAR-100
    network with seven exits, come with the package. A second run does nothing, and a run that was
    killed is resumed by the same command. The demo is a script to copy from: offramp/demo.py.
    """
    from offramp.demo import demo
    from offramp.report import comparison_tables, verdicts

    for name, comparison in demo(folder, device, quick).items():
        out.rule(name)
        out.show(comparison_tables(comparison)[0])  # all the others are in the report
        for sentence in verdicts(comparison):
            out.print(sentence)
    out.print(f"report: {folder / 'report.html'}")
