"""Metrics for Prometheus: requests by status, their latency, exits taken, compute saved, drift."""

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

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

from offramp.runtime.stats import RunStats
from offramp.serving.responses import Responder

Mode = Literal["livemax", "livemostrecent"]
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


def _held(name: str) -> Callable[[RunStats], float]:
    """A figure of a held budget; NaN where none is held."""
    return lambda stats: float(getattr(stats.held, name, math.nan))


# name: what it is, how the values of several processes become one, and where it comes from
GAUGES: dict[str, tuple[str, Mode, Callable[[RunStats], float]]] = {
    "drift": (
        "1 if the exits differ from those of val; stays on",
        "livemax",
        lambda stats: stats.drift,
    ),
    "drift_log_evidence": (
        "Natural logarithm of the evidence for drift",
        "livemax",
        lambda stats: stats.log_evidence,
    ),
    "mean_cost": (
        "Mean cost per answer since the budget was set, in runs of the full network",
        "livemostrecent",
        lambda stats: stats.mean_cost,
    ),
    "expected_cost": ("The same on val", "livemostrecent", lambda stats: stats.expected_cost),
    "held_point_cost": (
        "With a held budget: mean cost on val of the present operating point",
        "livemostrecent",
        _held("point_cost"),
    ),
    "held_recent_cost": (
        "With a held budget: mean cost of the last window of answers",
        "livemostrecent",
        _held("recent_cost"),
    ),
    "held_expected_loss": (
        "With a held budget: accuracy on val, chosen point minus present one",
        "livemax",
        _held("expected_loss"),
    ),
    "held_at_limit": (
        "With a held budget: 1 if no operating point is cheap or expensive enough",
        "livemax",
        _held("at_limit"),
    ),
}


class Metrics:
    """What one process has done; the page is of all processes of the service.

    Args:
        exits: Number of exits, which are listed from the start.
    """

    def __init__(self, exits: int) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "offramp_requests", "Requests, by HTTP status", ["status"], registry=registry
        )
        self._seconds = Histogram(
            "offramp_request_seconds",
            "Time from the first byte of a request to its answer",
            buckets=SECONDS,
            registry=registry,
        )
        self._exits = Counter(
            "offramp_exits", "Answers, by the exit taken", ["exit"], registry=registry
        )
        self._spent = Counter(
            "offramp_cost", "Compute spent, in runs of the full network", registry=registry
        )
        self._saved = Counter(
            "offramp_cost_saved", "Compute saved, in runs of the full network", registry=registry
        )
        self._doubted = Counter(
            "offramp_likely_wrong",
            "Answers that are more probably wrong than right",
            registry=registry,
        )
        self._gauges = {
            name: Gauge(f"offramp_{name}", text, registry=registry, multiprocess_mode=mode)
            for name, (text, mode, _) in GAUGES.items()
        }
        self._budget = Gauge(
            "offramp_budget",
            "Mean cost on val of the operating point that was chosen",
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self._policy = Gauge(
            "offramp_policy_info",
            "1 for what is served: fingerprints of the policy and its network",
            ("policy", "network", "version"),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._served: tuple[str, ...] | None = None
        for exit_index in range(exits):
            self._exits.labels(exit_index)

    def add(self, status: int, seconds: float, record: Mapping[str, Any] | None) -> None:
        """Count a request, and its answer if it has one."""
        self._requests.labels(status).inc()
        self._seconds.observe(seconds)
        if record is not None:
            self._exits.labels(record["exit"]).inc()
            self._spent.inc(record["cost"])
            # With the heads of early exits, a sample may cost more than without exits.
            self._saved.inc(max(0.0, 1 - record["cost"]))
            self._doubted.inc(record["likely_wrong"])

    def show(self, responder: Responder) -> None:
        """Set what changes without being counted."""
        stats, about = responder.operation.snapshot(), responder.about
        for name, (_, _, value) in GAUGES.items():
            self._gauges[name].set(value(stats))
        self._budget.set(about["budget"])
        served = about["policy"][:16], about["network"][:16], about["version"]
        if self._served is not None:
            self._policy.labels(*self._served).set(0)
        self._policy.labels(*served).set(1)
        self._served = served

    def page(self) -> Response:
        """All metrics in Prometheus' text format."""
        registry = self.registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
