"""A deployment of Ray Serve that answers the same requests as `offramp serve`.

    serve run offramp.serving.ray:app network=runs/digits policy=policy/

Replicas, machines, address and encryption are a matter of Ray's configuration.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from fastapi import Depends, FastAPI, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from offramp.errors import ConfigError
from offramp.extras import require
from offramp.serving.answers import Answerer
from offramp.serving.columns import Array, ColumnReader, Columns, answer_columns
from offramp.serving.http import receive, respond
from offramp.serving.images import images_of_run
from offramp.serving.metrics import SECONDS, Metrics, Watch
from offramp.serving.model import Model, network_folder, read_names
from offramp.serving.requests import Intake, Query
from offramp.serving.server import ServeConfig


def for_workers(folder: str | Path) -> Path:
    """A folder as workers find it, which start elsewhere.

    A relative path is relative to here. Where Ray copies a `working_dir` to its workers, it is
    relative to that and stays as it is.

    Args:
        folder: That every machine has.

    Raises:
        MissingExtraError: The extra `ray` is not installed.
    """
    ray = require("ray", extra="ray")
    if ray.is_initialized() and ray.get_runtime_context().runtime_env.get("working_dir"):
        return Path(folder)
    return Path(folder).absolute()


class PolicyPredictor:
    """Answers batches of columns; a worker makes one, and with it loads the network once.

    For `dataset.map_batches(PolicyPredictor, fn_constructor_args=(model, reader), ...)`;
    `predict_dataset` does it in one call. It needs no cluster itself.

    Args:
        model: Folders of the network and the policy, on every machine.
        reader: Where the inputs are in a batch.
        precision: `float32` or `bfloat16`.

    Raises:
        FileFormatError, ConfigError, NetworkError, OriginError: As `Model.runner`.

    Example:
        >>> import tempfile, numpy as np, torch, offramp
        >>> from torch.utils.data import TensorDataset
        >>> network = offramp.build("convnet", num_classes=4, image_size=8)
        >>> data = TensorDataset(torch.rand(60, 3, 8, 8), torch.arange(60) % 4)
        >>> ledger = offramp.record(network, data, split="all", progress=False)
        >>> held_out, val, _ = ledger.partition()
        >>> policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val)
        >>> policy = policy.at(budget=0.6)
        >>> folder = Path(tempfile.mkdtemp())
        >>> model = Model(network.save(folder / "network"), policy.save(folder / "policy"))
        >>> predict = PolicyPredictor(model, ColumnReader(network.inputs))
        >>> batch = {"image": np.zeros((2, 3, 8, 8), dtype=np.float32), "id": np.arange(2)}
        >>> list(predict(batch))[1:]
        ['id', 'prediction', 'confidence', 'likely_wrong', 'exit', 'cost', 'failed']
    """

    def __init__(self, model: Model, reader: ColumnReader, precision: str = "float32") -> None:
        self._reader = reader
        self._runner = model.runner(precision)

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Answer a batch.

        Args:
            batch: Columns `[n, ...]`.

        Returns:
            The columns, and `prediction` (int64, -1 if it failed), `confidence`, `likely_wrong`,
            `exit`, `cost` and `failed`, each `[n]` and as in `RunOutput`.

        Raises:
            DataError: The columns cannot be read, or one has the name of a new one.
            NetworkError: The inputs are not what the network takes.
        """
        output = self._runner(self._reader(batch))
        kept = {name: batch[name] for name in self._reader.kept(batch)}
        return {**kept, **answer_columns(output, self._reader.columns.prefix)}


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
    """Answer a data set of Ray, with a network in each of several workers.

    Args:
        dataset: A `ray.data.Dataset`; see `ColumnReader` for what it may hold.
        network: Folder of a run or of a saved network, which every machine has at that place.
        policy: Folder of its policy, likewise.
        budget: Of the operating point; None for the policy's own.
        data: Data set of the training, whose normalisation is used. Default: the run's.
        columns: Which of them are read, and what becomes of them.
        workers: How many, or the least and the most between which Ray chooses.
        batch_size: Samples that a worker answers together.
        options: Of Ray's `map_batches`, such as `num_cpus` for each worker.

    Returns:
        A `ray.data.Dataset` with the columns that `PolicyPredictor` adds; as all of them, it is
        computed when it is read.

    Raises:
        FileFormatError, ConfigError, NetworkError, OriginError: The parts do not fit.
        DataError: Columns are missing or have names of new ones. Where Ray does not know their
            names yet, a worker says so later.
        MissingExtraError: The extra `ray` is not installed.
    """
    ray_data = require("ray.data", extra="ray")
    _check_amounts(workers, batch_size)
    model = Model(for_workers(network_folder(network)), for_workers(policy), budget)
    inputs = model.runner().network.inputs  # mistakes show here, before a cluster works
    reader = ColumnReader(inputs, columns=columns or Columns())
    known = dataset.columns(fetch_if_missing=False)
    if known is not None:
        reader.check(known)
    images, _ = images_of_run(inputs, Path(network), data)
    size = {"size": workers}
    if isinstance(workers, tuple):
        size = {"min_size": workers[0], "max_size": workers[1]}
    return dataset.map_batches(
        PolicyPredictor,
        fn_constructor_args=(model, replace(reader, images=images)),
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


class RayMetrics(Metrics):
    """Kept by Ray, which adds up replicas and exports all names with `ray_` in front."""

    def __init__(self) -> None:
        self._ray = require("ray.serve.metrics", extra="ray")
        super().__init__()

    def counter(self, name: str, text: str, label: str | None = None) -> Callable[..., None]:
        """A counter of Ray."""
        made = self._ray.Counter(name, text, () if label is None else (label,))

        def add(value: float, *values: object) -> None:
            if value > 0:  # Ray refuses to add nothing
                made.inc(value, {str(label): str(found) for found in values})

        return add

    def histogram(self, name: str, text: str) -> Callable[[float], None]:
        """A histogram of Ray."""
        made = self._ray.Histogram(name, text, list(SECONDS))

        def observe(value: float) -> None:
            made.observe(value, {})

        return observe


def make_api(
    answerer: Answerer, intake: Intake, max_batch: int, batch_wait: float, body_timeout: float
) -> FastAPI:
    """The routes of a replica.

    Args:
        answerer: Answers batches.
        intake: What requests may hold.
        max_batch: Requests that are answered together, at most.
        batch_wait: Seconds that a request waits for others.
        body_timeout: Seconds in which a body must have arrived.
    """
    serve = require("ray.serve", extra="ray")

    async def answer_all(queries: list[Query]) -> list[dict[str, Any]]:
        # In a thread, so that meanwhile others are read, and gather.
        return await run_in_threadpool(answerer, queries)

    batched = serve.batch(max_batch_size=max_batch, batch_wait_timeout_s=batch_wait)(answer_all)

    async def predict(query: Annotated[Query, Depends(receive)]) -> Response:
        return respond(await batched(query))

    api = FastAPI(openapi_url=None)  # its page loads scripts from elsewhere
    api.state.intake, api.state.body_timeout = intake, body_timeout
    api.add_api_route("/predict", predict, methods=["POST"], response_model=None)
    api.add_api_route("/health", _health, methods=["GET"], response_model=None)
    # Ray itself sends a request's id back.
    api.add_middleware(Watch, metrics=RayMetrics(), path="/predict", echo=False)
    return api


async def _health() -> Response:
    """A replica is asked only when it has loaded its network."""
    return PlainTextResponse("ok")


if TYPE_CHECKING:
    from fastapi import FastAPI


DEPLOYMENT = "offramp"  # the name that Ray's configuration uses for it


@dataclass(frozen=True)
class AppConfig:
    """What is served, and how.

    Args:
        network: Folder of a run or of a saved network, which every machine has at that place.
        policy: Folder of its policy, likewise.
        budget: Of the operating point; None for the policy's own.
        data: For images: the data set of the training, whose normalisation and class names are
            used. Default: the run's.
        domain: Of the data set.
        class_names: Text file with the name of a class in each line.
        max_batch: Requests that a replica answers together, at most.
        batch_wait: Seconds that a request waits for others.
        precision: `float32` or `bfloat16`.
        max_bytes: Of a request's body.
        max_pixels: Of an image as it is sent.
        body_timeout: Seconds in which a body must have arrived.
        max_requests: That a replica works on at the same time, and that wait for one; more are
            turned away with 503.

    Raises:
        ConfigError: A value that is not possible.

    Example:
        >>> AppConfig("runs/digits", "policy", max_batch=0)
        Traceback (most recent call last):
        offramp.errors.ConfigError: `max_batch` must be at least 1, got 0
    """

    network: str | Path
    policy: str | Path
    budget: float | None = None
    data: str | None = None
    domain: str | None = None
    class_names: str | Path | None = None
    max_batch: int = ServeConfig.max_batch
    batch_wait: float = ServeConfig.batch_wait
    precision: str = ServeConfig.precision
    max_bytes: int = Intake.max_bytes
    max_pixels: int = Intake.max_pixels
    body_timeout: float = ServeConfig.body_timeout
    max_requests: int = ServeConfig.max_requests

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        ServeConfig(  # whose checks are the same
            max_batch=self.max_batch,
            batch_wait=self.batch_wait,
            body_timeout=self.body_timeout,
            max_requests=self.max_requests,
        )

    @classmethod
    def parse(cls, arguments: dict[str, Any]) -> "AppConfig":
        """From a command line or a file, where a number may be text.

        Raises:
            ConfigError: An unknown or missing name, or a value that is not possible.
        """
        pydantic = require("pydantic", extra="ray")
        try:
            found: AppConfig = pydantic.TypeAdapter(cls).validate_python(arguments)
        except pydantic.ValidationError as error:
            problems = (
                " ".join([*(f"`{part}`:" for part in problem["loc"]), problem["msg"]])
                for problem in error.errors()
            )
            raise ConfigError("; ".join(problems)) from None
        return found

    def load(self) -> tuple[Model, Intake]:
        """What replicas load, and what requests may hold.

        Raises:
            FileFormatError, ConfigError, NetworkError, OriginError: The parts do not fit.
        """
        folder, policy = for_workers(network_folder(self.network)), for_workers(self.policy)
        # Loaded once here, so that mistakes show before anything is deployed.
        model = Model(folder, policy, self.budget, read_names(self.class_names))
        inputs = model.runner(self.precision).network.inputs
        reader, names = images_of_run(inputs, Path(self.network), self.data, self.domain)
        model = replace(model, class_names=model.class_names or names)
        return model, Intake(inputs, reader, self.max_bytes, self.max_pixels)


def deployment(config: AppConfig) -> Any:  # noqa: ANN401 - a ray.serve.Deployment
    """Build the deployment, whose `options` are Ray's.

    Args:
        config: What is served; it is loaded once here, so that mistakes show before anything is
            deployed.

    Raises:
        FileFormatError, ConfigError, NetworkError, OriginError: The parts do not fit.
        MissingExtraError: The extra `ray` is not installed.
    """
    serve = require("ray.serve", extra="ray")
    require("PIL.Image", extra="ray")
    model, intake = config.load()

    def build() -> "FastAPI":  # in each replica, which loads the network once
        from offramp.serving.ray import make_api

        answerer = Answerer(model, intake.reader, config.precision)
        return make_api(answerer, intake, config.max_batch, config.batch_wait, config.body_timeout)

    return serve.deployment(
        serve.ingress(build)(),
        name=DEPLOYMENT,
        # Requests whose bodies still arrive must not keep others from joining a batch.
        max_ongoing_requests=config.max_requests,
        max_queued_requests=config.max_requests,
    )


def app(arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - a ray.serve.Application
    """Build the application, for `serve run` and for Ray's configuration file.

    `POST /predict` and `GET /health` are those of `offramp serve`; the metrics are among Ray's
    own. See docs/clusters.md.

    Args:
        arguments: Those of `AppConfig`, by name.

    Raises:
        FileFormatError, ConfigError, NetworkError, OriginError: The parts do not fit.
        MissingExtraError: The extra `ray` is not installed.
    """
    return deployment(AppConfig.parse(arguments)).bind()
