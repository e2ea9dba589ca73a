"""`load`: the four disjoint splits of a data set by name."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch

from offramp import check
from offramp.data.catalog import Entry, find_official
from offramp.data.decoding import Decoder, Tokenizer, find_tokenizer
from offramp.data.digits import CANVAS, cluttered_digits
from offramp.data.images import ImageData, Pixels
from offramp.data.mixture import mixture
from offramp.data.reading import OfficialSplit
from offramp.data.splits import Data, Splits, assign_splits, checked_sizes
from offramp.data.text import TextData
from offramp.errors import ConfigError, DataError
from offramp.registry import EMBEDDED

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
        name: `cluttered-digits` or `mixture`, which are made on demand; `cifar100`, `cifar10`,
            `tiny-imagenet`, `imagenet-1k`, `domainnet`, `pacs` or `sst2`, searched for below
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
            it is used; `skip` checks all of them first, leaves the broken ones out and lists
            their ids in `skipped`.

    Raises:
        ConfigError: A setting with an impossible value.
        DataError: The data are missing or not in the right form.
        SplitError: The splits asked for are too large.

    Example:
        >>> splits = load("cluttered-digits", held_out=500)
        >>> inputs, label = splits.held_out[0]
        >>> inputs.shape, len(splits.held_out), splits.held_out.sample_ids[0]
        (torch.Size([3, 20, 20]), 500, 'held_out-0')
    """
    check.one_of("on_corrupt", on_corrupt, ("raise", "skip"))
    if image_size is not None:
        check.whole("image_size", image_size, 1)
    if name in EMBEDDED:
        if domain is not None:
            raise ConfigError(_no_domains(name))
        return _embedded(name, seed, checked_sizes(held_out, val), image_size)
    entry, found = find_official(name)
    official = _aligned(name, found)
    sizes = checked_sizes(held_out, val)
    asked = {"held_out": entry.held_out, "val": entry.val, **sizes}
    domains = _Domains.resolve(name, official, entry.source, domain)
    classes = _num_classes(name, official), official["train"].class_names
    is_text = official["train"].kind == "text"
    words = find_tokenizer(tokenizer) if is_text and tokenizer else None
    maker = _SplitMaker(entry, image_size, words, on_corrupt, *classes)
    chosen = _choose_rows(official, domains, asked, seed)
    made = {rows.split: maker.data(rows) for rows in chosen}
    return Splits(name=name, seed=seed, **made)


@dataclass(frozen=True)
class _Domains:
    """Which domains the splits come from; None means all of them."""

    source: str | None
    test: str | None

    @classmethod
    def resolve(
        cls, name: str, official: dict[str, OfficialSplit], source: str | None, asked: Domain
    ) -> "_Domains":
        known = sorted({each for split in official.values() for each in split.domains or ()})
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
    def rows(split: OfficialSplit, domain: str | None) -> list[int]:
        """Rows of one domain."""
        if domain is None or split.domains is None:
            return list(range(len(split.ids)))
        return [row for row, each in enumerate(split.domains) if each == domain]


def _no_domains(name: str) -> str:
    return f"`{name}` has no domains; leave `domain=` out"


def _embedded(name: str, seed: int, sizes: dict[str, int], image_size: int | None) -> Splits:
    if name == "mixture":
        return mixture(seed, sizes)
    return cluttered_digits(seed, sizes, image_size or CANVAS)


@dataclass(frozen=True)
class _Rows:
    """The samples of one split: some rows of an official one."""

    split: str
    official: OfficialSplit
    rows: list[int]


