"""What the models of a cascade return: logits, or an answer and a confidence for each item."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offramp.errors import NetworkError

TINY = 1e-30  # a probability; its logarithm is finite


@dataclass(frozen=True, eq=False)
class Response:
    """The response of a model to one item.

    Args:
        answer: Of any kind; the number of a class where there are logits.
        confidence: The probability of being right that it states.
        cost: What this call cost, where that differs from item to item.
        features: Whatever else a stop rule may read.
        logits: `[K]`, instead of an answer with a confidence.
    """

    answer: Any = None
    confidence: float | None = None
    cost: float | None = None
    features: tuple[float, ...] = ()
    logits: Tensor | None = None

    @classmethod
    def of(cls, value: Any) -> "Response":  # noqa: ANN401 - whatever a callable returns
        """From logits `[K]`, `(answer, confidence)`, `(answer, confidence, cost)`, or a mapping.

        Example:
            >>> Response.of(("Paris", 0.9, 0.002)).cost
            0.002
        """
        if isinstance(value, Response):
            return value
        if isinstance(value, Mapping):
            unknown = set(value) - {each.name for each in fields(cls)}
            if unknown:
                raise NetworkError(
                    f"a model returned what is not known here: {', '.join(sorted(unknown))}"
                )
            return cls(**value)
        if isinstance(value, tuple) and len(value) in (2, 3):
            return cls(*value)
        if isinstance(value, Tensor | np.ndarray) and value.ndim == 1:
            (response,) = responses_from_logits(torch.as_tensor(value)[None])
            return response
        raise NetworkError(
            "a model of a cascade must return logits [n, K], or for each item (answer, "
            f"confidence) or (answer, confidence, cost), got {value!r}"
        )


def responses_from_logits(logits: Tensor) -> list[Response]:
    """The most probable class of each item, and how probable it is, from logits `[n, K]`."""
    values = logits.detach().float().cpu()
    confidences, classes = values.softmax(dim=1).max(dim=1)
    return [
        Response(answer=number, confidence=confidence, logits=row)
        for number, confidence, row in zip(
            classes.tolist(), confidences.tolist(), values.unbind(0), strict=True
        )
    ]


def responses_from_estimator(model: Any, inputs: np.ndarray) -> list[Response]:  # noqa: ANN401
    """A scikit-learn classifier: logits, or its own classes where those are not 0..K-1."""
    flat = inputs.reshape(len(inputs), -1) if inputs.ndim > 2 else inputs
    probs = np.asarray(model.predict_proba(flat))
    names = list(getattr(model, "classes_", range(probs.shape[1])))
    if names == list(range(len(names))):
        logs = np.log(np.maximum(probs, TINY)).astype(np.float32)
        return responses_from_logits(torch.from_numpy(logs))
    return [Response(names[int(row.argmax())], float(row.max())) for row in probs]


def responses_from_batch(found: Any, samples: int, name: str) -> list[Response]:  # noqa: ANN401
    """What a model returned for a batch, item by item."""
    if isinstance(found, Tensor | np.ndarray):
        logits = torch.as_tensor(found)
        if logits.ndim != 2 or len(logits) != samples:
            raise NetworkError(
                f"`{name}` must return logits [{samples}, K] for {samples} items, got "
                f"{list(logits.shape)}"
            )
        return responses_from_logits(logits)
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != samples:
        count = len(found) if isinstance(found, Sequence) else type(found).__name__
        raise NetworkError(
            f"`{name}` must return logits [{samples}, K], or a list with an answer and a "
            f"confidence for each of {samples} items, got {count}"
        )
    return [Response.of(value) for value in found]
