"""Methods that installed packages bring, by name.

A package registers a method in its `pyproject.toml`:

    [project.entry-points."offramp.methods"]
    logit-margin = "my_package:LogitMargin"

What stands there is an `offramp.Method`, or a scorer or an answer (a class or an instance). It is
imported only when somebody names it, in Python or on the command line; a file never can.
"""

from importlib.metadata import EntryPoint, entry_points

from offramp.errors import PluginError

__all__ = ["GROUP", "import_hint", "load_plugin", "plugin_origins"]

GROUP = "offramp.methods"


def plugin_origins() -> dict[str, str]:
    """Names of all registered methods, and the packages that they come from; nothing is imported.

    Example:
        >>> isinstance(plugin_origins(), dict)
        True
    """
    return {name: " and ".join(map(_package, found)) for name, found in _registered().items()}


def load_plugin(name: str) -> object | None:
    """What a package has registered under a name, or None where none has.

    Raises:
        PluginError: Two packages have, or the package's code cannot be imported.
    """
    found = _registered().get(name, [])
    if not found:
        return None
    if len(found) > 1:
        both = " and ".join(map(_package, found))
        raise PluginError(f"the method {name!r} is registered by {both}; uninstall one of them")
    (entry,) = found
    try:
        loaded: object = entry.load()
    # Someone else's code can fail in any way, and must not look like ours.
    except Exception as error:
        package = _package(entry)
        raise PluginError(
            f"the method {name!r} of the package {package} cannot be loaded from {entry.value}: "
            f"{type(error).__name__}: {error}; update or uninstall {package.split()[0]}"
        ) from error
    return loaded


def import_hint(class_name: object) -> str:
    """How to define a class that a file names: by import, or by naming its package's method."""
    entries = [entry for found in _registered().values() for entry in found]
    exact = [entry for entry in entries if entry.attr == class_name]
    if exact:
        entry = exact[0]
        return (
            f"the package {_package(entry)} has one of that name; nothing is imported because a "
            f"file says so: import {entry.module} before loading, or on the command line say "
            f"offramp --plugin {entry.name} ..."
        )
    names = ", ".join(entry.name for entry in entries)
    return (
        "if it is your own class, import its module before loading; on the command line, register "
        "it in a package (entry points `offramp.methods`) and say offramp --plugin NAME ..."
        + (f" (installed: {names})" if names else "")
    )


def _registered() -> dict[str, list[EntryPoint]]:
    """By name; a package that is found twice on the path counts once."""
    found: dict[str, dict[tuple[str, str], EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, {}).setdefault((_package(entry), entry.value), entry)
    return {name: list(entries.values()) for name, entries in sorted(found.items())}


def _package(entry: EntryPoint) -> str:
    """Name and version of the package of an entry."""
    return (
        "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    )
