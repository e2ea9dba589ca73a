"""Which data a run uses."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from offramp.data.decoding import Normalization
from offramp.files import read_sealed, restore, write_sealed
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
    # what a server has to know of them, so that it need not load them; of the training samples
    normalization: Normalization | None = None
    class_names: list[str] | None = None

    def load(self) -> "Splits":
        """The four splits."""
        from offramp.data.load import load  # brings torch, which a server may do without

        options = {name: getattr(self, name) for name in ("domain", "tokenizer", "image_size")}
        return load(self.data, **{name: value for name, value in options.items() if value})

    def of_samples(self, samples: object) -> "Source":
        """The same with what these samples say of their pixels and classes."""
        found: Normalization | None = getattr(samples, "normalization", None)
        names = getattr(samples, "class_names", None)
        return replace(self, normalization=found, class_names=names and list(names))

    def save(self, run: Path) -> None:
        """Write it into the folder of a run; a tokenizer's folder so that all find it."""
        words = self.tokenizer
        words = str(Path(words).resolve()) if words and Path(words).is_dir() else words
        write_sealed(RunFolder(run).source, asdict(replace(self, tokenizer=words)))

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
        saved: Source | None = None
        if path is not None:
            saved = restore(cls, read_sealed(path), str(path))
        name = data or (None if saved is None else saved.data)
        if name is None:
            return None
        if saved is None:
            return cls(name, domain, tokenizer)
        words = tokenizer or saved.tokenizer
        if name == saved.data:
            return replace(saved, domain=domain or saved.domain, tokenizer=words)
        # The network was made for images of this size, whatever the data.
        return cls(name, domain, words, saved.image_size)
