"""Optional dependencies: imported when they are used, named when they are missing."""

import re
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from types import ModuleType

from offramp.errors import MissingExtraError, PluginError

FEATURES = {
    "train": "data sets, models of transformers, the hub, several processes",
    "report": "figures, and the page report.html",
    "onnx": "offramp export, and OnnxRunner",
    "serve": "offramp serve",
    "ray": "several machines",
    "lite0": "EfficientNet-Lite0 with ImageNet weights",
    "timm": "models of timm in attach",
    "torchvision": "models of torchvision in attach",
    "docs": "building the documentation site",
}
"""What each extra of `offramp` is for."""


def install_command(extra: str) -> str:
    """The command that installs an extra, `pip install 'offramp[report]'`; and for a clone."""
    clone = Path(__file__).parents[2]
    here = f" (for this clone: pip install -e '{clone}[{extra}]')"
    return f"pip install 'offramp[{extra}]'" + here * (clone / "pyproject.toml").is_file()


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or raise `MissingExtraError` with how to install its extra.

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
        raise MissingExtraError(
            f"`{error.name}` is not installed; this feature needs the extra `{extra}`: "
            f"{install_command(extra)}"
        ) from None


@dataclass(frozen=True)
class Extra:
    """One extra, and what of it is installed."""

    name: str
    found: dict[str, str]  # versions of its packages that are installed, by name
    missing: tuple[str, ...]  # names of those that are not


def installed_version(package: str) -> str | None:
    """Version of a package, or None where it is not installed; nothing is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extras() -> list[Extra]:
    """Every extra in `FEATURES`, as the installed package declares it; nothing is imported."""
    try:
        lines = requires("offramp") or []
    except PackageNotFoundError:  # run from its folder, without having been installed
        lines = []
    made = []
    for name in FEATURES:
        wanted = [_package(line) for line in lines if _extra(line) == name]
        versions = {package: installed_version(package) for package in wanted}
        found = {package: each for package, each in versions.items() if each is not None}
        missing = tuple(package for package in wanted if package not in found)
        made.append(Extra(name, found, missing))
    return made


def _package(line: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", line)
    assert found is not None, "a requirement begins with a name"
    return found.group()


def _extra(line: str) -> str | None:
    found = re.search(r"""extra\s*==\s*["']([^"']+)["']""", line)
    return None if found is None else found.group(1)


METHODS, THRESHOLDS, COMMANDS = "offramp.methods", "offramp.thresholds", "offramp.commands"
"""Groups of entry points, by which packages add methods, thresholds and commands."""

_KINDS = {METHODS: "method", THRESHOLDS: "threshold method", COMMANDS: "command"}

PAPER_METHODS = ("pcee", "eenet", "gates", "stacking", "eefp-stacking", "beyond")
PAPER_COMMANDS = ("theory",)


def paper_command() -> str:
    """The command that installs offramp-paper; and for a clone."""
    clone = Path(__file__).parents[2] / "paper"
    here = f" (for this clone: pip install -e '{clone}')"
    return "pip install offramp-paper" + here * (clone / "pyproject.toml").is_file()


def plugin_origins(group: str = METHODS) -> dict[str, str]:
    """Everything in a group, and the packages that it comes from; nothing is imported."""
    return {
        name: " and ".join(map(_provider, found)) for name, found in _registered(group).items()
    }


def load_plugin(name: str, group: str = METHODS) -> object | None:
    """What a package has registered under a name, or None; two packages raise `PluginError`."""
    found, kind = _registered(group).get(name, []), _KINDS[group]
    if not found:
        return None
    if len(found) > 1:
        both = " and ".join(map(_provider, found))
        raise PluginError(f"the {kind} {name!r} is registered by {both}; uninstall one of them")
    (entry,) = found
    try:
        loaded: object = entry.load()
    # Someone else's code can fail in any way, and must not look like ours.
    except Exception as error:
        package = _provider(entry)
        raise PluginError(
            f"the {kind} {name!r} of the package {package} cannot be loaded from {entry.value}: "
            f"{type(error).__name__}: {error}; update or uninstall {package.split()[0]}"
        ) from error
    return loaded


def import_hint(class_name: object) -> str:
    """How to define a class that a file names: by import, or by naming its package's method."""
    entries = [entry for found in _registered(METHODS).values() for entry in found]
    exact = [entry for entry in entries if entry.attr == class_name]
    if exact:
        entry = exact[0]
        return (
            f"the package {_provider(entry)} has one of that name; nothing is imported because "
            f"a file says so: import {entry.module} before loading, or on the command line say "
            f"offramp --plugin {entry.name} ..."
        )
    names = ", ".join(entry.name for entry in entries)
    return (
        "if it is your own class, import its module before loading; on the command line, register "
        "it in a package (entry points `offramp.methods`) and say offramp --plugin NAME ..."
        + (f" (installed: {names})" if names else "")
    )


def _registered(group: str) -> dict[str, list[EntryPoint]]:
    """By name; a package that is found twice on the path counts once."""
    found: dict[str, dict[tuple[str, str], EntryPoint]] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, {}).setdefault((_provider(entry), entry.value), entry)
    return {name: list(entries.values()) for name, entries in sorted(found.items())}


def _provider(entry: EntryPoint) -> str:
    """Name and version of the package of an entry."""
    return (
        "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    )
