"""Metrics for Prometheus: requests by status, their latency, exits taken, compute saved, drift."""

import math
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)
from starlette.responses import Response

if TYPE_CHECKING:
    from offramp.serving.responses import Responder


SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)

PATHS = ("/predict", "/health", "/health/live", "/health/ready", "/info", "/metrics")
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# name: what it counts, and by which label
COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "exits": ("Answers, by the exit taken", ("exit",)),
    "cost": ("Compute spent, in runs of the full network", ()),
    "cost_saved": ("Compute saved, in runs of the full network", ()),
    "likely_wrong": ("Answers that are more probably wrong than right", ()),
}
# name: what it is, and how the values of several processes become one
GAUGES: dict[str, tuple[str, Literal["livemax", "livemostrecent"]]] = {
    "drift": ("1 if the exits taken differ from the exits taken on val; stays on", "livemax"),
    "drift_log_evidence": ("Natural logarithm of the evidence for drift", "livemax"),
    "mean_cost": (
        "Mean cost per answer since the budget was set, in runs of the full network",
        "livemostrecent",
    ),
    "expected_cost": ("The same on val", "livemostrecent"),
    "budget": ("Mean cost on val of the operating point that was chosen", "livemostrecent"),
    "held_point_cost": (
        "With a held budget: mean cost on val of the present operating point",
        "livemostrecent",
    ),
    "held_recent_cost": (
        "With a held budget: mean cost of the last window of answers",
        "livemostrecent",
    ),
    "held_expected_loss": (
        "With a held budget: accuracy on val, chosen point minus present one",
        "livemax",
    ),
    "held_at_limit": (
        "With a held budget: 1 if no operating point is cheap or expensive enough",
        "livemax",
    ),
}


class RequestMetrics:
    """Requests by path and status, their latency, and how many are open, of one process.

    Args:
        paths: Paths that are counted by name; all others are counted together.
        prefix: Of all names.
    """

    def __init__(self, paths: Collection[str], prefix: str = "offramp") -> None:
        self.registry = registry = CollectorRegistry()
        self._paths = frozenset(paths)
        self._requests = Counter(
            f"{prefix}_requests",
            "Requests, by path and HTTP status",
            ("path", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            f"{prefix}_request_seconds",
            "Time from the head of a request to its answer",
            ("path",),
            buckets=SECONDS,
            registry=registry,
        )
        self.open = Gauge(
            f"{prefix}_open_requests",
            "Requests that are not answered yet",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count an answer."""
        path = path if path in self._paths else "other"
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def page(self) -> Response:
        """All metrics in Prometheus' text format, of all processes of the service."""
        registry = self.registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class Metrics(RequestMetrics):
    """What a service of one process has answered, and at which operating point.

    Args:
        exits: Number of exits, which are listed from the start.
    """

    def __init__(self, exits: int) -> None:
        super().__init__(PATHS)
        registry = self.registry
        self._counters = {
            name: Counter(f"offramp_{name}", text, labels, registry=registry)
            for name, (text, labels) in COUNTERS.items()
        }
        self.batches = Histogram(
            "offramp_batch_size",
            "Requests that were answered together",
            buckets=SIZES,
            registry=registry,
        )
        self.queue = Gauge(
            "offramp_queue_length",
            "Requests that wait for their batch",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._gauges = {
            name: Gauge(f"offramp_{name}", text, registry=registry, multiprocess_mode=mode)
            for name, (text, mode) in GAUGES.items()
        }
        self._policy = Gauge(
            "offramp_policy_info",
            "1 for what is served: fingerprints of the policy and its network",
            ("policy", "network", "version"),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._served: tuple[str, ...] | None = None
        for exit_index in range(exits):
            self._counters["exits"].labels(exit_index)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count an answer of the model."""
        self._counters["exits"].labels(record["exit"]).inc()
        self._counters["cost"].inc(record["cost"])
        # With the heads of early exits, a sample may cost more than without exits.
        self._counters["cost_saved"].inc(max(0.0, 1 - record["cost"]))
        self._counters["likely_wrong"].inc(record["likely_wrong"])

    def show(self, responder: "Responder") -> None:
        """Set what changes without being counted."""
        stats, about = responder.operation.snapshot(), responder.about
        values = {
            "drift": stats.drift,
            "drift_log_evidence": stats.log_evidence,
            "mean_cost": stats.mean_cost,
            "expected_cost": stats.expected_cost,
            "budget": about["budget"],
        }
        if stats.held is not None:
            values |= {f"held_{name}": value for name, value in vars(stats.held).items()}
        for name, gauge in self._gauges.items():
            gauge.set(values.get(name, math.nan))
        served = about["policy"][:16], about["network"][:16], about["version"]
        if self._served is not None:
            self._policy.labels(*self._served).set(0)
        self._policy.labels(*served).set(1)
        self._served = served
