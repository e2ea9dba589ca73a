"""A deployment of Ray Serve that answers the same requests as `offramp serve`.

    serve run offramp.runtime.ray_serve:app network=runs/digits policy=policy/

Replicas, machines, address and encryption are a matter of Ray's configuration.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from offramp.errors import ConfigError
from offramp.extras import require
from offramp.runtime.images import images_of_run
from offramp.runtime.model import Model, network_folder, read_names
from offramp.runtime.ray_paths import for_workers
from offramp.runtime.serving import ServeConfig
from offramp.runtime.serving_answers import Answerer
from offramp.runtime.serving_requests import Intake

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["AppConfig", "app", "deployment"]

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
        from offramp.runtime.ray_replica import make_api

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
