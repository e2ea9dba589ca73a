"""What answers batches of queries: a runner here, a cascade in `offramp.serving.cascades`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offramp.onnx.graphs import Array
from offramp.runtime.engine import StagedRunner
from offramp.runtime.stats import Operation
from offramp.serving.config import AppConfig
from offramp.serving.images import ImageReader
from offramp.serving.model import Model
from offramp.serving.requests import Parser, Query, RequestParser, tokenizer_of


class Worker(ABC):
    """Answers batches of queries, and counts at its operating point what it has done.

    Attributes:
        operation: The operating point, and the statistics.
        parser: Makes queries of requests.
        about: Number of `exits` and `classes`, fingerprints of the `network` and the `policy`.
    """

    operation: Operation
    parser: Parser
    about: dict[str, Any]

    @abstractmethod
    def __call__(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Answer a batch: a record for each query."""

    @property
    def budget(self) -> float:
        """Mean cost on val of the operating point that was chosen."""
        held = self.operation.snapshot().held
        points = self.operation.ladder.points
        return float(points.budgets[self.operation.point.index]) if held is None else held.budget

    def set_budget(self, budget: float) -> None:
        """Move to the operating point of another budget; `BudgetError` if there is none."""
        self.operation.start(self.operation.ladder.for_budget(budget))


class RunnerWorker(Worker):
    """Answers with a runner; a record has the `id` of its query and `RunOutput.records`' fields.

    Args:
        runner: A `Runner` or an `OnnxRunner`.
        parser: Makes queries of requests.
        class_names: `[K]`, or None.
    """

    def __init__(
        self,
        runner: StagedRunner,
        parser: RequestParser,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.operation, self.parser = runner.operation, parser
        self.about = {**runner.about, "classes": runner.num_classes}
        self._runner, self._class_names, self._images = runner, class_names, parser.images

    @classmethod
    def of_model(cls, model: Model, config: AppConfig) -> "RunnerWorker":
        """Load a model."""
        runner = model.runner(config.device, config.precision, config.threads)
        tokenizer = tokenizer_of(model.tokenizer)
        parser = RequestParser(runner.inputs, model.images, tokenizer, config.max_pixels)
        return cls(runner, parser, model.class_names)

    @classmethod
    def of_runner(
        cls,
        runner: StagedRunner,
        config: AppConfig,
        class_names: Sequence[str] | None,
        images: ImageReader | None,
    ) -> "RunnerWorker":
        """Use a runner that was loaded elsewhere."""
        parser = RequestParser(runner.inputs, images, max_pixels=config.max_pixels)
        return cls(runner, parser, None if class_names is None else tuple(class_names))

    def __call__(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Answer a batch."""
        records = self._runner(self._batch(queries)).records(self._class_names)
        pairs = zip(queries, records, strict=True)
        return [{"id": query.id, **record} for query, record in pairs]

    def _batch(self, queries: Sequence[Query]) -> Any:  # noqa: ANN401 - as the network takes it
        if "input_ids" in queries[0].arrays:
            return padded([query.arrays for query in queries])
        return np.stack([self._inputs(query.arrays) for query in queries])

    def _inputs(self, arrays: Mapping[str, Array]) -> Array:
        if self._images is None or "pixels" not in arrays:
            return arrays["inputs"]
        normalised: Array = self._images.normalization(arrays["pixels"])
        return normalised


def padded(texts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Texts of arrays `[length]` as one batch of arrays `[n, longest]`; padding is masked out."""
    length = max(len(text["input_ids"]) for text in texts)
    # Texts without segments lie entirely in the first one.
    names = {name for text in texts for name in text}

    def widened(text: Mapping[str, Array], name: str) -> Array:
        array = text.get(name, np.zeros(len(text["input_ids"]), dtype=np.int64))
        return np.pad(array, (0, length - len(array)))

    return {name: np.stack([widened(text, name) for text in texts]) for name in names}
