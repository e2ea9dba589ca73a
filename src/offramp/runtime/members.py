"""The models of a cascade, how they are called, and what happens where a call fails.

A model is whatever takes a batch and returns logits, or answers with confidences. A call that
fails is tried again with longer and longer pauses; where that does not help, there is no response,
and the item goes on with the next model.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offramp import check
from offramp.batch_times import BatchTimes, seconds_left
from offramp.costs import Costs
from offramp.errors import ConfigError, NetworkError
from offramp.ledger.answers import Normalise
from offramp.networks.macs import count_macs, counting
from offramp.networks.network import EarlyExitNetwork
from offramp.networks.state import State, evaluating, take
from offramp.networks.weights import fingerprint
from offramp.runtime.responses import (
    Response,
    responses_from_batch,
    responses_from_estimator,
    responses_from_logits,
)
from offramp.timing.turns import Stopwatch, Timed, take_turns

logger = logging.getLogger("offramp")


@dataclass(eq=False)
class Member:
    """One model of a cascade.

    Args:
        model: A torch module, an `EarlyExitNetwork` (its exits are stages too), an ONNX Runtime
            session, a scikit-learn classifier, or a callable that takes a batch and returns
            logits, or an answer and a confidence for each item. An `async` callable takes one
            item; several calls then run at once.
        cost: Of one item, this model alone, in the unit of the cascade; `Costs` for an
            `EarlyExitNetwork`. None where a call states it, or where it is counted or measured.
        name: For reports and messages; that of the model by default.
        prepare: From the inputs of the cascade to those of the model, such as another size.
    """

    model: Any
    cost: float | Costs | BatchTimes | None = None
    name: str = ""
    prepare: Callable[[Any], Any] | None = None
    costs: Costs | None = field(default=None, init=False)
    batch_times: BatchTimes | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        kind = type(self.model).__name__
        self.name = self.name or getattr(self.model, "__name__", kind)
        known = isinstance(self.model, nn.Module) or hasattr(self.model, "predict_proba")
        if not (known or _is_onnx(self.model) or callable(self.model)):
            raise ConfigError(
                f"`{self.name}` cannot be a model of a cascade: a torch module, an ONNX session, "
                "a scikit-learn classifier with predict_proba or a callable is needed, got "
                f"{kind}"
            )
        if isinstance(self.cost, BatchTimes):
            self.costs, self.batch_times = self.cost.costs, self.cost
        elif isinstance(self.cost, Costs):
            self.costs = self.cost
        elif self.cost is not None:
            self.costs = Costs((self.cost,), (0.0,), unit="relative")
        if self.costs is not None and self.costs.num_exits != self.stages:
            raise ConfigError(
                f"`{self.name}` has {self.stages} stages, and costs for "
                f"{self.costs.num_exits} were given"
            )

    @property
    def stages(self) -> int:
        """How many times it answers."""
        return self.model.num_exits if isinstance(self.model, EarlyExitNetwork) else 1

    @property
    def is_async(self) -> bool:
        """Whether it is called item by item, many at once."""
        call = getattr(self.model, "__call__", None)  # noqa: B004 - an object with an async call
        return inspect.iscoroutinefunction(self.model) or inspect.iscoroutinefunction(call)

    @property
    def identity(self) -> str:
        """Tells it from others: weights, where it has some, else its name."""
        return fingerprint(self.model) if isinstance(self.model, nn.Module) else self.name

    def count(self, inputs: Any = None) -> None:  # noqa: ANN401 - as the cascade takes them
        """Count its multiply-accumulates; those of a plain module on a batch of inputs.

        Raises:
            ConfigError: That is not possible for what this model is.
        """
        if isinstance(self.model, EarlyExitNetwork):
            self.costs = count_macs(self.model)
        elif not isinstance(self.model, nn.Module):
            raise ConfigError(
                f"the multiply-accumulates of `{self.name}` are not known: state them as "
                "Member(..., cost=...), or let the cascade measure seconds"
            )
        elif inputs is not None:
            ready = inputs if self.prepare is None else self.prepare(inputs)
            with counting() as counter, torch.inference_mode(), evaluating(self.model):
                samples = len(self.model(ready))
            self.costs = Costs((counter.get_total_flops() / 2 / samples,), (0.0,))

    def measure(
        self,
        inputs: Any,  # noqa: ANN401
        samples: int,
        rounds: int,
        clock: Callable[[], float],
    ) -> None:
        """Time each stage on a batch and on parts of it; the fastest of several rounds counts."""
        sizes = sorted({max(1, samples // 2**power) for power in range(samples.bit_length())})
        watch = Stopwatch(clock)

        def run(rows: Tensor) -> None:
            model_run = self.start(inputs, rows)
            for stage in range(self.stages):
                watch()
                model_run.batch(stage, rows)

        timed = [Timed(run, [torch.arange(size)], warm=0) for size in sizes]
        for each in timed:
            take_turns([[each]], watch, least=rounds + 1)
        best = np.array([each.best for each in timed])  # [S, stages]
        curves = torch.stack([seconds_left(sizes, each.tolist(), samples) for each in best.T])
        # One item is all of its batch or nothing of it: seconds are proportional.
        curves = curves if samples > 1 else torch.from_numpy(best.T)
        reference = float(curves[:, -1].sum())
        self.batch_times = BatchTimes(curves, torch.zeros_like(curves), reference)
        self.costs = self.batch_times.costs

    def start(self, inputs: Any, rows: Tensor) -> "ModelRun":  # noqa: ANN401
        """A run over some items of a batch, by their growing positions, stage by stage."""
        ready = picked(inputs, rows)
        ready = ready if self.prepare is None else self.prepare(ready)
        staged = isinstance(self.model, EarlyExitNetwork)
        return NetworkRun(self, ready, rows) if staged else ModelRun(self, ready, rows)


class ModelRun:
    """One model on the items of a batch that have come to it; they may leave between stages."""

    def __init__(self, member: Member, inputs: Any, rows: Tensor) -> None:  # noqa: ANN401
        self.member, self.inputs, self.rows = member, inputs, rows

    def batch(self, stage: int, rows: Tensor) -> list[Response]:
        """Its responses to these items, by their positions in the whole batch."""
        places = torch.searchsorted(self.rows, rows)
        model, inputs = self.member.model, picked(self.inputs, places)
        if isinstance(model, nn.Module):
            with torch.inference_mode(), evaluating(model):
                return responses_from_batch(model(inputs), len(rows), self.member.name)
        if hasattr(model, "predict_proba"):
            return responses_from_estimator(model, np.asarray(inputs))
        if _is_onnx(model):
            name = model.get_inputs()[0].name
            found = model.run(None, {name: np.asarray(inputs)})[0]
            return responses_from_batch(found, len(rows), self.member.name)
        return responses_from_batch(model(inputs), len(rows), self.member.name)

    def item(self, row: int) -> Awaitable[Any]:
        """The call of an async model for one item."""
        place = int(torch.searchsorted(self.rows, row))
        call: Awaitable[Any] = self.member.model(picked_one(self.inputs, place))
        return call


class NetworkRun(ModelRun):
    """An `EarlyExitNetwork`, whose state shrinks with the batch."""

    def __init__(self, member: Member, inputs: Any, rows: Tensor) -> None:  # noqa: ANN401
        super().__init__(member, inputs, rows)
        self._state: State | None = None
        self._logits: Tensor | None = None
        self._next = 0

    def batch(self, stage: int, rows: Tensor) -> list[Response]:
        """Run up to a stage for these items; some of those before may be gone."""
        network = self.member.model
        with torch.inference_mode(), evaluating(network):
            if self._state is None:
                self._state = network.begin(self.inputs)
            if len(rows) < len(self.rows):
                kept = torch.searchsorted(self.rows, rows)
                self._state, self.rows = take(self._state, kept), rows
                self._logits = None if self._logits is None else self._logits[kept]
            while self._next <= stage:
                self._state = network.advance(self._next, self._state)
                logits = network.head(self._next, self._state, self._logits)[:, None]
                earlier = [] if self._logits is None else [self._logits]
                self._logits = torch.cat([*earlier, logits], dim=1)
                self._next += 1
            assert self._logits is not None
            return responses_from_logits(self._logits[:, -1])


@dataclass(frozen=True)
class CallSettings:
    """How models are called; see `Cascade`."""

    concurrency: int = 8
    retries: int = 2
    backoff: float = 0.5
    normalise: Normalise | None = None

    def __post_init__(self) -> None:
        check.whole("concurrency", self.concurrency, least=1)
        check.whole("retries", self.retries)
        check.at_least("backoff", self.backoff, 0)


class Calls:
    """The calls of models for one batch: at most so many at once, tried again where they fail.

    Args:
        settings: How often and when to try again.
        until: The time of `time.monotonic` at which async calls are cancelled; None: never.

    Attributes:
        errors: By model, the last error that it failed with.
    """

    def __init__(self, settings: CallSettings, until: float | None = None) -> None:
        self.errors: dict[str, Exception] = {}
        self._settings, self._until = settings, until
        self._limit = asyncio.Semaphore(settings.concurrency)

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return self._until is not None and time.monotonic() >= self._until

    async def responses(
        self, model_run: "ModelRun", stage: int, rows: Tensor
    ) -> list[Response | None]:
        """The responses of a model to these items; None where it fails even when tried again."""
        if model_run.member.is_async:
            each = (self._response(model_run, row) for row in rows.tolist())
            return await asyncio.gather(*each)
        try:
            return list(await self._tried(lambda: _awaitable(model_run.batch(stage, rows))))
        except NetworkError:
            raise
        except Exception as error:
            self._note(model_run.member.name, error)
            return [None] * len(rows)

    async def _response(self, model_run: "ModelRun", row: int) -> Response | None:
        async with self._limit:
            left = None if self._until is None else max(0.0, self._until - time.monotonic())
            try:
                async with asyncio.timeout(left):
                    return Response.of(await self._tried(lambda: model_run.item(row)))
            except NetworkError:
                raise
            except Exception as error:
                if left is None or not isinstance(error, TimeoutError):  # or time is up
                    self._note(model_run.member.name, error)
                return None

    async def _tried(self, call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        """The result of a call, tried again with longer and longer pauses."""
        for attempt in range(self._settings.retries):
            try:
                return await call()
            except NetworkError:  # it responded, with something that no retry will change
                raise
            except Exception:
                await asyncio.sleep(self._settings.backoff * 2**attempt)
        return await call()

    def _note(self, name: str, error: Exception) -> None:
        """Keep why a model failed, and log the first of its errors."""
        if name not in self.errors:
            logger.warning("`%s` of a cascade failed: %s", name, one_line(error))
        self.errors[name] = error


async def _awaitable(value: Any) -> Any:  # noqa: ANN401
    return value


def one_line(error: Exception) -> str:
    """Somebody else's error in one line."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def picked(inputs: Any, rows: Tensor) -> Any:  # noqa: ANN401 - whatever the inputs are
    """Some items of a batch: of a tensor, an array, a mapping of tensors, or a sequence."""
    if isinstance(inputs, Tensor):
        return inputs if len(rows) == len(inputs) else inputs[rows]
    if isinstance(inputs, np.ndarray):
        return inputs[rows.numpy()]
    if isinstance(inputs, Mapping):
        return take(inputs, rows)
    return [inputs[row] for row in rows.tolist()]


def picked_one(inputs: Any, row: int) -> Any:  # noqa: ANN401
    """One item of a batch."""
    if isinstance(inputs, Mapping):
        return {name: values[row] for name, values in inputs.items()}
    return inputs[row]


def _is_onnx(model: object) -> bool:
    return hasattr(model, "get_inputs") and hasattr(model, "run")
