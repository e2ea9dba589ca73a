"""One split of images or of texts, as the network takes them.

Images are decoded when they are first asked for, kept as bytes, and normalised a batch at a time.
Texts are kept as they are, and tokenised a batch at a time by a tokenizer that the caller gives.
"""

import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from offramp.data.decoding import Decoder, Normalization, Tokenizer
from offramp.data.reading import StoredInputs
from offramp.data.splits import Data
from offramp.errors import CorruptImageError, DataError, OfframpError

IN_MEMORY = 2 * 2**30  # bytes of pixels per split that are kept once decoded
CHUNK = 1024  # images that are decoded together when all are checked
MAX_TOKENS = 128  # of a text
THREADS = 4  # Pillow releases the interpreter lock while it decodes


def _shared_zeros(*shape: int) -> Tensor:
    """Uint8 zeros in memory that processes forked later read and write together with this one.

    Not in `/dev/shm`, as `Tensor.share_memory_` would have it: it is small in many containers.
    """
    memory = mmap.mmap(-1, max(1, prod(shape)))
    return torch.frombuffer(memory, dtype=torch.uint8)[: prod(shape)].view(shape)


class Pixels:
    """The pixels of encoded images, kept where they fit into memory.

    Images that a worker of a loader has decoded are shared with all workers and this process, if
    the first image was read before the workers were started.
    """

    def __init__(self, encoded: StoredInputs, decode: Decoder) -> None:
        self._encoded = encoded
        self._decode = decode
        self._kept: Tensor | None = None
        self._is_kept = _shared_zeros(len(encoded)).view(torch.bool)

    def __len__(self) -> int:
        return len(self._is_kept)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Uint8 `[n, 3, H, W]` of the samples in `index [n]`; broken images raise."""
        missing = index[~self._is_kept[index]].unique()
        if self._kept is not None and len(missing) == 0:
            return self._kept[index]
        decoded = self._stacked(missing.tolist())
        if len(self) * decoded[0].numel() > IN_MEMORY:
            # Nothing is ever kept, so all are missing: once each, in ascending order.
            return decoded[torch.searchsorted(missing, index)]
        if self._kept is None:
            self._kept = _shared_zeros(len(self), *decoded.shape[1:])
        self._check_size(decoded[0], self._kept.shape[1:], int(missing[0]))
        self._kept[missing] = decoded
        self._is_kept[missing] = True
        return self._kept[index]

    def broken(self) -> list[int]:
        """Positions of the images that cannot be decoded; goes through all of them once."""
        found = []
        for start in range(0, len(self), CHUNK):
            positions = list(range(start, min(start + CHUNK, len(self))))
            decoded = self._decoded(positions)
            found += [at for at, one in zip(positions, decoded, strict=True) if one is None]
        return found

    def _stacked(self, positions: list[int]) -> Tensor:
        decoded = self._decoded(positions)
        for position, one in zip(positions, decoded, strict=True):
            if one is None:
                raise CorruptImageError(
                    f"the image {self._encoded.name(position)} cannot be decoded; replace it, or "
                    "load with on_corrupt='skip' to leave such images out"
                )
            self._check_size(one, decoded[0].shape, position)
        return torch.stack(decoded)

    def _decoded(self, positions: list[int]) -> list[Any]:
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(self._attempt, self._encoded.read(positions)))

    def _attempt(self, encoded: bytes) -> Tensor | None:
        try:
            return torch.from_numpy(self._decode(encoded))
        except OfframpError:
            raise
        # Pillow raises OSError, SyntaxError, ValueError, struct.error ... for broken files
        except Exception:
            return None

    def _check_size(self, one: Tensor, shape: Sequence[int], position: int) -> None:
        if tuple(one.shape) != tuple(shape):
            raise DataError(
                f"the image {self._encoded.name(position)} has {one.shape[1]}x{one.shape[2]} "
                f"pixels and others have {shape[1]}x{shape[2]}; give `image_size=` to make them "
                "equal"
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageData(Data):
    """One split of a data set of images.

    Args:
        pixels: Give uint8 `[n, C, H, W]` for an index `[n]`.
        labels, split, sample_ids, num_classes, class_names: See `Data`.
        normalization: From uint8 to what the network sees.
        skipped: Ids of images that were left out because they are broken.

    Example:
        >>> data = ImageData(
        ...     pixels=torch.zeros(2, 3, 4, 4, dtype=torch.uint8), labels=torch.tensor([0, 1]),
        ...     split="val", sample_ids=["a", "b"], num_classes=2)
        >>> inputs, labels = data.batch(torch.tensor([1, 0]))
        >>> inputs.shape, labels
        (torch.Size([2, 3, 4, 4]), tensor([1, 0]))
    """

    pixels: Tensor | Pixels = field(repr=False)
    normalization: Normalization = field(default_factory=Normalization)
    skipped: tuple[str, ...] = ()

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs float32 `[n, C, H, W]`, normalised, and labels `[n]`."""
        return self.normalization(self.pixels[index]), self.labels[index]


@dataclass(frozen=True, eq=False, kw_only=True)
class TextData(Data):
    """One split of a data set of texts.

    A batch is padded to its longest text; a single item is padded to 128 tokens, for items to be
    stacked. Longer texts are truncated to 128 tokens.

    Args:
        texts: `[N]`.
        tokenizer: One of `transformers`, or anything that is called like one.
        labels, split, sample_ids, num_classes, class_names: See `Data`.

    Example:
        >>> def tokenizer(texts, **settings):
        ...     return {"input_ids": torch.tensor([[len(text)] for text in texts])}
        >>> data = TextData(texts=["good", "bad"], tokenizer=tokenizer,
        ...     labels=torch.tensor([1, 0]), split="val", sample_ids=["a", "b"], num_classes=2)
        >>> data[0]
        ({'input_ids': tensor([4])}, 1)
    """

    texts: list[str] = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)

    def __getitem__(self, position: int) -> tuple[dict[str, Tensor], int]:
        inputs = self._tokens([self.texts[position]], padding="max_length")
        return {name: value[0] for name, value in inputs.items()}, int(self.labels[position])

    def batch(self, index: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Tokens `{name: int64 [n, L]}` and labels `[n]`."""
        texts = [self.texts[position] for position in index.tolist()]
        return self._tokens(texts, padding="longest"), self.labels[index]

    @property
    def lengths(self) -> Tensor:
        """Characters of each text, int64 `[N]`; training puts texts of similar length together."""
        return torch.tensor([len(text) for text in self.texts])

    def _tokens(self, texts: list[str], padding: str) -> dict[str, Tensor]:
        tokens = self.tokenizer(
            texts, padding=padding, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        )
        return {name: torch.as_tensor(value) for name, value in tokens.items()}
