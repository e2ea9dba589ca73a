"""What answers batches of queries: a runner here, a cascade in `offramp.serving.cascades`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offramp import __version__
from offramp.data.decoding import find_tokenizer
from offramp.onnx.runner import Array
from offramp.runtime.engine import StagedRunner
from offramp.runtime.stats import Operation
from offramp.serving.columns import padded
from offramp.serving.config import AppConfig
from offramp.serving.model import Model
from offramp.serving.requests import Parser, Query, RequestParser


class Worker(ABC):
    """Answers batches of queries, and counts at its operating point what it has done.

    Attributes:
        operation: The operating point, and the statistics.
        parser: Makes queries of requests.
        loaded: Number of `exits` and `classes`, fingerprints of the `network` and the `policy`.
    """

    operation: Operation
    parser: Parser
    loaded: dict[str, Any]

    @abstractmethod
    def __call__(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Answer a batch: a record for each query."""

    @property
    def about(self) -> dict[str, Any]:
        """What answers at present: what is loaded, at which budget, and our version."""
        return {**self.loaded, "budget": self.budget, "version": __version__}

    @property
    def budget(self) -> float:
        """Mean cost on val of the operating point that was chosen."""
        held = self.operation.snapshot().held
        points = self.operation.ladder.points
        return float(points.budgets[self.operation.point.index]) if held is None else held.budget

    def takes_the_same_as(self, other: "Worker") -> bool:
        """Whether requests and metrics of one suit the other: inputs, and the number of exits."""
        mine, others = ((each.parser.inputs, each.loaded["exits"]) for each in (self, other))
        return mine == others

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
        self.loaded = {**runner.about, "classes": runner.num_classes}
        self._runner, self._images = runner, parser.images
        self._class_names = None if class_names is None else tuple(class_names)

    @classmethod
    def of_model(cls, model: Model, config: AppConfig) -> "RunnerWorker":
        """Load a model."""
        runner = model.runner(config.device, config.precision, config.threads)
        tokenizer = None if model.tokenizer is None else find_tokenizer(model.tokenizer)
        parser = RequestParser(runner.inputs, model.images, tokenizer, config.max_pixels)
        return cls(runner, parser, model.class_names)

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
