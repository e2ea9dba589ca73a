"""The models of a cascade: what they are, what they cost, and what they return.

A model takes a batch and returns logits, or an answer and a confidence for each item. `calls` has
what happens where one fails or hangs, and `torch_members` what needs torch.
"""

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from offramp import check
from offramp.arrays import (
    AnyArray,
    Array,
    as_numpy,
    as_tensor,
    is_array,
    is_module,
    is_tensor,
    namespace,
    softmax,
)
from offramp.batch_times import BatchTimes, seconds_left
from offramp.costs import Costs
from offramp.errors import ConfigError, NetworkError
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
        error: Why there is no answer, where there is none; what `cost` says was billed all the
            same.
    """

    answer: Any = None
    confidence: float | None = None
    cost: float | None = None
    features: tuple[float, ...] = ()
    logits: AnyArray | None = None
    error: str = ""

    @classmethod
    def of(cls, value: Any) -> "Response":  # noqa: ANN401 - whatever a callable returns
        """From logits `[K]`, `(answer, confidence)`, `(answer, confidence, cost)`, or a mapping.

        Example:
            >>> Response.of(("Paris", 0.9, 0.002)).cost
            0.002
        """
        if isinstance(value, Response):
            return value
        if isinstance(value, tuple) and len(value) in (2, 3):
            return cls(*value)
        if isinstance(value, Mapping):
            unknown = set(value) - {each.name for each in fields(cls)}
            if unknown:
                raise NetworkError(
                    f"a model returned what is not known here: {', '.join(sorted(unknown))}"
                )
            return cls(**value)
        if is_array(value) and value.ndim == 1:
            (response,) = responses_from_logits(as_numpy(value)[None])
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
        timeout: Seconds after which a call is cut off; that of the cascade by default.
        samples: How often it may be asked about the same item: its answers are stages, too.
        at_once: How many of these samples are asked for at the same time; once the policy stops,
            the others are cancelled. For async callables.
    """

    model: Any
    cost: float | Costs | BatchTimes | None = None
    name: str = ""
    prepare: Callable[[Any], Any] | None = None
    timeout: float | None = None
    samples: int = 1
    at_once: int = 1
    costs: Costs | None = field(default=None, init=False)
    is_named: bool = field(default=False, init=False)
    batch_times: BatchTimes | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        kind = type(self.model).__name__
        self.is_named = bool(self.name)
        self.name = self.name or getattr(self.model, "__name__", kind)
        known = is_module(self.model) or hasattr(self.model, "predict_proba")
        if not (known or _is_onnx(self.model) or callable(self.model)):
            raise ConfigError(
                f"`{self.name}` cannot be a model of a cascade: a torch module, an ONNX session, "
                "a scikit-learn classifier with predict_proba or a callable is needed, got "
                f"{kind}"
            )
        if self.timeout is not None:
            check.positive("timeout", self.timeout)
        check.whole("samples", self.samples, least=1)
        check.whole("at_once", self.at_once, least=1)
        if self.has_exits and self.samples > 1:
            raise ConfigError(f"`{self.name}` has exits, and would give the same answers again")
        if self.at_once > 1 and not self.is_async:
            raise ConfigError(f"`{self.name}` must be an async callable to be asked at_once")
        if isinstance(self.cost, Costs | BatchTimes):
            self._set_costs(self.cost)
        elif self.cost is not None:
            check.at_least(f"cost of {self.name}", self.cost, 0)
            nothing = np.zeros(self.samples)
            self._set_costs(Costs(nothing, nothing + self.cost, unit="relative"))

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
            costs = Costs((0.0,), costs.cumulative, unit=costs.unit)
            if times is not None:
                heads = times.stages + times.heads
                times = BatchTimes(np.zeros_like(heads), heads, times.reference)
        self.costs, self.batch_times = costs, times

    @property
    def stages(self) -> int:
        """How many times it answers."""
        return int(self.model.num_exits) if self.has_exits else self.samples

    @property
    def own_cost(self) -> float | None:
        """What a call was stated to cost."""
        return None if self.costs is None or self.has_exits else float(self.costs.heads[0])

    @property
    def has_exits(self) -> bool:
        """Whether it is an `EarlyExitNetwork`."""
        if not is_module(self.model):
            return False
        from offramp.networks.network import EarlyExitNetwork

        return isinstance(self.model, EarlyExitNetwork)

    @property
    def is_async(self) -> bool:
        """Whether it is called item by item, many at once."""
        call = getattr(self.model, "__call__", None)  # noqa: B004 - an object with an async call
        return inspect.iscoroutinefunction(self.model) or inspect.iscoroutinefunction(call)

    @property
    def identity(self) -> str:
        """Tells it from others: weights, where it has some, else its name."""
        if not is_module(self.model):
            return self.name
        from offramp.networks.network import fingerprint

        return fingerprint(self.model)

    def count(self, inputs: Any = None) -> None:  # noqa: ANN401 - as the cascade takes them
        """Count its multiply-accumulates; a plain module is run on a batch of inputs for that.

        Raises:
            ConfigError: That is not possible for what this model is.
        """
        if not is_module(self.model):
            raise ConfigError(
                f"the multiply-accumulates of `{self.name}` are not known: state them as "
                "Member(..., cost=...), or let the cascade measure seconds"
            )
        from offramp.runtime.torch_members import counted

        if self.has_exits or inputs is not None:
            ready = inputs if self.prepare is None or inputs is None else self.prepare(inputs)
            self._set_costs(counted(self.model, ready))

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

        def run(rows: Array) -> None:
            model_run = self.start(inputs, rows)
            for stage in range(self.stages):
                watch()
                model_run.batch(stage, rows)

        timed = [Timed(run, [np.arange(size)], warm=0) for size in sizes]
        for each in timed:
            take_turns([[each]], watch, least=rounds + 1)
        best = np.array([each.best for each in timed])  # [S, stages]
        if samples == 1:  # which stays or leaves: no batch shrinks
            curves = best.T
        else:
            curves = np.stack([seconds_left(sizes, each.tolist(), samples) for each in best.T])
        reference = float(curves[:, -1].sum())
        self._set_costs(BatchTimes(curves, np.zeros_like(curves), reference))

    def start(self, inputs: Any, rows: Array) -> "ModelRun":  # noqa: ANN401
        """A run over some items of a batch, by their growing positions, stage by stage."""
        ready = picked(inputs, rows)
        ready = ready if self.prepare is None else self.prepare(ready)
        if not self.has_exits:
            return ModelRun(self, ready, rows)
        from offramp.runtime.torch_members import NetworkRun

        return NetworkRun(self, ready, rows)


