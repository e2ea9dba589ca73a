"""Commands of installed packages: entry points `offramp.commands`.

Such a command is a function of a list of arguments, `main(["--scale", "small"])`, that answers
`--help` itself. Nothing of the package is imported before its command is called.
"""

from collections.abc import Callable
from typing import Any

import typer

from offramp.errors import ConfigError
from offramp.registry import COMMANDS, paper_command

PASSED_ON: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


def plugin_commands() -> dict[str, Callable[[typer.Context], None]]:
    """Commands of installed packages by name; and of the paper, where that is not installed."""
    found = COMMANDS.plugins()
    made = {name: _command(name, package) for name, package in found.items()}
    return {**{name: _missing(name) for name in COMMANDS.paper if name not in made}, **made}


def _command(name: str, package: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        main = COMMANDS.plugin(name)
        assert callable(main), f"{package} registers {name!r}, which is no function"
        main(context.args)

    run.__name__, run.__doc__ = name, f"From the package {package}."
    return run


def _missing(name: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        raise ConfigError(
            f"offramp {name} comes with the package offramp-paper: {paper_command()}"
        )

    run.__name__, run.__doc__ = name, "From the package offramp-paper, which is not installed."
    return run