def _choose_rows(
    official: dict[str, OfficialSplit], domains: _Domains, asked: dict[str, int | None], seed: int
) -> list[_Rows]:
    train = official["train"]
    official_test = official.get("test", official.get("validation"))
    rows = domains.rows(train, domains.source)
    tenth = max(1, int(SHARE * len(rows)))
    sizes = {key: tenth if size is None else size for key, size in asked.items()}
    if official_test is None:
        # Always taken from the source domain: other splits must not depend on the tested one
        sizes = {"test": max(1, int(TEST_SHARE * len(rows))), **sizes}
    assigned = assign_splits([train.ids[row] for row in rows], sizes, seed)
    chosen = {split: [rows[position] for position in at] for split, at in assigned.items()}
    if official_test is not None:
        test = _Rows("test", official_test, domains.rows(official_test, domains.test))
    elif domains.test == domains.source:
        test = _Rows("test", train, chosen["test"])
    else:
        test = _Rows("test", train, domains.rows(train, domains.test))
    return [*(_Rows(split, train, chosen[split]) for split in ("train", "held_out", "val")), test]


@dataclass(frozen=True)
class _SplitMaker:
    """Makes the data sets of the splits."""

    entry: Entry
    image_size: int | None
    tokenizer: Tokenizer | None
    on_corrupt: OnCorrupt
    num_classes: int
    class_names: list[str] | None

    def data(self, chosen: _Rows) -> Data:
        """Texts or images."""
        return self._texts(chosen) if chosen.official.kind == "text" else self._images(chosen)

    def _texts(self, chosen: _Rows) -> TextData:
        if self.tokenizer is None:
            raise ConfigError(
                "these data are text: give `tokenizer=`, the folder or the hub name of the model "
                "that is to read them"
            )
        texts = chosen.official.inputs.read(chosen.rows)
        if None in texts:
            row = chosen.rows[texts.index(None)]
            raise DataError(
                f"the text {chosen.official.inputs.name(row)} is empty; fill it in or drop it"
            )
        return TextData(
            texts=texts,
            tokenizer=self.tokenizer,
            labels=chosen.official.labels[chosen.rows],
            split=chosen.split,
            sample_ids=[chosen.official.ids[row] for row in chosen.rows],
            num_classes=self.num_classes,
            class_names=self.class_names,
        )

    def _images(self, chosen: _Rows) -> ImageData:
        decode = Decoder(self.image_size or self.entry.image_size, self.entry.centre)
        pixels, rows = Pixels(chosen.official.inputs, chosen.rows, decode), chosen.rows
        broken = set(pixels.broken()) if self.on_corrupt == "skip" else set()
        skipped = [chosen.official.ids[rows[position]] for position in sorted(broken)]
        if broken:
            rows = [row for position, row in enumerate(rows) if position not in broken]
            pixels = Pixels(chosen.official.inputs, rows, decode)
        return ImageData(
            pixels=pixels,
            labels=chosen.official.labels[rows],
            split=chosen.split,
            sample_ids=[chosen.official.ids[row] for row in rows],
            num_classes=self.num_classes,
            class_names=self.class_names,
            normalization=self.entry.normalization,
            skipped=tuple(skipped),
        )


def _aligned(name: str, official: dict[str, OfficialSplit]) -> dict[str, OfficialSplit]:
    """The labelled official splits with one numbering of the classes: that of train."""
    labelled = {key: split for key, split in official.items() if split.is_labelled}
    if "train" not in labelled:
        raise DataError(f"`{name}` has no labelled train set; found: {', '.join(official)}")
    classes = labelled["train"].class_names
    made = {}
    for key, split in labelled.items():
        if split.class_names != classes:
            unknown = set(split.class_names or ()) - set(classes or ())
            if unknown or classes is None or split.class_names is None:
                raise DataError(
                    f"the {key} set of `{name}` has classes that train lacks: "
                    f"{', '.join(sorted(unknown)) or 'only one of them names its classes'}"
                )
            number = torch.tensor([classes.index(each) for each in split.class_names])
            split = replace(split, labels=number[split.labels], class_names=classes)
        made[key] = split
    return made


def _num_classes(name: str, official: dict[str, OfficialSplit]) -> int:
    highest = max(int(split.labels.max()) for split in official.values())
    names = official["train"].class_names
    if names is not None and highest >= len(names):
        raise DataError(f"`{name}` has {len(names)} classes and a label {highest}")
    return highest + 1 if names is None else len(names)
