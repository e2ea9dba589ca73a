"""What a server's worker does: checked samples in, answers out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offramp.data.images import Normalization
from offramp.runtime.output import RunOutput
from offramp.serving.images import ImageReader
from offramp.serving.model import Model
from offramp.serving.requests import Query


class Answerer:
    """A runner that takes what `Intake` lets through.

    Args:
        model: What to load, once.
        reader: How images are normalised; None if the network takes none.
        precision: `float32` or `bfloat16`.
    """

    def __init__(
        self, model: Model, reader: ImageReader | None = None, precision: str = "float32"
    ) -> None:
        self._names = model.class_names
        self._normalization = Normalization() if reader is None else reader.normalization
        self._runner = model.runner(precision)

    def __call__(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Answer a batch; every sample leaves at its own exit."""
        output = self._runner(self._collated(queries))
        return [self._answer(query, output, row) for row, query in enumerate(queries)]

    def _collated(self, queries: Sequence[Query]) -> Any:  # noqa: ANN401
        if "input_ids" in queries[0].parts:
            return padded([query.parts for query in queries])
        return torch.stack([self._sample(query) for query in queries])

    def _sample(self, query: Query) -> Tensor:
        if "pixels" in query.parts:
            return self._normalization(torch.from_numpy(query.parts["pixels"])[None])[0]
        return torch.from_numpy(query.parts["inputs"])

    def _answer(self, query: Query, output: RunOutput, row: int) -> dict[str, Any]:
        failed, found = bool(output.failed[row]), int(output.predictions[row])
        names, confidence = self._names, float(output.confidence[row])
        return {
            "id": query.id,
            "class": None if failed else found,
            "name": None if failed or names is None else names[found],
            "confidence": None if confidence != confidence else round(confidence, 6),
            "likely_wrong": bool(output.likely_wrong[row]),
            "exit": int(output.exits[row]),
            "cost": round(float(output.costs[row]), 6),
        }


def padded(texts: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Texts of different lengths as one batch; what is added is masked out.

    Args:
        texts: Of each its arrays `[length]`: `input_ids` and `attention_mask`, and more.

    Returns:
        Tensors `[n, longest]`.

    Example:
        >>> ones = np.ones(2, dtype=np.int64)
        >>> texts = [{"input_ids": n * ones[:n], "attention_mask": ones[:n]} for n in (1, 2)]
        >>> padded(texts)["attention_mask"]
        tensor([[1, 0],
                [1, 1]])
    """
    length = max(len(text["input_ids"]) for text in texts)
    # Some may name segments and others not: then those are all in the first.
    names = {name for text in texts for name in text}

    def widened(text: dict[str, Any], name: str) -> Tensor:
        part = text.get(name, np.zeros(len(text["input_ids"]), dtype=np.int64))
        return torch.from_numpy(np.pad(part, (0, length - len(part))))

    return {name: torch.stack([widened(text, name) for text in texts]) for name in names}
