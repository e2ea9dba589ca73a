"""On a Ray cluster: `predict_dataset` answers a data set, and `app` answers requests.

    serve run offramp.serving.ray:app network=runs/digits policy=policy/

`app` is a Ray Serve deployment that answers the same requests as `offramp serve`. Replicas,
machines, address and encryption are up to Ray's configuration.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from offramp.errors import ConfigError
from offramp.extras import require
from offramp.serving.answers import Model, Worker
from offramp.serving.columns import ColumnReader, Columns, PolicyPredictor
from offramp.serving.requests import Query, RequestParser, RequestSettings, tokenizer_of

DEPLOYMENT = "offramp"  # its name in Ray's configuration


def predict_dataset(
    dataset: Any,  # noqa: ANN401 - a ray.data.Dataset
    network: str | Path,
    policy: str | Path,
    *,
    budget: float | None = None,
    data: str | None = None,
    columns: Columns | None = None,
    workers: int | tuple[int, int] = 1,
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
        workers: How many, or the smallest and the largest number that Ray may choose.
        batch_size: Samples that a worker answers together.
        options: Options of Ray's `map_batches`, such as `num_cpus` for each worker.

    Returns:
        A `ray.data.Dataset` with the columns that `PolicyPredictor` adds, computed when it is
        read.

    Raises:
        FileFormatError, ConfigError, NetworkError, OriginError: The model cannot be loaded.
        DataError: Columns are missing, or have names of new ones. If Ray does not know their
            names yet, a worker raises it later.
        MissingExtraError: The extra `ray` is not installed.
    """
    ray_data = require("ray.data", extra="ray")
    columns = columns or Columns()
    _check_amounts(workers, batch_size)
    model = Model.of_run(network, policy, budget, data=data)
    inputs = model.runner("cpu").inputs  # mistakes show here, before a cluster works
    known = dataset.columns(fetch_if_missing=False)
    if known is not None:
        ColumnReader(inputs, columns=columns).check(known)
    size = {"size": workers}
    if isinstance(workers, tuple):
        size = {"min_size": workers[0], "max_size": workers[1]}
    return dataset.map_batches(
        PolicyPredictor,
        fn_constructor_args=(for_workers(model), columns),
        compute=ray_data.ActorPoolStrategy(**size),
        batch_size=batch_size,
        batch_format="numpy",
        **options,
    )


def _check_amounts(workers: int | tuple[int, int], batch_size: int) -> None:
    least, most = workers if isinstance(workers, tuple) else (workers, workers)
    if not 1 <= least <= most:
        raise ConfigError(f"`workers` must be at least 1, or (least, most), got {workers}")
    if batch_size < 1:
        raise ConfigError(f"`batch_size` must be at least 1, got {batch_size}")


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


@dataclass(frozen=True)
class AppConfig(RequestSettings):
    """What is served, and how; see `RequestSettings` for the other settings."""

    # folder of a run, of a saved network or of an export, which every machine has at that place
    network: str | Path
    policy: str | Path | None = None  # folder of its policy, likewise; an export has its own
    budget: float | None = None  # budget of the operating point; None for the policy's own
    # For images: the data set of the training, whose normalisation and class names are used.
    # Default: the run's.
    data: str | None = None
    domain: str | None = None  # domain of the data set
    class_names: str | Path | None = None  # text file with one class name per line
    tokenizer: str | None = None  # name or folder of a tokenizer, for `text`

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    @classmethod
    def parse(cls, arguments: dict[str, Any]) -> "AppConfig":
        """From a command line or a file, where a number may be text."""
        pydantic = require("pydantic", extra="ray")
        try:
            found: AppConfig = pydantic.TypeAdapter(cls).validate_python(arguments)
        except pydantic.ValidationError as error:
            problems = (
                " ".join([*(f"`{name}`:" for name in problem["loc"]), problem["msg"]])
                for problem in error.errors()
            )
            raise ConfigError("; ".join(problems)) from None
        return found


def deployment(config: AppConfig) -> Any:  # noqa: ANN401 - a ray.serve.Deployment
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
    inputs = model.runner("cpu").inputs
    parser = RequestParser(inputs, model.images, config, tokenizer_of(model.tokenizer))
    model = for_workers(model)

    def build() -> Any:  # noqa: ANN401 - in each replica
        return _replica_api(model, parser)

    return serve.deployment(
        serve.ingress(build)(),
        name=DEPLOYMENT,
        # Requests whose bodies still arrive must not keep others from joining a batch.
        max_ongoing_requests=config.max_requests,
        max_queued_requests=config.max_requests,
    )


def _replica_api(model: Model, parser: RequestParser) -> Any:  # noqa: ANN401 - a fastapi.FastAPI
    """The application of one replica, which loads the network once."""
    serve = require("ray.serve", extra="ray")
    from fastapi.concurrency import run_in_threadpool

    from offramp.serving.http import Gate, RayMetrics, make_api  # needs fastapi, too

    settings = parser.settings
    worker = Worker(model, settings.device, settings.precision)

    async def answer_all(queries: list[Query]) -> list[dict[str, Any]]:
        # In a thread: meanwhile further requests are read, and gather.
        return await run_in_threadpool(worker, queries)

    batched = serve.batch(
        max_batch_size=settings.max_batch, batch_wait_timeout_s=settings.batch_wait
    )
    gate = Gate()
    gate.ready = True  # a replica is asked only once it has loaded its model
    # Ray itself returns a request's id.
    return make_api(batched(answer_all), parser, RayMetrics(), gate, echo=False)


def app(arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - a ray.serve.Application
    """Build the application, for `serve run` and for Ray's configuration file.

    The arguments are those of `AppConfig`, by name. `POST /predict` and `GET /health` are those of
    `offramp serve`; the metrics are among Ray's own. See docs/clusters.md.
    """
    return deployment(AppConfig.parse(arguments)).bind()
