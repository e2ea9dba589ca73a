"""Optional dependencies: imported when they are used, named when they are missing."""

import re
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from types import ModuleType

from offramp.errors import MissingExtraError

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
