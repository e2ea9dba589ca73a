"""A cascade behind HTTP: each request is one item, which asks as few models as it needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offramp.errors import ConfigError
from offramp.policy import Policy
from offramp.runtime.cascade import Cascade
from offramp.runtime.cascade_run import CascadeAnswer
from offramp.runtime.ladder import Ladder
from offramp.runtime.runner import prepared_point
from offramp.runtime.stats import Operation
from offramp.serving.requests import Query, ReadItem, RequestError, RequestSettings, json_query


class CascadeWorker:
    """Answers batches of items, and knows what a service has to know of a runner."""

    def __init__(self, cascade: Cascade, policy: Policy | None, read: ReadItem | None) -> None:
        if not isinstance(cascade, Cascade):
            raise ConfigError(
                "a Model (of folders), a Runner, an OnnxRunner or a Cascade can be served, got "
                f"{type(cascade).__name__}"
            )
        if policy is None:
            raise ConfigError("a cascade is served with its policy: serve(cascade, policy=policy)")
        cascade.run([], policy)  # raises where they do not belong together
        assert policy.selected is not None, "checked above"
        self._cascade, self._policy = cascade, policy
        self._read = read or (lambda item: item)
        nothing_read = [False] * len(policy.exits)
        ladder = Ladder(
            policy.points, lambda index: prepared_point(policy.at_point(index), nothing_read)
        )
        self.operation = Operation(ladder, policy.selected)
        self.num_classes = policy.num_classes
        self.about = {
            "exits": len(policy.exits),
            "members": [cascade.stage_names[stage] for stage in policy.exits],
            "network": cascade.fingerprint(),
            "policy": policy.fingerprint(),
        }

    @property
    def policy(self) -> str:
        """The fingerprint of the policy."""
        return str(self.about["policy"])

    def __call__(self, queries: Sequence[Query], point: int) -> list[dict[str, Any]]:
        """Answer a batch at the operating point with this number."""
        items = [query.arrays["item"] for query in queries]
        batch = torch.stack(items) if isinstance(items[0], Tensor) else items
        found = self._cascade.run(batch, self._policy.at_point(point))
        return [self._record(query, each) for query, each in zip(queries, found, strict=True)]

    def _record(self, query: Query, found: CascadeAnswer) -> dict[str, Any]:
        if found.answer is None:
            failed = ", ".join(found.failures)
            return {"id": query.id, "answer": None, "detail": f"every model failed: {failed}"}
        sure = found.confidence if math.isfinite(found.confidence) else None
        return {
            "id": query.id,
            "answer": found.answer,
            "confidence": sure,
            "likely_wrong": sure is not None and sure < 0.5,
            "exit": self._policy.exits.index(found.stage),
            "member": found.member,
            "cost": found.cost / self._policy.reference_cost,
            "why": found.why,
            "failures": list(found.failures),
        }

    def parser(self, settings: RequestSettings) -> "ItemParser":
        """What reads its requests."""
        return ItemParser(self._read, settings)


@dataclass(frozen=True)
class ItemParser:
    """Turns requests `{"item": ...}` into items, or says what is wrong with them."""

    read: ReadItem
    settings: RequestSettings = field(default_factory=RequestSettings)
    inputs: None = None  # a cascade does not say what its models take

    def parse(self, content_type: str, body: bytes, request_id: str | None = None) -> Query:
        """Read the item in a body of JSON."""
        found, fields = json_query(content_type, body, request_id)
        if set(fields) != {"item"}:
            raise RequestError(422, "give `item`, and optionally `id`")
        try:
            item = self.read(fields["item"])
        except Exception as error:  # of the user's own function
            raise RequestError(422, f"the item cannot be read: {error}") from None
        return Query(found, {"item": item})
