"""The models of a cascade: what they are, what they cost, and what they return.

A model takes a batch and returns logits, or an answer and a confidence for each item.
`member_failures` has what happens where one fails.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offramp.batch_times import BatchTimes, seconds_left
from offramp.costs import Costs
from offramp.errors import ConfigError, NetworkError
from offramp.networks.macs import count_macs, counting
from offramp.networks.network import EarlyExitNetwork, fingerprint
from offramp.networks.state import State, evaluating, take
from offramp.stopwatch import Stopwatch, Timed, take_turns

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
        prepare: Makes the model's inputs from the inputs of the cascade, such as another size.
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
        if isinstance(self.cost, Costs | BatchTimes):
            self._set_costs(self.cost)
        elif self.cost is not None:
            self._set_costs(Costs((self.cost,), (0.0,), unit="relative"))

    def _set_costs(self, cost: Costs | BatchTimes) -> None:
        """Keep what the stages cost.

        A model of one stage is all head: a policy that leaves its stage out does not pay for it,
        as it pays for the stages of a network whose heads it leaves out.
        """
        costs, times = (cost.costs, cost) if isinstance(cost, BatchTimes) else (cost, None)
        if costs.num_exits != self.stages:
            raise ConfigError(
                f"`{self.name}` has {self.stages} stages, and costs for {costs.num_exits} were "
                "given"
            )
        if self.stages == 1:
            costs = Costs(torch.zeros(1), costs.cumulative, unit=costs.unit)
            if times is not None:
                heads = times.stages + times.heads
                times = BatchTimes(torch.zeros_like(heads), heads, times.reference)
        self.costs, self.batch_times = costs, times

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
        """Count its multiply-accumulates; a plain module is run on a batch of inputs for that.

        Raises:
            ConfigError: That is not possible for what this model is.
        """
        if isinstance(self.model, EarlyExitNetwork):
            self._set_costs(count_macs(self.model))
        elif not isinstance(self.model, nn.Module):
            raise ConfigError(
                f"the multiply-accumulates of `{self.name}` are not known: state them as "
                "Member(..., cost=...), or let the cascade measure seconds"
            )
        elif inputs is not None:
            ready = inputs if self.prepare is None else self.prepare(inputs)
            with counting() as counter, torch.inference_mode(), evaluating(self.model):
                samples = len(self.model(ready))
            self._set_costs(Costs((counter.get_total_flops() / 2 / samples,), (0.0,)))

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
        if samples == 1:  # which stays or leaves: no batch shrinks
            curves = torch.from_numpy(best.T)
        else:
            curves = torch.stack([seconds_left(sizes, each.tolist(), samples) for each in best.T])
        reference = float(curves[:, -1].sum())
        self._set_costs(BatchTimes(curves, torch.zeros_like(curves), reference))

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
                found = model(inputs)
        elif hasattr(model, "predict_proba"):
            return responses_from_estimator(model, np.asarray(inputs))
        elif _is_onnx(model):
            name = model.get_inputs()[0].name
            found = model.run(None, {name: np.asarray(inputs)})[0]
        else:
            found = model(inputs)
        return responses_from_batch(found, len(rows), self.member.name)

    def item(self, row: int) -> Awaitable[Any]:
        """The call of an async model for one item."""
        place = int(torch.searchsorted(self.rows, row))
        is_mapping = isinstance(self.inputs, Mapping)
        one = {k: v[place] for k, v in self.inputs.items()} if is_mapping else self.inputs[place]
        call: Awaitable[Any] = self.member.model(one)
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


def picked(inputs: Any, rows: Tensor) -> Any:  # noqa: ANN401 - whatever the inputs are
    """Some items of a batch: of a tensor, an array, a mapping of tensors, or a sequence."""
    if isinstance(inputs, Tensor):
        return inputs if len(rows) == len(inputs) else inputs[rows]
    if isinstance(inputs, np.ndarray):
        return inputs[rows.numpy()]
    if isinstance(inputs, Mapping):
        return take(inputs, rows)
    return [inputs[row] for row in rows.tolist()]


def _is_onnx(model: object) -> bool:
    return hasattr(model, "get_inputs") and hasattr(model, "run")


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
