"""What the server answers: a runner or a cascade replies to every sample in a batch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from starlette.exceptions import HTTPException

from offramp import __version__
from offramp.arrays import as_lists
from offramp.errors import ConfigError
from offramp.networks.inputs import Inputs
from offramp.runtime.engine import StagedRunner
from offramp.runtime.members import stacked
from offramp.runtime.stats import Operation
from offramp.serving.columns import padded
from offramp.serving.config import AppConfig
from offramp.serving.images import Reading
from offramp.serving.model import Model
from offramp.serving.requests import Parser, ReadItem, item_parser, parser_for
from offramp.thresholds.rule import SURE

if TYPE_CHECKING:
    from offramp.policy import Policy
    from offramp.runtime.cascade import Cascade
    from offramp.runtime.cascade_run import CascadeAnswer

Record = dict[str, Any]
"""An answer as JSON, with `exit`, `cost` and `likely_wrong`."""
Reply = Record | HTTPException
"""What becomes of a sample: its answer, or the reason why there is none."""


@dataclass(frozen=True)
class Responder:
    """Answers batches of samples, and counts at its operating point what it has done."""

    answer: Callable[[Sequence[Any]], list[Reply]]
    operation: Operation  # the operating point, and the statistics
    parser: Parser  # makes samples of requests
    # Number of `exits` and `classes`, fingerprints of the `network` and the `policy`.
    loaded: dict[str, Any]
    inputs: Inputs | None = None  # what the network takes; None for a cascade, which does not say

    @property
    def about(self) -> dict[str, Any]:
        """What answers at present: what is loaded, at which budget, and our version."""
        return {**self.loaded, "budget": self.budget, "version": __version__}

    @property
    def budget(self) -> float:
        """Mean cost on val of the operating point that was chosen."""
        held = self.operation.snapshot().held
        return self.operation.point.expected_cost if held is None else held.budget

    def set_budget(self, budget: float) -> None:
        """Move to the operating point of another budget; `BudgetError` if there is none."""
        self.operation.start(self.operation.points.for_budget(budget))


def model_responder(model: Model, config: AppConfig) -> Responder:
    """Load a model, to answer with its runner."""
    runner = model.runner(config.device, config.precision, config.threads)
    return runner_responder(runner, model.reading, config.max_pixels)


def runner_responder(runner: StagedRunner, reading: Reading, max_pixels: int) -> Responder:
    """Answer with a runner; an answer has the fields of `RunOutput.records`.

    Args:
        runner: A `Runner` or an `OnnxRunner`.
        reading: How samples are read, and how classes are named.
        max_pixels: Size limit of an image as it is sent.
    """

    def answer(samples: Sequence[Any]) -> list[Reply]:
        batch = padded(samples) if isinstance(samples[0], dict) else np.stack(samples)
        none = HTTPException(422, "the network has no finite answer to this input")
        records = runner(batch).records(reading.class_names)
        return [none if record["class"] is None else record for record in records]

    parser = parser_for(runner.inputs, reading, max_pixels)
    read = {"reading": asdict(reading)}
    loaded = {**runner.about, "classes": runner.num_classes, **read}
    return Responder(answer, runner.operation, parser, loaded, runner.inputs)


def cascade_responder(
    cascade: "Cascade", policy: "Policy | None", read_item: ReadItem | None
) -> Responder:
    """Answer with a cascade and its policy; each item asks as few models as it needs.

    Args:
        cascade: The models.
        policy: Fitted on ledgers of the cascade, at an operating point.
        read_item: Makes an item of the JSON value in a request.

    Raises:
        ConfigError: There is no cascade, or no policy.
        NetworkError, OriginError, NotFittedError: They do not belong together.
    """
    from offramp.runtime.cascade import Cascade
    from offramp.runtime.prepared_points import PreparedPoints

    if not isinstance(cascade, Cascade):
        raise ConfigError(
            "a Model (of folders), a Runner, an OnnxRunner or a Cascade can be served, got "
            f"{type(cascade).__name__}"
        )
    if policy is None:
        raise ConfigError("a cascade is served with its policy: serve(cascade, policy=policy)")
    cascade.check_policy(policy)
    points = PreparedPoints(policy)  # raises where there is no operating point
    assert policy.selected is not None
    operation = Operation(points, policy.selected)

    def answer(samples: Sequence[Any]) -> list[Reply]:
        point = operation.point
        answers = cascade.run(stacked(samples), policy.at_point(point.index))
        replies = [_reply(answer, policy) for answer in answers]
        exits = [each["exit"] for each in replies if isinstance(each, dict)]
        operation.add(point, exits, failed=len(replies) - len(exits))
        return replies

    loaded = {
        "exits": len(policy.exits),
        "members": [cascade.stage_names[stage] for stage in policy.exits],
        "network": cascade.fingerprint(),
        "policy": policy.fingerprint(),
        "classes": policy.num_classes,
    }
    return Responder(answer, operation, item_parser(read_item or (lambda item: item)), loaded)


def _reply(found: "CascadeAnswer", policy: "Policy") -> Reply:
    if found.answer is None:
        reason = f"every model failed: {', '.join(found.failures)}"
        return HTTPException(503, reason, {"Retry-After": "1"})
    try:
        answer = msgspec.to_builtins(found.answer, str_keys=True, enc_hook=as_lists)
    except TypeError:
        kind = type(found.answer).__name__
        return HTTPException(500, f"`{found.member}` answered with a {kind}, which is not JSON")
    confidence = found.confidence if math.isfinite(found.confidence) else None
    return {
        "answer": answer,
        "confidence": confidence,
        "likely_wrong": confidence is not None and confidence < SURE,
        "exit": policy.exits.index(found.stage),
        "member": found.member,
        "cost": found.cost / policy.reference_cost,
        "why": found.why,
        "failures": list(found.failures),
    }
