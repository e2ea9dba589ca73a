"""On a Ray cluster: `predict_dataset` answers a data set, and `app` answers requests.

    serve run offramp.serving.ray:app network=runs/digits policy=policy/

`app` is a Ray Serve deployment of the application of `offramp serve`. Replicas, machines, address
and encryption are up to Ray's configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from offramp import check
from offramp.errors import ConfigError
from offramp.extras import require
from offramp.serving.columns import ColumnReader, Columns, PolicyPredictor
from offramp.serving.config import AppConfig
from offramp.serving.metrics import SECONDS, Add
from offramp.serving.model import Model
from offramp.serving.workers import RunnerWorker

DEPLOYMENT = "offramp"  # its name in Ray's configuration


def predict_dataset(
    dataset: Any,  # noqa: ANN401 - a ray.data.Dataset
    network: str | Path,
    policy: str | Path,
    *,
    budget: float | None = None,
    data: str | None = None,
    columns: Columns | None = None,
    batch_size: int = 256,
    **options: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Answer a data set of Ray, with a copy of the network in each of several workers.

    Args:
        dataset: A `ray.data.Dataset`; see `ColumnReader` for what it may hold.
        network: Folder of a run or of a saved network, which every machine has at that place.
        policy: Folder of its policy, likewise.
        budget: Budget of the operating point; None for the policy's own.
        data: The data set of the training, whose normalisation is used. Default: the run's.
        columns: Which columns are read and returned.
        batch_size: Samples that a worker answers together.
        options: Options of Ray's `map_batches`, such as `concurrency` (the number of workers) and
            `num_cpus` for each of them.

    Returns:
        A `ray.data.Dataset` with the columns that `PolicyPredictor` adds, computed when it is
        read.

    Raises:
        FileFormatError, ConfigError, NetworkError, OriginError: The model cannot be loaded.
        DataError: Columns are missing, or have names of new ones. If Ray does not know their
            names yet, a worker raises it later.
        MissingExtraError: The extra `ray` is not installed.
    """
    require("ray.data", extra="ray")
    columns = columns or Columns()
    check.whole("batch_size", batch_size, 1)
    model = Model.of_run(network, policy, budget, data=data)
    inputs = model.runner("cpu").inputs  # mistakes show here, before a cluster works
    known = dataset.columns(fetch_if_missing=False)
    if known is not None:
        ColumnReader(inputs, columns=columns).check(known)
    return dataset.map_batches(
        PolicyPredictor,
        fn_constructor_args=(for_workers(model), columns),
        batch_size=batch_size,
        batch_format="numpy",
        **{"concurrency": 1, **options},
    )


def for_workers(model: Model) -> Model:
    """A model whose folders workers find, although they start elsewhere.

    Relative paths are made absolute, unless Ray copies a `working_dir` to its workers: then they
    are relative to that.
    """
    ray = require("ray", extra="ray")
    if ray.is_initialized() and ray.get_runtime_context().runtime_env.get("working_dir"):
        return model
    policy = None if model.policy is None else model.policy.absolute()
    return replace(model, network=model.network.absolute(), policy=policy)


@dataclass(frozen=True, kw_only=True)
class RayConfig(AppConfig):
    """What is deployed, and how; the folders must be at the same place on every machine."""

    network: str  # folder of a run, of a saved network or of an export
    policy: str | None = None  # folder of its policy; an export has its own
    budget: float | None = None  # budget of the operating point; None for the policy's own
    # For images: the data set of the training, whose normalisation and class names are used.
    # Default: the run's.
    data: str | None = None
    domain: str | None = None  # domain of the data set
    class_names: str | None = None  # text file with one class name per line
    tokenizer: str | None = None  # name or folder of a tokenizer, for `text`

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> "RayConfig":
        """From a command line or a file, where a number may be text."""
        known = [field.name for field in fields(cls)]
        for name in arguments:
            check.one_of("argument", name, known)
        try:
            return msgspec.convert(arguments, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(str(error)) from None


def deployment(config: RayConfig) -> Any:  # noqa: ANN401 - a ray.serve.Deployment
    """Build the deployment, whose `options` are Ray's.

    The model is loaded here once, so mistakes show before anything is deployed.
    """
    serve = require("ray.serve", extra="ray")
    require("PIL.Image", extra="ray")
    model = Model.of_run(
        config.network,
        config.policy,
        config.budget,
        data=config.data,
        domain=config.domain,
        class_names=config.class_names,
        tokenizer=config.tokenizer,
    )
    RunnerWorker.of_model(model, replace(config, device="cpu", precision="float32"))
    model = for_workers(model)

    def build() -> Any:  # noqa: ANN401 - a starlette.applications.Starlette, in each replica
        from offramp.serving.application import Service  # needs starlette

        return Service(RunnerWorker.of_model(model, config), config, RayInstruments()).app()

    return serve.deployment(
        serve.ingress(build)(),
        name=DEPLOYMENT,
        # Requests whose bodies still arrive must not keep others from joining a batch.
        max_ongoing_requests=config.max_requests,
        max_queued_requests=config.max_requests,
    )


class RayInstruments:
    """Counters of Ray, which adds up replicas and exports all names with the prefix `ray_`."""

    def __init__(self) -> None:
        self._ray = require("ray.serve.metrics", extra="ray")

    def counter(self, name: str, text: str, label: str | None = None) -> Add:
        """A counter of Ray."""
        made = self._ray.Counter(name, text, () if label is None else (label,))

        def add(value: float, *values: object) -> None:
            if value > 0:  # Ray refuses to add zero
                made.inc(value, {str(label): str(found) for found in values})

        return add

    def histogram(self, name: str, text: str) -> Add:
        """A histogram of Ray."""
        made = self._ray.Histogram(name, text, list(SECONDS))
        return lambda value: made.observe(value, {})


def app(arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - a ray.serve.Application
    """Build the application, for `serve run` and for Ray's configuration file.

    The arguments are the fields of `RayConfig`, by name. `POST /predict` and `GET /health` are the
    routes of `offramp serve`; the metrics are among Ray's own. See docs/clusters.md.
    """
    return deployment(RayConfig.parse(arguments)).bind()
