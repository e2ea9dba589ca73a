"""Optional dependencies: imported when they are used, named when they are missing."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from offramp.errors import MissingExtraError


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


def installed_version(package: str) -> str | None:
    """Version of a package, or None where it is not installed; nothing is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
