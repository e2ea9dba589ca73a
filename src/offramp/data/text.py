"""Text: kept as it is, and tokenised a batch at a time by a tokenizer that the caller gives."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from offramp.data.decoding import Tokenizer
from offramp.data.splits import Data

MAX_TOKENS = 128


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
