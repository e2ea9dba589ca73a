"""What a run was trained on, kept in its folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offramp.data.load import load
from offramp.data.splits import Splits
from offramp.errors import ConfigError
from offramp.storage import write_text

__all__ = ["SOURCE", "Source"]

SOURCE = "data.json"  # in the folder of a run


@dataclass(frozen=True)
class Source:
    """The data of a run; kept with it, so that recording needs not be told again.

    Args:
        data: Name of a data set, or a folder.
        domain: Where `test` comes from, for data sets of several domains.
        tokenizer: For text.

    Example:
        >>> Source("cluttered-digits").load().test.class_names[:3]
        ['0', '1', '2']
    """

    data: str
    domain: str | None = None
    tokenizer: str | None = None

    def load(self) -> Splits:
        """The four splits."""
        given: dict[str, Any] = {"domain": self.domain, "tokenizer": self.tokenizer}
        return load(self.data, **{name: value for name, value in given.items() if value})

    def save(self, run: Path) -> None:
        """Keep it in the folder of a run."""
        write_text(run / SOURCE, json.dumps(asdict(self)) + "\n")

    @classmethod
    def of_run(
        cls,
        run: Path,
        data: str | None = None,
        domain: str | None = None,
        tokenizer: str | None = None,
    ) -> "Source":
        """What was asked for, and else what the run was trained on.

        Raises:
            ConfigError: Neither is known.
        """
        found = cls.find(run, data, domain, tokenizer)
        if found is None:
            raise ConfigError(f"{run} does not say what it was trained on: give --data")
        return found

    @classmethod
    def find(
        cls,
        run: Path,
        data: str | None = None,
        domain: str | None = None,
        tokenizer: str | None = None,
    ) -> "Source | None":
        """The same; None where neither is known."""
        kept: dict[str, str | None] = {}
        told = _file(run)
        if told is not None:
            kept = json.loads(told.read_text(encoding="utf-8"))
        name = data or kept.get("data")
        if name is None:
            return None
        same = data in (None, kept.get("data"))  # a domain belongs to its data set
        return cls(
            name,
            domain or (kept.get("domain") if same else None),
            tokenizer or kept.get("tokenizer"),
        )


def _file(run: Path) -> Path | None:
    """Where a run, given by its folder or by that of its network, says what it was trained on."""
    run = run.resolve()
    places = (run, run.parent) if run.name == "network" else (run,)
    return next((place / SOURCE for place in places if (place / SOURCE).is_file()), None)
