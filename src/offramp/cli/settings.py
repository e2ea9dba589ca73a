"""Options of commands, made from the fields of frozen dataclasses.

A command takes one object per group of settings, such as `config: ServeConfig`. Typer knows
options by a signature alone, so it is given one in which every field is an option, with the
field's name, type and default. The help is what the docstring of the class says of the field.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
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
    """Options of every command."""

    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as one JSON document.")
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results and errors only.")
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show on stderr what the library logs.")
    ] = False


def completing(names: Sequence[str]) -> Callable[[str], list[str]]:
    """A function for the Tab key that knows these names, also after a comma."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def numbers(name: str, text: str) -> list[float]:
    """Comma-separated numbers of an option."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{name} must be comma-separated numbers, got {text!r}") from None


def whole_numbers(name: str, text: str) -> list[int]:
    """Comma-separated whole numbers of an option."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{name} must be comma-separated whole numbers, got {text!r}") from None


def split_names(text: str) -> list[str]:
    """The names in a comma-separated option."""
    return [name.strip() for name in text.split(",") if name.strip()]


def with_options(name: str, command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer takes it: with the options of its settings and of all commands."""
    own = inspect.signature(command).parameters
    groups = {key: kind for key, each in own.items() if (kind := _settings(each.annotation))}
    parameters = [_named("context", typer.Context)]
    for key, each in own.items():
        if key in groups:
            parameters += [_option(field, groups[key]) for field in fields(groups[key])]
        elif key != "context":
            parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    parameters += [_option(field, Common) for field in fields(Common)]

    @wraps(command)
    def run(**given: Any) -> None:  # noqa: ANN401 - as the options are
        context = given["context"] if "context" in own else given.pop("context")
        common = Common(**{field.name: given.pop(field.name) for field in fields(Common)})
        with configured(name, common.as_json, common.quiet, common.verbose):
            for key, kind in groups.items():
                values = {each.name: _read(each, given.pop(each.name)) for each in fields(kind)}
                given[key] = kind(**values)
                if get_origin(own[key].annotation) is Annotated:
                    given[key] = {k: v for k, v in values.items() if _is_given(context, k)}
            command(**given)

    run.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    # typer keeps the ends of lines in all paragraphs but the first
    run.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command) or "")
    return run


def _settings(annotation: Any) -> Any:  # noqa: ANN401 - a class, or None
    """The dataclass whose fields are options, if an argument stands for one."""
    kind = annotation
    if get_origin(annotation) is Annotated and get_args(annotation)[0] == Given:
        kind = get_args(annotation)[1]
    return kind if is_dataclass(kind) else None


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _named(name: str, annotation: Any, default: Any = MISSING) -> inspect.Parameter:  # noqa: ANN401
    default = inspect.Parameter.empty if default is MISSING else default
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _option(field: Field[Any], owner: type) -> inspect.Parameter:
    """One field as an argument of which typer makes an option."""
    if get_origin(field.type) is Annotated:  # it says itself how it is written
        return _named(field.name, field.type, field.default)
    kind: Any = _kind(field)
    default: Any = field.default
    if get_origin(kind) in _SEQUENCES:
        kind, default = str, ",".join(map(str, default)) or None
    elif _may_be_switched_off(field):
        kind, default = str, str(default)
    info = typer.Option(
        help=described(owner)[field.name].replace("[", r"\["),
        rich_help_panel=f"{owner.__name__}, as in Python",
    )
    return _named(field.name, Annotated[kind | None, info], default)


def _read(field: Field[Any], value: Any) -> Any:  # noqa: ANN401 - as the option and the field are
    """The value of a field, from the value of its option."""
    if get_origin(field.type) is Annotated:
        return value
    if value is None:
        return field.default
    kind, option = _kind(field), f"--{field.name.replace('_', '-')}"
    if get_origin(kind) in _SEQUENCES:
        return _READERS[get_args(kind)[0]](option, value)
    if not _may_be_switched_off(field):
        return value
    try:
        return None if value.lower() == NONE else kind(value)
    except ValueError:
        raise ConfigError(f"{option} must be a number, or {NONE}, got {value!r}") from None


def _kind(field: Field[Any]) -> Any:  # noqa: ANN401 - a type
    """The type of a field's values, besides None."""
    if get_origin(field.type) is not UnionType:
        return field.type
    (kind,) = (each for each in get_args(field.type) if each is not type(None))
    return kind


def _may_be_switched_off(field: Field[Any]) -> bool:
    return get_origin(field.type) is UnionType and field.default is not None


_READERS: dict[type, Callable[[str, str], tuple[object, ...]]] = {
    str: lambda _, text: tuple(split_names(text)),
    int: lambda option, text: tuple(whole_numbers(option, text)),
    float: lambda option, text: tuple(numbers(option, text)),
}


def described(kind: type) -> Mapping[str, str]:
    """What the docstrings of a class and its parents say of each argument, as plain text.

    Example:
        >>> from offramp.serving import ServeConfig
        >>> described(ServeConfig)["port"]
        'Port to listen on, 1 to 65535.'
    """
    return dict(pair for each in reversed(kind.__mro__) for pair in _arguments(each.__doc__ or ""))


def _arguments(docstring: str) -> Iterator[tuple[str, str]]:
    section = re.search(r"^Args:\n((?:(?: {4}.*)?\n)*)", f"{inspect.cleandoc(docstring)}\n", re.M)
    for name, text in re.findall(
        r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.M
    ):
        yield name, " ".join(text.replace("`", "").split())
