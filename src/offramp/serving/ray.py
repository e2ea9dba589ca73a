"""On a Ray cluster: `predict_dataset` answers a data set, and `app` answers requests.

    serve run offramp.serving.ray:app network=runs/digits policy=policy/

`app` is a Ray Serve deployment of the application of `offramp serve`. Replicas, machines, address
and encryption are up to Ray's configuration.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import msgspec

from offramp import check
from offramp.errors import ConfigError
from offramp.imports import require
from offramp.serving.columns import ColumnReader, PolicyPredictor
from offramp.serving.config import AppConfig
from offramp.serving.model import Model

if TYPE_CHECKING:
    from offramp.serving.application import Service

DEPLOYMENT = "offramp"  # its name in Ray's configuration
COPY_EVERY = 2.0  # seconds between two copies of the metrics


def predict_dataset(
    dataset: Any,  # noqa: ANN401 - a ray.data.Dataset
    model: Model,
    *,
    column: str | None = None,
    keep_inputs: bool = True,
    batch_size: int = 256,
    **options: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Answer a data set of Ray, with a copy of the network in each of several workers.

    Args:
        dataset: A `ray.data.Dataset`; see `ColumnReader` for what it may hold.
        model: Folders, which every machine has at the same place.
        column: Name of the column with the inputs, see `PolicyPredictor`.
        keep_inputs: Whether the result also has the columns with the inputs.
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
    check.whole("batch_size", batch_size, 1)
    inputs = model.runner("cpu").inputs  # mistakes show here, before a cluster works
    known = dataset.columns(fetch_if_missing=False)
    if known is not None:
        ColumnReader(inputs, column=column).check(known)
    return dataset.map_batches(
        PolicyPredictor,
        fn_constructor_args=(for_workers(model), column, keep_inputs),
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


def deployment(model: Model, config: AppConfig | None = None) -> Any:  # noqa: ANN401
    """Build the `ray.serve.Deployment` of a model, whose `options` are Ray's.

    The model is loaded here once, so mistakes show before anything is deployed.

    Args:
        model: Folders, which every machine has at the same place.
        config: Limits, and how requests are batched.
    """
    serve = require("ray.serve", extra="ray")
    require("PIL.Image", extra="ray")
    from offramp.serving.application import Service  # needs starlette, as do these
    from offramp.serving.responses import model_responder
    from offramp.serving.served import Served, load

    settings = config or AppConfig()
    model_responder(model, replace(settings, device="cpu", precision="float32"))
    content, model = model.content(), for_workers(model)

    def build() -> Any:  # noqa: ANN401 - a starlette.applications.Starlette, in each replica
        service = Service(Served(load(model, settings, content)), settings, alone=False)
        threading.Thread(target=_copy_metrics, args=[service], daemon=True).start()
        return service.app()

    return serve.deployment(
        serve.ingress(build)(),
        name=DEPLOYMENT,
        # Requests whose bodies still arrive must not keep others from joining a batch.
        max_ongoing_requests=settings.max_requests,
        max_queued_requests=settings.max_requests,
    )


def _copy_metrics(service: "Service") -> None:
    """Copy what Prometheus would read into Ray's own metrics, for as long as a replica lives.

    Ray exports all names with the prefix `ray_`, and the replica as a label.
    """
    gauge, made = require("ray.serve.metrics", extra="ray").Gauge, {}
    while True:
        service.show()
        for metric in service.metrics.registry.collect():
            for sample in metric.samples:
                if sample.name not in made:
                    labels = tuple(sample.labels)
                    made[sample.name] = gauge(sample.name, metric.documentation, labels)
                made[sample.name].set(sample.value, sample.labels)
        time.sleep(COPY_EVERY)


def app(arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - a ray.serve.Application
    """Build the application, for `serve run` and for Ray's configuration file.

    The arguments are the arguments of `Model.of_run` and the fields of `AppConfig`, by name. `POST
    /predict` and `GET /health` are the routes of `offramp serve`; the metrics are among Ray's own.
    See docs/reference/ray.md.
    """
    return deployment(*parsed(arguments)).bind()


class _Numbers(TypedDict):
    """What `Model.of_run` needs, and what of it is no text."""

    network: str
    budget: NotRequired[float | None]


def parsed(arguments: Mapping[str, Any]) -> tuple[Model, AppConfig]:
    """Arguments of a command line or a file, where a number may be text.

    Raises:
        ConfigError: One is unknown, or is not what it must be.
        FileFormatError: A folder is missing, foreign or damaged.
    """
    of_run = signature(Model.of_run).parameters
    for name in arguments:
        check.one_of("argument", name, [*of_run, *(field.name for field in fields(AppConfig))])
    try:
        config = msgspec.convert(arguments, AppConfig, strict=False)
        numbers = msgspec.convert(arguments, _Numbers, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from None
    given: dict[str, Any] = {name: arguments[name] for name in of_run if name in arguments}
    return Model.of_run(**{**given, **numbers}), config
