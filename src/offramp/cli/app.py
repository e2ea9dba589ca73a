"""The command line: one sub-command = parse + one public call."""

import os
import signal
import sys
import warnings
from typing import Annotated

import typer

from offramp import __version__
from offramp.cli.console import err, out
from offramp.cli.doctor import doctor_command, welcome
from offramp.cli.export_serve import export_command, serve_command
from offramp.cli.fit_compare import advise_command, compare_command, fit_command
from offramp.cli.inspect_report import inspect_command, report_command
from offramp.cli.predict_bench import bench_command, predict_command
from offramp.cli.run_study import demo_command, run_command, studies_command, study_command
from offramp.cli.theory import theory_command
from offramp.cli.train_record import record_command, train_command
from offramp.errors import ConfigError, OfframpError, OriginWarning
from offramp.extras import plugin_origins
from offramp.methods import plugin_method

app = typer.Typer(
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Early-exit neural networks: decide when to stop, for a compute budget.\n\n"
    "Start with `offramp demo`, or give your own per-exit logits to `offramp compare`. "
    "`offramp doctor` says what is installed and what is missing, and "
    "`offramp --install-completion` completes names with the Tab key.",
)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    plugins: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="NAME",
            help="Import this method of an installed package first, so that policies with its "
            "scorer or answer can be read.",
        ),
    ] = None,
) -> None:
    if version:
        out.print(__version__, highlight=False)
        raise typer.Exit
    for name in plugins or ():
        if plugin_method(name) is None:
            known = ", ".join(plugin_origins()) or "none"
            raise ConfigError(f"--plugin: no installed package has a method {name!r}; {known}")
    if context.invoked_subcommand is None:
        welcome()


app.command("compare")(compare_command)
app.command("fit")(fit_command)
app.command("inspect")(inspect_command)
app.command("advise")(advise_command)
app.command("train")(train_command)
app.command("record")(record_command)
app.command("export")(export_command)
app.command("serve")(serve_command)
app.command("predict")(predict_command)
app.command("bench")(bench_command)
app.command("report")(report_command)
app.command("theory")(theory_command)
app.command("run")(run_command)
app.command("studies")(studies_command)
app.command("study")(study_command)
app.command("demo")(demo_command)
app.command("doctor")(doctor_command)


def main() -> None:
    """Run the command line; what a user did wrong becomes one line and exit code 2."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    # typer would turn Ctrl-C into a silent exit.
    signal.signal(signal.SIGINT, _interrupted)
    try:
        app()
    except (OfframpError, OSError) as error:
        err.print(f"offramp: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


def _interrupted(*_: object) -> None:
    # Straight to the descriptor: the signal may arrive in the middle of a write to stderr, and
    # Python's streams refuse a second write from there.
    text = "offramp: interrupted; every file that was written is whole, run it again for the rest"
    os.write(2, f"\n{text}\n".encode())
    sys.exit(130)


_noted: set[str] = set()


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Each warning once, as one line."""
    text = str(message)
    if issubclass(category, OriginWarning):
        text = (
            "the ledgers do not say which network made them, so a mix-up would go unnoticed; an "
            ".npz names it in an array `network`, any text"
        )
    if text not in _noted:
        _noted.add(text)
        err.print(f"note: {text}", markup=False, highlight=False)
