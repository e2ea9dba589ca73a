"""What is imported when it is asked for: public names of packages, and optional packages.

torch takes seconds to import, and is an extra. Decisions about saved logits do without it, as
do `--help`, Tab, and serving what `export` wrote. Where an optional package is missing, the error
has its pip command.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any, NoReturn

from offramp.errors import MissingExtraError


class LazyPackage(ModuleType):
    """A package that knows which module each of its public names is imported from."""

    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        try:
            with missing_torch():
                if name in self._homes:
                    found = getattr(import_module(self._homes[name]), name)
                elif name.startswith("_") or find_spec(f"{self.__name__}.{name}") is None:
                    raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
                else:
                    found = import_module(f"{self.__name__}.{name}")
        except MissingExtraError as error:
            return NotInstalled(str(error))
        super().__setattr__(name, found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        """Keep functions such as `attach` in front of the modules of the same names."""
        if not (name in self._homes and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._homes})


class NotInstalled:
    """Stands for a public name that needs an extra: any use of it says which one.

    To ask for the name is no use: `hasattr`, `dir`, `inspect` and `from ... import` never fail.

    Example:
        >>> runner = NotInstalled("`torch` is not installed")
        >>> isinstance(1, runner), runner
        (False, <`torch` is not installed>)
        >>> runner(1)
        Traceback (most recent call last):
        offramp.errors.MissingExtraError: `torch` is not installed
    """

    def __init__(self, message: str) -> None:
        self._message = message

    def __repr__(self) -> str:
        return f"<{self._message}>"

    def __instancecheck__(self, value: object) -> bool:
        return False

    def __call__(self, *arguments: object, **named: object) -> NoReturn:
        """Raise."""
        raise MissingExtraError(self._message)

    __mro_entries__ = __call__  # a class that inherits from it

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what inspect, copy and doctest look for
            raise AttributeError(name)
        raise MissingExtraError(self._message)


def import_when_asked(package: str) -> None:
    """Make a package lazy: names are imported as it states for type checkers.

    The package has its imports under `if TYPE_CHECKING:`, and this reads them from its source.
    """
    module: Any = sys.modules[package]
    source: str = module.__spec__.loader.get_source(package)
    stated = (
        each
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for each in block.body
    )
    module.__dict__["_homes"] = {
        alias.name: each.module
        for each in stated
        if isinstance(each, ast.ImportFrom) and each.module and each.module != package
        for alias in each.names
    }
    module.__class__ = LazyPackage


def install_command(package: str) -> str:
    """The command that installs `offramp[report]`, say, or `offramp-paper`; and for a clone."""
    name, bracket, extra = package.partition("[")
    clone = Path(__file__).parents[2] / ("paper" if name == "offramp-paper" else "")
    here = f" (for this clone: pip install -e '{clone}{bracket}{extra}')"
    return f"pip install {quote(package)}" + here * (clone / "pyproject.toml").is_file()


def require(module: str, extra: str, without: str = "") -> ModuleType:
    """Import an optional module, or raise `MissingExtraError` with how to install its extra.

    Args:
        module: Its name.
        extra: That installs it.
        without: What works without it, for the message.

    Example:
        >>> require("json", extra="report").dumps([1])
        '[1]'
        >>> require("no_such_module", extra="report")
        Traceback (most recent call last):
        offramp.errors.MissingExtraError: `no_such_module` is not installed; this feature needs
        the extra `report`: pip install 'offramp[report]'...
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # a module that is there but lacks one of its own dependencies is a different mishap.
        if error.name != module.partition(".")[0]:
            raise
        raise _missing(error.name, extra, without) from None


@contextmanager
def missing_torch() -> Iterator[None]:
    """Say how to install torch where modules that need it are imported without it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise _missing("torch", "torch") from None


def _missing(package: str, extra: str, without: str = "") -> MissingExtraError:
    return MissingExtraError(
        f"`{package}` is not installed; this feature needs the extra `{extra}`: "
        f"{install_command(f'offramp[{extra}]')}" + f"; {without}" * bool(without)
    )


def installed_version(package: str) -> str | None:
    """Version of a package, or None where it is not installed; nothing is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
