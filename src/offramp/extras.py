"""Optional dependencies: imported when they are used, named when they are missing."""

from importlib import import_module
from types import ModuleType

from offramp.errors import MissingExtraError

__all__ = ["require"]


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say how to install it.

    Args:
        module: Dotted name of the module.
        extra: The extra of `offramp` that brings it.

    Raises:
        MissingExtraError: The module is not installed.

    Example:
        >>> require("json", extra="report").dumps([1])
        '[1]'
        >>> require("no_such_module", extra="report")
        Traceback (most recent call last):
        offramp.errors.MissingExtraError: `no_such_module` is not installed; this feature needs
        the extra `report`: pip install 'offramp[report]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but lacks one of its own dependencies is a different mishap.
        if error.name != module.partition(".")[0]:
            raise
        raise MissingExtraError(
            f"`{error.name}` is not installed; this feature needs the extra `{extra}`: "
            f"pip install 'offramp[{extra}]'"
        ) from None
