"""Data sets of the public hub: asked once whether it is there, then downloaded and kept."""

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from offramp.data.tables import Columns, Table, official_name, quiet_datasets, root_cause, table_of
from offramp.errors import DataError
from offramp.extras import require

__all__ = ["read_hub", "read_hub_cache", "why_unreachable"]

PATIENCE = 4.0  # seconds


def why_unreachable(timeout: float = PATIENCE) -> str | None:
    """Why the hub cannot be reached, or None where it answers.

    Its own library tries again and again, for half a minute, before it says so. Any answer will
    do, a refusal too; proxies are used as the environment says.

    Args:
        timeout: Seconds to wait for an answer.
    """
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    host = urlsplit(address).hostname or address
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=timeout):
            return None
    except urllib.error.HTTPError:
        return None
    except urllib.error.URLError as error:
        return f"{host}: {error.reason}"
    except (OSError, ValueError) as error:
        return f"{host}: {error}"


def read_hub(repository: str, columns: Columns) -> dict[str, Table]:
    """A data set of the public hub, by official split; downloaded once and then cached.

    Raises:
        DataError: It cannot be reached, or lacks a column.
    """
    with quiet_datasets() as datasets:
        try:
            found = datasets.load_dataset(repository)
        # Connection, permission and format errors of several libraries mean the same here
        except Exception as error:
            raise DataError(f"the hub did not give {repository}: {root_cause(error)}") from None
    made = {}
    for name, rows in found.items():
        split = official_name(name) or name
        made[split] = table_of(rows, split, columns, (f"{repository}, {name}",))
    return made


def read_hub_cache(repository: str, columns: Columns) -> dict[str, Table] | None:
    """The same from an earlier download, without asking the hub; None where there is none."""
    with _offline():
        try:
            return read_hub(repository, columns)
        except DataError:
            return None


@contextmanager
def _offline() -> Iterator[None]:
    """The hub's libraries in their offline mode, which they otherwise read when imported."""
    places: list[Any] = [
        require("huggingface_hub.constants", extra="train"),
        require("datasets.config", extra="train"),
    ]
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place in places:
            place.HF_HUB_OFFLINE = True
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value
