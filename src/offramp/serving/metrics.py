"""Metrics: requests by status, their latency, exits taken, compute spent and saved."""

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from offramp.extras import require
from offramp.runtime.stats import RunStats

# name: what it is, and how the values of several processes become one
GAUGES = {
    "drift": ("1 if the exits differ from those of val; stays on", "livemax"),
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
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable in which prometheus_client looks for the folder of several processes."""

Add = Callable[..., None]


class Instruments(Protocol):
    """Makes counters and histograms: functions that add a value."""

    def counter(self, name: str, text: str, label: str | None = None) -> Add:
        """A function `add(value)`, or `add(value, label's value)`."""
        ...

    def histogram(self, name: str, text: str) -> Add:
        """A function `add(seconds)`."""
        ...


class RequestMetrics:
    """Counts requests and what their answers cost."""

    def __init__(self, instruments: Instruments) -> None:
        counter = instruments.counter
        self._requests = counter("offramp_requests", "Requests, by HTTP status", "status")
        self._exits = counter("offramp_exits", "Answers, by the exit taken", "exit")
        self._spent = counter("offramp_cost", "Compute spent, in runs of the full network")
        self._saved = counter("offramp_cost_saved", "Compute saved, in runs of the full network")
        self._doubted = counter(
            "offramp_likely_wrong", "Answers that are more probably wrong than right"
        )
        self._seconds = instruments.histogram(
            "offramp_request_seconds", "Time from the first byte of a request to its answer"
        )

    def list_exits(self, exits: int) -> None:
        """List every exit from the start, with no answer."""
        for exit_index in range(exits):
            self._exits(0, exit_index)

    def add(self, status: int, seconds: float, record: Mapping[str, Any] | None) -> None:
        """Count a request, and its answer if it has one."""
        self._requests(1, status)
        self._seconds(seconds)
        if record is not None:
            self._exits(1, record["exit"])
            self._spent(record["cost"])
            # With the heads of early exits, a sample may cost more than without exits.
            self._saved(max(0.0, 1 - record["cost"]))
            self._doubted(int(record["likely_wrong"]))


class Prometheus:
    """Counters and gauges of prometheus_client, and the page that shows them.

    Several processes of one service share a folder, and the page of each shows all of them.
    """

    def __init__(self) -> None:
        self._client = require("prometheus_client", extra="serve")
        self._registry = self._client.CollectorRegistry()
        self._gauges = {
            name: self._client.Gauge(
                f"offramp_{name}", text, registry=self._registry, multiprocess_mode=mode
            )
            for name, (text, mode) in GAUGES.items()
        }
        self._policy = self._client.Gauge(
            "offramp_policy_info",
            "1 for what is served: fingerprints of the policy and its network",
            ("policy", "network", "version"),
            registry=self._registry,
            multiprocess_mode="livemax",
        )
        self._served: tuple[str, ...] | None = None

    def counter(self, name: str, text: str, label: str | None = None) -> Add:
        """A counter in the registry."""
        labels = () if label is None else (label,)
        made = self._client.Counter(name, text, labels, registry=self._registry)

        def add(value: float, *values: object) -> None:
            (made.labels(*values) if values else made).inc(value)

        return add

    def histogram(self, name: str, text: str) -> Add:
        """A histogram in the registry."""
        made = self._client.Histogram(name, text, buckets=SECONDS, registry=self._registry)
        observe: Add = made.observe
        return observe

    def show(self, stats: RunStats, about: Mapping[str, Any]) -> None:
        """Set all gauges."""
        held = stats.held
        values = {
            "drift": stats.drift,
            "drift_log_evidence": stats.log_evidence,
            "mean_cost": stats.mean_cost,
            "expected_cost": stats.expected_cost,
            "budget": about["budget"],
            "held_point_cost": math.nan if held is None else held.point_cost,
            "held_recent_cost": math.nan if held is None else held.recent_cost,
            "held_expected_loss": math.nan if held is None else held.expected_loss,
            "held_at_limit": math.nan if held is None else held.at_limit,
        }
        for name, value in values.items():
            self._gauges[name].set(float(value))
        served = about["policy"][:16], about["network"][:16], about["version"]
        if self._served is not None:
            self._policy.labels(*self._served).set(0)
        self._policy.labels(*served).set(1)
        self._served = served

    def page(self) -> bytes:
        """All metrics in Prometheus' text format, of all processes of the service."""
        registry = self._registry
        if SHARED_FOLDER in os.environ:
            registry = self._client.CollectorRegistry()
            shared = require("prometheus_client.multiprocess", extra="serve")
            shared.MultiProcessCollector(registry)
        found: bytes = self._client.generate_latest(registry)
        return found

    @property
    def content_type(self) -> str:
        """The content type of the page."""
        return str(self._client.CONTENT_TYPE_LATEST)
