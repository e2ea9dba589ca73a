"""The file that describes a gateway: its members, what they cost, and the policy."""

import os
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from offramp import check
from offramp.errors import ConfigError, FileFormatError
from offramp.files import near_path, read_json, restore

READINGS = ("logprobs", "mean-logprobs", "json")


class TokenPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars for a million tokens, and for a call."""

    input: float = 0.0
    output: float = 0.0
    call: float = 0.0


class ChatMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An endpoint that speaks as OpenAI's API does.

    Args:
        name: For headers, the log and metrics.
        url: Up to `/v1`.
        model: As the endpoint calls it; the name by default.
        key: Environment variable with the key.
        price: Of its tokens.
        timeout: Seconds after which a call is cut off.
        confidence: `logprobs`, the probability of the answer's tokens; `mean-logprobs`, the
            geometric mean of their probabilities; `json`, a field of an answer that is JSON; or
            `module:function`, which takes the completion and returns `(answer, confidence)`.
        fields: The fields with the answer and the confidence, for `json`.
        parameters: Added to every request, such as `temperature`.
    """

    name: str
    url: str
    price: TokenPrice
    model: str = ""
    key: str = ""
    timeout: float = 30.0
    confidence: str = "logprobs"
    fields: tuple[str, str] = ("answer", "confidence")
    parameters: dict[str, Any] = {}

    def __post_init__(self) -> None:
        check.positive("timeout", self.timeout)
        for name, price in msgspec.structs.asdict(self.price).items():
            check.at_least(f"price.{name} of {self.name}", price, 0)
        if ":" not in self.confidence:
            check.one_of("confidence", self.confidence, (*READINGS, "module:function"))

    @property
    def headers(self) -> dict[str, str]:
        """With the key, if there is one."""
        if not self.key:
            return {}
        if not os.environ.get(self.key):
            raise ConfigError(
                f"the key of `{self.name}` is not set: put it into the environment variable "
                f"{self.key}"
            )
        return {"Authorization": f"Bearer {os.environ[self.key]}"}


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a gateway does.

    Args:
        members: From the cheapest to the best.
        policy: Folder of a policy that was fitted on a ledger of these members. Without one the
            last member answers, and `shadow` makes the ledger.
        budget: The operating point; that of the folder by default.
        certified: Refuse to start unless the operating point is certified.
        model: What clients call the cascade.
        normalise: `module:function` that brings an answer into the form that is compared.
        log: A file of JSON lines to which every decision is appended.
        shadow: The share of requests about which all members are asked, after the answer is sent.
        timeout: Seconds after which a request is answered with what there is.
        concurrency: How many calls may run at once.
        retries: How often a call that fails is tried again.
        backoff: Seconds before the first retry.
        max_bytes: Size limit of a request's body.
    """

    members: list[ChatMember]
    policy: str | None = None
    budget: float | None = None
    certified: bool = False
    model: str = "cascade"
    normalise: str = ""
    log: str | None = None
    shadow: float = 0.0
    timeout: float = 60.0
    concurrency: int = 256
    retries: int = 2
    backoff: float = 0.5
    max_bytes: int = 4 * 2**20

    def __post_init__(self) -> None:
        check.within("shadow", self.shadow, 0, 1)
        check.positive("timeout", self.timeout)
        check.whole("max_bytes", self.max_bytes, 1)
        if self.shadow and self.log is None:
            raise ConfigError("`shadow` makes the next ledger in the log: give `log`, a file")

    @classmethod
    def load(cls, path: str | Path) -> "GatewayConfig":
        """Read a file of TOML or JSON; paths in it are relative to its folder.

        Raises:
            FileFormatError: The file is missing, or something in it is not what it should be.
            ConfigError: A value is impossible.
        """
        path = Path(path)
        if not path.is_file():
            raise FileFormatError(f"there is no file at {path}{near_path(path)}")
        if path.suffix == ".json":
            content = read_json(path)
        else:
            try:
                content = tomllib.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise FileFormatError(f"{path} is not valid TOML: {error}") from None
        if isinstance(content, dict):
            for name in ("policy", "log"):
                if isinstance(content.get(name), str):
                    content[name] = str(path.parent / content[name])
        found: GatewayConfig = restore(cls, content, str(path))
        return found


def named(place: str) -> Callable[..., Any]:
    """The function that `module:function` names.

    Example:
        >>> named("json:loads")("[1]")
        [1]
    """
    module, _, name = place.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{place!r} must name a function as module:function: {error}") from None
    if not callable(found):
        raise ConfigError(f"{place!r} must name a function, got {found!r}")
    return found  # type: ignore[no-any-return]
