"""A cascade behind HTTP: each request is one item, which asks as few models as it needs."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from offramp.errors import ConfigError
from offramp.policy import Policy
from offramp.runtime.cascade import Cascade
from offramp.runtime.cascade_run import CascadeAnswer
from offramp.runtime.runner import ladder_of, selected
from offramp.runtime.stats import Operation
from offramp.serving.requests import ItemParser, Query, ReadItem, is_answered
from offramp.serving.workers import Worker
from offramp.thresholds.rule import SURE


class CascadeWorker(Worker):
    """Answers batches of items with a cascade and its policy.

    Args:
        cascade: The models.
        policy: Fitted on ledgers of the cascade, at an operating point.
        read: Makes an item of the JSON value in a request; None where the value is the item.

    Raises:
        ConfigError: There is no cascade, or no policy.
        NetworkError, OriginError, NotFittedError: They do not belong together.
    """

    def __init__(self, cascade: Cascade, policy: Policy | None, read: ReadItem | None) -> None:
        if not isinstance(cascade, Cascade):
            raise ConfigError(
                "a Model (of folders), a Runner, an OnnxRunner or a Cascade can be served, got "
                f"{type(cascade).__name__}"
            )
        if policy is None:
            raise ConfigError("a cascade is served with its policy: serve(cascade, policy=policy)")
        cascade.check_policy(policy)
        self._cascade, self._policy = cascade, policy
        self.parser = ItemParser(read or (lambda item: item))
        self.operation = Operation(ladder_of(policy), selected(policy))
        self.loaded = {
            "exits": len(policy.exits),
            "members": [cascade.stage_names[stage] for stage in policy.exits],
            "network": cascade.fingerprint(),
            "policy": policy.fingerprint(),
            "classes": policy.num_classes,
        }

    def __call__(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Answer a batch at the present operating point."""
        point = self.operation.point
        items = [query.arrays["item"] for query in queries]
        batch = torch.stack(items) if isinstance(items[0], Tensor) else items
        answers = self._cascade.run(batch, self._policy.at_point(point.index))
        records = [self._record(*pair) for pair in zip(queries, answers, strict=True)]
        exits = [record["exit"] for record in records if is_answered(record)]
        self.operation.add(point, exits, failed=len(records) - len(exits))
        return records

    def _record(self, query: Query, found: CascadeAnswer) -> dict[str, Any]:
        if found.answer is None:
            failed = ", ".join(found.failures)
            return {"id": query.id, "answer": None, "detail": f"every model failed: {failed}"}
        confidence = found.confidence if math.isfinite(found.confidence) else None
        return {
            "id": query.id,
            "answer": found.answer,
            "confidence": confidence,
            "likely_wrong": confidence is not None and confidence < SURE,
            "exit": self._policy.exits.index(found.stage),
            "member": found.member,
            "cost": found.cost / self._policy.reference_cost,
            "why": found.why,
            "failures": list(found.failures),
        }
