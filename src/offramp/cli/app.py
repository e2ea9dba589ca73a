"""The command line: each command parses its options and makes one public call."""

import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Annotated

import typer

from offramp import __version__
from offramp.cli.compare import (
    advise_command,
    compare_command,
    demo_command,
    methods_command,
)
from offramp.cli.console import err, note, out
from offramp.cli.doctor import doctor_command, welcome
from offramp.cli.export_serve import export_command, serve_command
from offramp.cli.fit import auto_command, certify_command, fit_command
from offramp.cli.inspect_report import inspect_command, report_command
from offramp.cli.predict_bench import bench_command, predict_command, profile_command
from offramp.cli.quick import quick_command
from offramp.cli.record import chain_command, record_command
from offramp.cli.settings import with_options
from offramp.cli.train import train_command
from offramp.cli.trees import trees_command
from offramp.errors import ConfigError, OfframpError, OriginWarning
from offramp.imports import install_command, missing_torch
from offramp.registry import COMMANDS, METHODS

app = typer.Typer(
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Decide, input by input, when a model has computed enough.\n\n"
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
            help="Import this method of an installed package first, to read policies with its "
            "scorer or answer.",
        ),
    ] = None,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit
    for name in plugins or ():
        if name not in METHODS.plugins():
            known = ", ".join(METHODS.plugins()) or "none"
            raise ConfigError(
                f"--plugin: no installed package has a method {name!r}; known are: {known}"
            )
        import_module("offramp.methods").plugin_method(name)
    if context.invoked_subcommand is None:
        welcome()


for command in (
    *(compare_command, fit_command, auto_command, certify_command, advise_command),
    inspect_command,
    methods_command,
    *(train_command, chain_command, record_command, export_command, serve_command),
    predict_command,
    *(quick_command, profile_command, bench_command, trees_command),
    *(report_command, demo_command, doctor_command),
):
    name = command.__name__.removesuffix("_command")
    app.command(name)(with_options(name, command))


def _of_package(name: str, package: str | None) -> Callable[[typer.Context], None]:
    """A command of an installed package, which reads its arguments itself, `--help` as well.

    It is registered as an entry point of `offramp.commands`: a function of a list of arguments.
    The package is imported when the command is called. None: offramp-paper, not installed.
    """

    def run(context: typer.Context) -> None:
        if package is None:
            command = install_command("offramp-paper")
            raise ConfigError(f"offramp {name} comes with the package offramp-paper: {command}")
        main = COMMANDS.plugin(name)
        assert callable(main), f"{package} registers {name!r}, which is no function"
        main(context.args)

    run.__doc__ = f"From the package {package or 'offramp-paper, which is not installed'}."
    return run


for name, package in {**dict.fromkeys(COMMANDS.paper), **COMMANDS.plugins()}.items():
    app.command(
        name,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(with_options(name, _of_package(name, package)))


def main() -> None:
    """Run the command line; a user's mistake becomes one line and exit code 2."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    # typer would turn Ctrl-C into a silent exit.
    signal.signal(signal.SIGINT, _interrupted)
    try:
        with missing_torch():
            app(prog_name="offramp")
    except (OfframpError, OSError) as error:
        note(f"offramp: {error}", style="red")
        sys.exit(2)


def _interrupted(*_: object) -> None:
    # Straight to the descriptor: the signal may arrive in the middle of a write to stderr, and
    # Python's streams refuse a nested write.
    command = shlex.join(["offramp", *sys.argv[1:]])
    text = (
        "offramp: interrupted; all files written so far are complete, and the same command "
        f"resumes:\n  {command}"
    )
    os.write(2, f"\n{text}\n".encode())
    sys.exit(130)


_noted: set[str] = set()


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Show each warning once, in one line."""
    text = str(message)
    if issubclass(category, OriginWarning) and "ledger" in text:
        text = (
            "the ledgers do not name their network, and a mix-up would go unnoticed; in an .npz, "
            "an array `network` with any text names it"
        )
    if text not in _noted:
        _noted.add(text)
        err.print(f"note: {text}")
