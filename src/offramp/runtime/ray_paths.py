"""Folders that workers of a cluster find."""

from pathlib import Path

from offramp.extras import require

__all__ = ["for_workers"]


def for_workers(folder: str | Path) -> Path:
    """A folder as workers find it, which start elsewhere.

    A relative path is relative to here. Where Ray copies a `working_dir` to its workers, it is
    relative to that and stays as it is.

    Args:
        folder: That every machine has.

    Raises:
        MissingExtraError: The extra `ray` is not installed.
    """
    ray = require("ray", extra="ray")
    if ray.is_initialized() and ray.get_runtime_context().runtime_env.get("working_dir"):
        return Path(folder)
    return Path(folder).absolute()
