"""Packages whose public names are imported when they are first asked for.

torch takes seconds and 180 MB. The command line answers `--help`, Tab and most mistakes without
it, and what `export` wrote is served without it.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package that knows in which of its modules each public name is."""

    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        home = self._homes.get(name, name)
        if home.startswith("_") or find_spec(f"{self.__name__}.{home}") is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module = import_module(f"{self.__name__}.{home}")
        found = getattr(module, name) if name in self._homes else module
        super().__setattr__(name, found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        """Keep functions such as `attach` in front of the modules of the same names."""
        if not (name in self._homes and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._homes})


def import_when_asked(package: str, homes: Mapping[str, str]) -> None:
    """Make a package lazy: `homes` says for each public name which of its modules has it."""
    module = sys.modules[package]
    module.__dict__["_homes"] = homes
    module.__class__ = LazyPackage
