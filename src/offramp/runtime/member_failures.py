"""What happens when a model of a cascade fails.

A call that fails is tried again with longer and longer pauses. Where that does not help, or where
the confidence of a response is NaN, there is no response, and the item goes on with the next
model: it never stops at one that has failed for it. Behind the last model, it is answered with the
response before. A recorded ledger has the response before, too, where a model failed. Only what
the first model fails on cannot be recorded.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from offramp import check
from offramp.arrays import Array
from offramp.errors import LedgerError, NetworkError
from offramp.ledger.answers import Normalise
from offramp.runtime.members import ModelRun, Response

logger = logging.getLogger("offramp")
Known = TypeVar("Known")


@dataclass(frozen=True)
class CallSettings:
    """How models are called; see `Cascade`."""

    concurrency: int = 8
    retries: int = 2
    backoff: float = 0.5
    normalise: Normalise | None = None

    def __post_init__(self) -> None:
        check.whole("concurrency", self.concurrency, least=1)
        check.whole("retries", self.retries)
        check.at_least("backoff", self.backoff, 0)


class Calls:
    """The calls of models for one batch: at most so many at once, tried again where they fail.

    Args:
        settings: How often and when to try again.
        until: The time of `time.monotonic` at which async calls are cancelled; None: never.

    Attributes:
        errors: By model, the last error that it failed with.
    """

    def __init__(self, settings: CallSettings, until: float | None = None) -> None:
        self.errors: dict[str, Exception] = {}
        self._settings, self._until = settings, until
        self._limit = asyncio.Semaphore(settings.concurrency)

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return self._until is not None and time.monotonic() >= self._until

    async def responses(
        self, model_run: ModelRun, stage: int, rows: Array
    ) -> list[Response | None]:
        """The responses of a model to these items; None where it fails even when tried again."""
        if model_run.member.is_async:
            each = (self._response(model_run, row) for row in rows.tolist())
            return await asyncio.gather(*each)
        try:
            found = await self._tried(lambda: _awaitable(model_run.batch(stage, rows)))
            return [self._usable(model_run.member.name, response) for response in found]
        except NetworkError:
            raise
        except Exception as error:
            self._note(model_run.member.name, error)
            return [None] * len(rows)

    async def _response(self, model_run: ModelRun, row: int) -> Response | None:
        async with self._limit:
            left = None if self._until is None else max(0.0, self._until - time.monotonic())
            try:
                async with asyncio.timeout(left):
                    response = Response.of(await self._tried(lambda: model_run.item(row)))
                return self._usable(model_run.member.name, response)
            except NetworkError:
                raise
            except Exception as error:
                if left is None or not isinstance(error, TimeoutError):  # or time is up
                    self._note(model_run.member.name, error)
                return None

    async def _tried(self, call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        """The result of a call, tried again with longer and longer pauses."""
        for attempt in range(self._settings.retries):
            try:
                return await call()
            except NetworkError:  # it responded, with something that no retry will change
                raise
            except Exception:
                await asyncio.sleep(self._settings.backoff * 2**attempt)
        return await call()

    def _usable(self, name: str, response: Response) -> Response | None:
        """The response; None where its confidence is NaN, as it is where logits are."""
        if response.confidence == response.confidence:
            return response
        self._note(name, NetworkError("a response without a finite confidence"))
        return None

    def _note(self, name: str, error: Exception) -> None:
        """Keep why a model failed, and log the first of its errors."""
        if name not in self.errors:
            logger.warning("`%s` of a cascade failed: %s", name, _one_line(error))
        self.errors[name] = error


async def _awaitable(value: Any) -> Any:  # noqa: ANN401
    return value


def carried(row: Sequence[Known | None]) -> list[Known]:
    """What each stage gave, or where it failed the stage before; the first has not failed.

    Example:
        >>> carried(["a", None, "b", None])
        ['a', 'a', 'b', 'b']
    """
    found: list[Known] = []
    for value in row:
        found.append(found[-1] if value is None else value)
    return found


def check_recorded(
    table: Sequence[Sequence[Response | None]],
    names: Sequence[str],
    errors: dict[str, Exception],
) -> None:
    """Raise where there is nothing to record, and say why the model failed.

    Args:
        table: The responses to each item, by stage.
        names: The model of each stage.
        errors: By model, the last error that it failed with.

    Raises:
        LedgerError: The first model has failed on an item, or another one on all items.
    """
    for stage, name in enumerate(names):
        failed = [sample for sample, row in enumerate(table) if row[stage] is None]
        if failed and (stage == 0 or len(failed) == len(table)):
            where = f"on sample {failed[0]}" if stage == 0 else "on every sample"
            first = ", the first model," if stage == 0 else ""
            raise LedgerError(f"`{name}`{first} failed {where}: {_one_line(errors[name])}")


def _one_line(error: Exception) -> str:
    """Somebody else's error in one line."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")
