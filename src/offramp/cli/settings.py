"""Options of commands, made from what their functions and classes of settings say in Python.

Every argument of a command is an option with its name, type and default; the help is what the
docstring says of it. An argument may stand for a group of settings, such as `config: ServeConfig`:
then every field of that dataclass is an option.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, is_dataclass
from functools import wraps
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import typer

from offramp.cli.console import configured
from offramp.errors import ConfigError

Given = dict[str, Any]
"""In `Annotated[Given, TrainConfig]`: the settings that were given, without any default."""

NONE = "none"  # switches a setting off whose default is a number

_SEQUENCES = (tuple, Sequence)  # written with commas


@dataclass(frozen=True)
class Common:
    """Options of every command.

    Args:
        as_json: Print the results as one JSON document.
        quiet: Print results and errors only.
        verbose: Show on stderr what the library logs.
    """

    as_json: Annotated[bool, typer.Option("--json")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False


def completing(names: Sequence[str]) -> Callable[[str], list[str]]:
    """A function for the Tab key that knows these names, also after a comma."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def numbers(name: str, text: str, kind: type[float] = float) -> list[float]:
    """Comma-separated numbers of an option; whole ones where `kind` is int."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        wanted = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{name} must be comma-separated {wanted}, got {text!r}") from None


def split_names(text: str) -> list[str]:
    """The names in a comma-separated option."""
    return [name.strip() for name in text.split(",") if name.strip()]


def with_options(name: str, command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer takes it: with the options of its settings and of all commands."""
    context = inspect.Parameter(
        "context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
    )
    parameters = [context, *_options(command), *_options(Common)]

    @wraps(command)
    def run(context: typer.Context, **given: Any) -> None:  # noqa: ANN401 - as the options are
        common = Common(**_arguments(Common, given, context))
        with configured(name, common.as_json, common.quiet, common.verbose):
            command(**_arguments(command, given, context))

    run.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    text, _, _ = (inspect.getdoc(command) or "").partition("\n\nArgs:\n")
    # typer keeps the ends of lines in all paragraphs but the first
    run.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", text)
    return run


def _options(owner: Callable[..., object]) -> Iterator[inspect.Parameter]:
    """What a command or a class of settings takes, as arguments of which typer makes options."""
    for each in inspect.signature(owner).parameters.values():
        if (group := _group(each)) is not None:
            yield from _options(group)
        elif each.annotation is not typer.Context:
            yield _option(each, owner)


def _option(setting: inspect.Parameter, owner: Callable[..., object]) -> inspect.Parameter:
    kind, info, default = setting.annotation, typer.Option(), setting.default
    if get_origin(kind) is Annotated:  # it has a word to say on how it is written
        kind, info = kind.__origin__, copy(kind.__metadata__[0])
    elif not owner.__module__.startswith(__package__):
        info.rich_help_panel = f"{owner.__name__}, as in Python"
    texts = (described(owner).get(setting.name), info.help)
    info.help = " ".join(filter(None, texts)).replace("[", r"\[")
    if get_origin(_value_type(setting)) in _SEQUENCES:
        kind, default = str | None, ",".join(map(str, default or ())) or None
    elif _may_be_switched_off(setting):
        kind, default = str, str(default)
    return setting.replace(
        kind=inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info], default=default
    )


def _arguments(
    owner: Callable[..., object], given: Mapping[str, Any], context: typer.Context
) -> dict[str, Any]:
    """What a command or a class of settings is called with, from the values of its options."""
    found: dict[str, Any] = {}
    for name, each in inspect.signature(owner).parameters.items():
        if (group := _group(each)) is not None:
            values = _arguments(group, given, context)
            if get_origin(each.annotation) is Annotated:
                found[name] = {key: values[key] for key in values if _is_given(context, key)}
            else:
                found[name] = group(**values)
        else:
            found[name] = context if name == "context" else _read(each, given[name])
    return found


def _group(argument: inspect.Parameter) -> Any:  # noqa: ANN401 - a class, or None
    """The dataclass whose fields are options, if an argument stands for one."""
    kind = argument.annotation
    if get_origin(kind) is Annotated and kind.__origin__ == Given:
        (kind,) = kind.__metadata__
    return kind if is_dataclass(kind) else None


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _read(setting: inspect.Parameter, value: Any) -> Any:  # noqa: ANN401 - as the option is
    """The value of a setting, from the value of its option."""
    kind, option = _value_type(setting), f"--{setting.name.replace('_', '-')}"
    if get_origin(kind) in _SEQUENCES:
        if value is None:
            return setting.default
        each = get_args(kind)[0]
        return tuple(split_names(value) if each is str else numbers(option, value, each))
    if not _may_be_switched_off(setting):
        return value
    try:
        return None if value.lower() == NONE else kind(value)
    except ValueError:
        raise ConfigError(f"{option} must be a number, or {NONE}, got {value!r}") from None


def _value_type(setting: inspect.Parameter) -> Any:  # noqa: ANN401 - a type
    """The type of a setting's values, besides None."""
    kind = setting.annotation
    kind = kind.__origin__ if get_origin(kind) is Annotated else kind
    if get_origin(kind) is not UnionType:
        return kind
    (kind,) = (each for each in get_args(kind) if each is not type(None))
    return kind


def _may_be_switched_off(setting: inspect.Parameter) -> bool:
    is_optional = get_origin(setting.annotation) is UnionType
    return is_optional and setting.default is not None


def described(owner: Callable[..., object]) -> Mapping[str, str]:
    """What the docstring of a function, or of a class and its parents, says of each argument.

    Example:
        >>> from offramp.serving import ServeConfig
        >>> described(ServeConfig)["port"]
        'Port to listen on, 1 to 65535.'
    """
    found = {}
    for each in reversed(getattr(owner, "__mro__", (owner,))):
        docstring = f"{inspect.cleandoc(each.__doc__ or '')}\n"
        section = re.search(r"^Args:\n((?:(?: {4}.*)?\n)*)", docstring, re.M)
        for name, text in re.findall(
            r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.M
        ):
            found[name] = " ".join(text.replace("`", "").split())
    return found
