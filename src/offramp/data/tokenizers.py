"""Tokenizers by name, without torch."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from offramp.errors import DataError
from offramp.extras import require

# Called as those of `transformers` are: with a list of texts, padding, truncation, max_length
# and return_tensors="pt" or "np"
Tokenizer: TypeAlias = Callable[..., Mapping[str, Any]]


def find_tokenizer(tokenizer: Tokenizer | str) -> Tokenizer:
    """A tokenizer as it is, or one of `transformers` by name; code of the hub is never run."""
    if not isinstance(tokenizer, str):
        return tokenizer
    transformers = require("transformers", extra="train")
    try:
        found: Tokenizer = transformers.AutoTokenizer.from_pretrained(
            tokenizer, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"there is no tokenizer {tokenizer!r}: {str(error).splitlines()[0]} (name a folder "
            "with a tokenizer.json, or a model on the hub)"
        ) from None
    return found