def told_apart(members: list[Member]) -> list[Member]:
    """The members with a number behind names that several models have by themselves.

    Raises:
        ConfigError: Two were given the same name.
    """
    counts = Counter(member.name for member in members)
    seen: Counter[str] = Counter()
    found = []
    for member in members:
        if counts[member.name] > 1 and member.is_named:
            raise ConfigError(
                f"two models are called `{member.name}`, and messages, files and fingerprints "
                "could not tell them apart: give each its own Member(..., name=...)"
            )
        seen[member.name] += 1
        if seen[member.name] > 1:
            member, name = copy(member), f"{member.name}-{seen[member.name]}"
            member.name = name
        found.append(member)
    return found


class ModelRun:
    """One model on the items of a batch that have come to it; they may leave between stages."""

    def __init__(self, member: Member, inputs: Any, rows: Array) -> None:  # noqa: ANN401
        self.member, self.inputs, self.rows = member, inputs, rows

    def batch(self, stage: int, rows: Array) -> list[Response]:
        """Its responses to these items, by their positions in the whole batch."""
        model, inputs = self.member.model, self.inputs
        if len(rows) < len(self.rows):
            inputs = picked(inputs, np.searchsorted(self.rows, rows))
        if is_module(model):
            from offramp.runtime.torch_members import called

            found = called(model, inputs)
        elif hasattr(model, "predict_proba"):
            return responses_from_estimator(model, as_numpy(inputs))
        elif _is_onnx(model):
            name = model.get_inputs()[0].name
            found = model.run(None, {name: as_numpy(inputs)})[0]
        else:
            found = model(inputs)
        return responses_from_batch(found, len(rows), self.member.name)

    def item(self, row: int) -> Awaitable[Any]:
        """The call of an async model for one item."""
        place = int(np.searchsorted(self.rows, row))
        is_mapping = isinstance(self.inputs, Mapping)
        one = {k: v[place] for k, v in self.inputs.items()} if is_mapping else self.inputs[place]
        call: Awaitable[Any] = self.member.model(one)
        return call


