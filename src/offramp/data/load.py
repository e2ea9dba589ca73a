"""`load`: one way to say which data, and the four disjoint splits of it."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from offramp.data.catalog import EMBEDDED, Entry, find
from offramp.data.digits import CANVAS, cluttered_digits
from offramp.data.images import Decoder, ImageData, Pixels
from offramp.data.mixture import mixture
from offramp.data.splits import Data, Splits, checked_sizes, deal
from offramp.data.tables import Table
from offramp.data.text import TextData, Tokenizer, find_tokenizer
from offramp.errors import ConfigError, DataError
from offramp.storage import write_text

Domain: TypeAlias = str | tuple[str, str] | None
OnCorrupt: TypeAlias = Literal["raise", "skip"]
TEST_SHARE = 0.2  # of data that comes without an official test set
SHARE = 0.1  # for each of held_out and val, where no number is asked for


def load(
    name: str,
    seed: int = 0,
    domain: Domain = None,
    *,
    held_out: int | None = None,
    val: int | None = None,
    image_size: int | None = None,
    tokenizer: Tokenizer | str | None = None,
    on_corrupt: OnCorrupt = "raise",
) -> Splits:
    """Load four disjoint splits, fixed by a seed.

    `test` is the official test set, or the official validation set where the labels of the
    former are hidden, or a fifth of the data where there is neither. `held_out` and `val` are
    cut from the official train set.

    Args:
        name: `cluttered-digits` and `mixture` need nothing at all; `cifar100`, `cifar10`,
            `tiny-imagenet`, `imagenet-1k`, `domainnet`, `pacs` and `sst2` are looked for below
            the folder in the environment variable `OFFRAMP_DATA` and then on the hub; or the
            path of a folder with one folder of images per class, or with Parquet or CSV files.
        seed: The same seed gives the same splits, in every process and on every machine.
        domain: The domain that `test` comes from, for data with domains. All other splits come
            from the source domain (`photo` of PACS, `real` of DomainNet), and so does `test` by
            default. `(source, test)` chooses both.
        held_out: Number of samples in `held_out`; by default 5,000 of CIFAR, 25,000 of ImageNet,
            and a tenth of others.
        val: Number of samples in `val`, likewise.
        image_size: Height and width to resize images to; by default the data set's usual ones.
        tokenizer: For text, and needed there: one of `transformers`, its folder or name on the
            hub, or anything that is called like one.
        on_corrupt: What to do about images that cannot be decoded. `raise` names the image when
            it is asked for; `skip` looks through all of them first, leaves the broken ones out
            and lists their ids in `skipped`.

    Raises:
        ConfigError: A setting with an impossible value.
        DataError: The data are not there, or not in the right shape.
        SplitError: The splits asked for are too large.

    Example:
        >>> splits = load("cluttered-digits", held_out=500)
        >>> inputs, label = splits.held_out[0]
        >>> inputs.shape, len(splits.held_out), splits.held_out.sample_ids[0]
        (torch.Size([3, 20, 20]), 500, 'held_out-0')
    """
    if on_corrupt not in ("raise", "skip"):
        raise ConfigError(f"`on_corrupt` must be 'raise' or 'skip', got {on_corrupt!r}")
    if image_size is not None and image_size < 1:
        raise ConfigError(f"`image_size` is a number of pixels, at least 1, got {image_size}")
    if name in EMBEDDED:
        if domain is not None:
            raise ConfigError(_no_domains(name))
        return _embedded(name, seed, checked_sizes(held_out, val), image_size)
    entry, tables = find(name)
    tables = _aligned(name, tables)
    sizes = checked_sizes(held_out, val)
    asked = {"held_out": entry.held_out, "val": entry.val, **sizes}
    chosen = _Domain.resolve(name, tables, entry.source, domain)
    parts = _parts(tables, chosen, asked, seed)
    classes = _num_classes(name, tables), tables["train"].class_names
    words = find_tokenizer(tokenizer) if tables["train"].kind == "text" and tokenizer else None
    maker = _Maker(entry, image_size, words, on_corrupt, *classes)
    made = {part.split: maker.data(part) for part in parts}
    return Splits(name=name, seed=seed, **made)


@dataclass(frozen=True)
class _Domain:
    """Which domains the splits come from; None is all there are."""

    source: str | None
    test: str | None

    @classmethod
    def resolve(
        cls, name: str, tables: dict[str, Table], source: str | None, asked: Domain
    ) -> "_Domain":
        known = sorted({each for table in tables.values() for each in table.domains or ()})
        if not known:
            if asked is not None:
                raise ConfigError(_no_domains(name))
            return cls(None, None)
        if isinstance(asked, tuple):
            source, test = asked
        elif source is not None:
            test = asked or source
        elif asked is None:
            return cls(None, None)
        else:
            raise ConfigError(f"`{name}` has no usual source domain: give `domain=(source, test)`")
        for each in (source, test):
            if each not in known:
                raise ConfigError(f"`{name}` has the domains {', '.join(known)}, got {each!r}")
        return cls(source, test)

    @staticmethod
    def rows(table: Table, domain: str | None) -> list[int]:
        """Rows of one domain."""
        if domain is None or table.domains is None:
            return list(range(len(table.ids)))
        return [row for row, each in enumerate(table.domains) if each == domain]


def _no_domains(name: str) -> str:
    return f"`{name}` has no domains; leave `domain=` out"


def _embedded(name: str, seed: int, sizes: dict[str, int], image_size: int | None) -> Splits:
    if name == "mixture":
        return mixture(seed, sizes)
    return cluttered_digits(seed, sizes, image_size or CANVAS)


@dataclass(frozen=True)
class _Part:
    """The samples of one split: some rows of one table."""

    split: str
    table: Table
    rows: list[int]


def _parts(
    tables: dict[str, Table], domain: _Domain, asked: dict[str, int | None], seed: int
) -> list[_Part]:
    train = tables["train"]
    official = tables.get("test", tables.get("validation"))
    rows = domain.rows(train, domain.source)
    tenth = max(1, int(SHARE * len(rows)))
    sizes = {key: tenth if size is None else size for key, size in asked.items()}
    if official is None:
        # Dealt whatever domain is tested, so that the other splits do not depend on it
        sizes = {"test": max(1, int(TEST_SHARE * len(rows))), **sizes}
    dealt = deal([train.ids[row] for row in rows], sizes, seed)
    chosen = {split: [rows[position] for position in at] for split, at in dealt.items()}
    if official is not None:
        test = _Part("test", official, domain.rows(official, domain.test))
    elif domain.test == domain.source:
        test = _Part("test", train, chosen["test"])
    else:
        test = _Part("test", train, domain.rows(train, domain.test))
    return [*(_Part(split, train, chosen[split]) for split in ("train", "held_out", "val")), test]


@dataclass(frozen=True)
class _Maker:
    """Makes data sets of the parts."""

    entry: Entry
    image_size: int | None
    tokenizer: Tokenizer | None
    on_corrupt: OnCorrupt
    num_classes: int
    class_names: list[str] | None

    def data(self, part: _Part) -> Data:
        """Of the kind that the table holds."""
        return self._texts(part) if part.table.kind == "text" else self._images(part)

    def _texts(self, part: _Part) -> TextData:
        if self.tokenizer is None:
            raise ConfigError(
                "these data are text: give `tokenizer=`, the folder or the name on the hub of the "
                "model that is to read them"
            )
        texts = part.table.cells.read(part.rows)
        if None in texts:
            row = part.rows[texts.index(None)]
            raise DataError(
                f"the text {part.table.cells.name(row)} is empty; fill it in or drop it"
            )
        return TextData(
            texts=texts,
            tokenizer=self.tokenizer,
            labels=part.table.labels[part.rows],
            split=part.split,
            sample_ids=[part.table.ids[row] for row in part.rows],
            num_classes=self.num_classes,
            class_names=self.class_names,
        )

    def _images(self, part: _Part) -> ImageData:
        decode = Decoder(self.image_size or self.entry.image_size, self.entry.centre)
        pixels, rows, broken = Pixels(part.table, part.rows, decode), part.rows, set[int]()
        if self.on_corrupt == "skip":
            broken = {rows[position] for position in pixels.broken()}
        if broken:
            rows = [row for row in rows if row not in broken]
            pixels = Pixels(part.table, rows, decode)
        return ImageData(
            pixels=pixels,
            labels=part.table.labels[rows],
            split=part.split,
            sample_ids=[part.table.ids[row] for row in rows],
            num_classes=self.num_classes,
            class_names=self.class_names,
            normalization=self.entry.normalization,
            skipped=tuple(part.table.ids[row] for row in sorted(broken)),
        )


def _aligned(name: str, tables: dict[str, Table]) -> dict[str, Table]:
    """The labelled official splits with one numbering of the classes: that of train."""
    labelled = {split: table for split, table in tables.items() if table.is_labelled}
    if "train" not in labelled:
        raise DataError(f"`{name}` has no labelled train set; found: {', '.join(tables)}")
    classes = labelled["train"].class_names
    made = {}
    for split, table in labelled.items():
        if table.class_names != classes:
            unknown = set(table.class_names or ()) - set(classes or ())
            if unknown or classes is None or table.class_names is None:
                raise DataError(
                    f"the {split} set of `{name}` has classes that train lacks: "
                    f"{', '.join(sorted(unknown)) or 'the one names them, the other does not'}"
                )
            place = torch.tensor([classes.index(each) for each in table.class_names])
            table = replace(table, labels=place[table.labels], class_names=classes)
        made[split] = table
    return made


def _num_classes(name: str, tables: dict[str, Table]) -> int:
    highest = max(int(table.labels.max()) for table in tables.values())
    names = tables["train"].class_names
    if names is not None and highest >= len(names):
        raise DataError(f"`{name}` has {len(names)} classes and a label {highest}")
    return highest + 1 if names is None else len(names)


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
