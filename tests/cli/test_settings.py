"""Options of commands are what their functions and classes of settings say in Python."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

import offramp
from offramp.cli.app import app
from offramp.cli.settings import Given, described, with_options
from offramp.errors import ConfigError
from offramp.serving import ServeConfig
from offramp.timing import BenchConfig, bench
from offramp.timing.config import CLOCKS
from offramp.training import TrainConfig

COMMANDS = typer.main.get_command(app).commands


@dataclass(frozen=True)
class Settings:
    """Settings of a test.

    Args:
        count: How many, such as `3`;
            counted from 1 on.
        kind: One of two [words].
        sizes: Sizes in turn.
        patience: None: endless.
        limit: Largest number.
        is_loud: Whether to shout.
    """

    count: int = 2
    kind: Literal["plain", "fancy"] = "plain"
    sizes: Sequence[int] = (1, 2)
    patience: float | None = 3.0
    limit: int | None = None
    is_loud: bool = False


@dataclass(frozen=True)
class Words:
    """Options that say themselves how they are written."""

    word: Annotated[str, typer.Argument(help="A word.")]
    mark: Annotated[str, typer.Option("--with", help="A mark.")] = "!"


def run(command, text):
    application = typer.Typer()
    application.command()(with_options("test", command))
    result = CliRunner().invoke(application, text.split())
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_command_receives_one_object_of_settings():
    found = []

    def command(words: Words, settings: Settings, more: int = 1) -> None:
        found.append((words, settings, more))

    assert run(command, "hello").exit_code == 0
    run(command, "hello --with ? --more 5 --count 4 --kind fancy --sizes 8,16 --is-loud")
    run(command, "hello --patience none --limit 7")
    assert found == [
        (Words("hello"), Settings(), 1),
        (Words("hello", "?"), Settings(4, "fancy", (8, 16), is_loud=True), 5),
        (Words("hello"), Settings(patience=None, limit=7), 1),
    ]


def test_a_command_may_ask_for_what_was_given_alone():
    found = []

    def command(settings: Annotated[Given, Settings]) -> None:
        found.append(settings)

    run(command, "")
    run(command, "--count 2 --patience none --no-is-loud")
    assert found == [{}, {"count": 2, "patience": None, "is_loud": False}]


def test_values_that_cannot_be_read_name_their_option():
    def command(settings: Settings) -> None:
        pass

    with pytest.raises(ConfigError, match="--sizes must be comma-separated whole numbers"):
        run(command, "--sizes 1,b")
    with pytest.raises(ConfigError, match="--patience must be a number, or none, got 'x'"):
        run(command, "--patience x")
    assert run(command, "--count many").exit_code == 2


def test_the_help_is_what_the_docstring_says():
    assert described(Settings)["count"] == "How many, such as 3; counted from 1 on."

    def command(
        settings: Settings,
        names: Annotated[Sequence[str], typer.Option("--of", help="One of a, b.")] = ("a",),
    ) -> None:
        """Do nothing.

        Args:
            names: Names [in turn].
        """

    page = run(command, "--help").stdout
    for words in ("How many, such as 3", "[words]", "1,2", "Settings, as in Python"):
        assert words in page
    assert "--of" in page and "Names [in turn]. One of a, b." in page and "Args:" not in page


@pytest.mark.parametrize(
    ("command", "kind"), [("serve", ServeConfig), ("bench", BenchConfig), ("train", TrainConfig)]
)
def test_every_setting_is_an_option_with_its_help_and_default(command, kind):
    options = {option.name: option for option in COMMANDS[command].params}
    for field in fields(kind):
        option = options[field.name]
        assert f"--{field.name.replace('_', '-')}" in option.opts
        assert len(option.help) > 10
        default = option.default
        if isinstance(field.default, tuple):
            default = tuple(default.split(",")) if default else ()
            assert default == tuple(map(str, field.default))
        else:
            assert str(default) == str(field.default)


DESCRIBED = ("record", "profile", "compare", "export", "auto", "advise")


@pytest.mark.parametrize(
    ("command", "function"),
    [
        *((name, getattr(offramp, name)) for name in DESCRIBED),
        ("certify", offramp.Guarantee),
        ("bench", bench),
    ],
)
def test_defaults_are_the_defaults_of_python(command, function):
    ours = {option.name: option.default for option in COMMANDS[command].params}
    theirs = {
        name: each.default
        for name, each in inspect.signature(function).parameters.items()
        if each.default is not each.empty
    }
    renamed = {"batch_sizes": "batch_size", "runtimes": "runtime"} if command == "profile" else {}
    ours = {renamed.get(name, name): default for name, default in ours.items()}
    if "clock" in ours:  # a word for what is a function in Python
        ours["clock"] = CLOCKS[ours["clock"]]
    common = ours.keys() & theirs.keys()
    for name in common:
        default = theirs[name]
        is_sequence = isinstance(default, tuple)
        assert ours[name] == (",".join(map(str, default)) if is_sequence else default), name
    assert common or command == "bench"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_an_option_is(command):
    for option in COMMANDS[command].params:
        first = (getattr(option, "help", None) or "A").split()[0]
        assert first not in ("Of", "At", "Over", "It", "Its", "Instead:", "Whether", "By", "Where")
