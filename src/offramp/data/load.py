"""`load`: the four disjoint splits of a data set by name."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import torch

from offramp import check
from offramp.data.catalog import find_official
from offramp.data.decoding import Decoder, Normalization, Tokenizer, find_tokenizer
from offramp.data.embedded import CANVAS, cluttered_digits, mixture
from offramp.data.images_and_texts import ImageData, Pixels, TextData
from offramp.data.reading import OfficialSplit
from offramp.data.splits import Data, Splits, assign_splits, with_default_sizes
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
    asked = {"held_out": held_out, "val": val}
    given = {split: size for split, size in asked.items() if size is not None}
    if name in EMBEDDED:
        if domain is not None:
            raise ConfigError(_no_domains(name))
        if name == "mixture":
            return mixture(seed, given)
        return cluttered_digits(seed, given, image_size or CANVAS)
    entry, found = find_official(name)
    official = _aligned(name, found)
    domains = _choose_domains(name, official, entry.source, domain)
    make: Callable[..., Data]
    if official["train"].kind == "text":
        make = partial(_texts, tokenizer=find_tokenizer(tokenizer) if tokenizer else None)
    else:
        decode = Decoder(image_size or entry.image_size, entry.centre)
        make = partial(_images, decode, entry.normalization, on_corrupt)
    classes = _num_classes(name, official)
    chosen = _choose_samples(official, domains, given, entry.held_back, seed)
    made = {split: make(of, split=split, num_classes=classes) for split, of in chosen.items()}
    return Splits(name=name, seed=seed, **made)


def _choose_domains(
    name: str, official: dict[str, OfficialSplit], usual: str | None, asked: Domain
) -> tuple[str | None, str | None]:
    """Which domain `test` comes from, and before it that of all other splits; None means all."""
    known = sorted({each for split in official.values() for each in split.domains or ()})
    if not known and asked is not None:
        raise ConfigError(_no_domains(name))
    if isinstance(asked, tuple):
        source, test = asked
    elif usual is not None and known:
        source, test = usual, asked or usual
    elif asked is None:
        return None, None
    else:
        raise ConfigError(f"`{name}` has no usual source domain: give `domain=(source, test)`")
    for each in (source, test):
        if each not in known:
            raise ConfigError(f"`{name}` has the domains {', '.join(known)}, got {each!r}")
    return source, test


def _no_domains(name: str) -> str:
    return f"`{name}` has no domains; leave `domain=` out"


def _choose_samples(
    official: dict[str, OfficialSplit],
    domains: tuple[str | None, str | None],
    given: dict[str, int],
    usual: int | None,
    seed: int,
) -> dict[str, OfficialSplit]:
    """The samples of each of the four splits; `usual` is the size of held_out and of val."""
    source, test = domains
    train = official["train"].of_domain(source)
    usual = usual or max(1, int(SHARE * len(train.ids)))
    wanted = with_default_sizes(given, {"held_out": usual, "val": usual})
    official_test = official.get("test", official.get("validation"))
    if official_test is None:
        # Always taken from the source domain: other splits must not depend on the tested one
        wanted = {"test": max(1, int(TEST_SHARE * len(train.ids))), **wanted}
    assigned = assign_splits(train.ids, wanted, seed)
    chosen = {split: train.take(rows) for split, rows in assigned.items()}
    if official_test is not None:
        chosen["test"] = official_test.of_domain(test)
    elif test != source:
        chosen["test"] = official["train"].of_domain(test)
    return chosen


def _known_of(samples: OfficialSplit) -> dict[str, Any]:
    """What `Data` knows of samples besides their inputs."""
    names = {"labels": samples.labels, "sample_ids": samples.ids}
    return {**names, "class_names": samples.class_names}


def _texts(samples: OfficialSplit, tokenizer: Tokenizer | None, **known: Any) -> TextData:  # noqa: ANN401
    if tokenizer is None:
        raise ConfigError(
            "these data are text: give `tokenizer=`, the folder or the hub name of the model "
            "that is to read them"
        )
    texts = samples.inputs.read(list(range(len(samples.inputs))))
    if None in texts:
        name = samples.inputs.name(texts.index(None))
        raise DataError(f"the text {name} is empty; fill it in or drop it")
    return TextData(texts=texts, tokenizer=tokenizer, **_known_of(samples), **known)


def _images(
    decode: Decoder,
    normalization: Normalization,
    on_corrupt: OnCorrupt,
    samples: OfficialSplit,
    **known: Any,  # noqa: ANN401
) -> ImageData:
    pixels = Pixels(samples.inputs, decode)
    skipped: tuple[str, ...] = ()
    if on_corrupt == "skip" and (broken := set(pixels.broken())):
        skipped = tuple(samples.ids[row] for row in sorted(broken))
        samples = samples.take([row for row in range(len(samples.ids)) if row not in broken])
        pixels = Pixels(samples.inputs, decode)
    return ImageData(
        pixels=pixels,
        normalization=normalization,
        skipped=skipped,
        **_known_of(samples),
        **known,
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
