"""Which data a run uses."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.files import write_text
from offramp.run_folder import RunFolder

if TYPE_CHECKING:
    from offramp.data.splits import Splits


@dataclass(frozen=True)
class Source:
    """Which data a run uses; saved with it, and used again when the network is recorded."""

    data: str  # name of a data set, or a folder
    domain: str | None = None  # where `test` comes from, for data sets of several domains
    tokenizer: str | None = None  # for text
    image_size: int | None = None  # the usual size of the data set by default

    def load(self) -> "Splits":
        """The four splits."""
        from offramp.data.load import load  # brings torch, which a server may do without

        given: dict[str, Any] = asdict(self)
        name = given.pop("data")
        return load(name, **{option: value for option, value in given.items() if value})

    def save(self, run: Path) -> None:
        """Write it into the folder of a run; a tokenizer's folder so that all find it."""
        words = self.tokenizer
        words = str(Path(words).resolve()) if words and Path(words).is_dir() else words
        write_text(
            RunFolder(run).source, json.dumps(asdict(replace(self, tokenizer=words))) + "\n"
        )

    @classmethod
    def find(
        cls,
        run: Path,
        data: str | None = None,
        domain: str | None = None,
        tokenizer: str | None = None,
    ) -> "Source | None":
        """What is asked for here, completed by what the run was trained on; None if unknown."""
        path = RunFolder(run).known_source
        saved: dict[str, Any] = {}
        if path is not None:
            saved = json.loads(path.read_text(encoding="utf-8"))
        name = data or saved.get("data")
        if name is None:
            return None
        same = data in (None, saved.get("data"))  # a domain belongs to its data set
        return cls(
            name,
            domain or (saved.get("domain") if same else None),
            tokenizer or saved.get("tokenizer"),
            saved.get("image_size"),  # the network was made for it, whatever the data
        )