def count(inputs: Any) -> int:  # noqa: ANN401
    """How many items a batch has."""
    if isinstance(inputs, str):
        raise ConfigError(f"a cascade takes a batch of items: [{inputs!r}], got a single text")
    if not isinstance(inputs, list) and isinstance(inputs, Mapping):
        return len(next(iter(inputs.values())))
    return len(inputs)


def picked(inputs: Any, rows: Array) -> Any:  # noqa: ANN401 - whatever the inputs are
    """Some items of a batch, by growing positions: of an array, a sequence, or a mapping of them.

    Example:
        >>> picked({"length": np.array([1, 2, 3]), "text": ["a", "bc", "def"]}, np.array([0, 2]))
        {'length': array([1, 3]), 'text': ['a', 'def']}
    """
    if isinstance(inputs, list):  # the most frequent kind, and asking for a Mapping takes longest
        return [inputs[row] for row in rows.tolist()]
    if isinstance(inputs, Mapping):
        return {name: picked(values, rows) for name, values in inputs.items()}
    if not is_array(inputs):
        return [inputs[row] for row in rows.tolist()]
    if len(rows) == len(inputs):
        return inputs
    return inputs[as_tensor(rows) if is_tensor(inputs) else rows]


def stacked(items: Sequence[Any]) -> Any:  # noqa: ANN401
    """Arrays of one shape as one batch; other items as they are.

    Example:
        >>> stacked([np.zeros(2), np.ones(2)]).shape, stacked(["a", "b"])
        ((2, 2), ['a', 'b'])
    """
    shapes = {is_array(item) and tuple(item.shape) for item in items}
    if len(shapes) != 1 or False in shapes:
        return items
    return namespace(items[0]).stack(items)


def _is_onnx(model: object) -> bool:
    return hasattr(model, "get_inputs") and hasattr(model, "run")


def responses_from_logits(logits: Array) -> list[Response]:
    """The most probable class of each item, and how probable it is, from logits `[n, K]`."""
    values = logits.astype(np.float32, copy=False)
    classes, confidences = values.argmax(axis=1).tolist(), softmax(values).max(axis=1).tolist()
    return [
        Response(answer=number, confidence=confidence, logits=row)
        for number, confidence, row in zip(classes, confidences, values, strict=True)
    ]


def responses_from_estimator(model: Any, inputs: np.ndarray) -> list[Response]:  # noqa: ANN401
    """A scikit-learn classifier: logits, or its own classes where those are not 0..K-1."""
    flat = inputs.reshape(len(inputs), -1) if inputs.ndim > 2 else inputs
    probs = np.asarray(model.predict_proba(flat))
    names = np.asarray(getattr(model, "classes_", range(probs.shape[1]))).tolist()
    if names == list(range(len(names))):
        logs = np.log(np.maximum(probs, TINY)).astype(np.float32)
        return responses_from_logits(logs)
    return [Response(names[int(row.argmax())], float(row.max())) for row in probs]


def responses_from_batch(found: Any, samples: int, name: str) -> list[Response]:  # noqa: ANN401
    """What a model returned for a batch, item by item."""
    if isinstance(found, list) and len(found) == samples:
        return [Response.of(value) for value in found]
    if is_array(found):
        logits = as_numpy(found)
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
